"""The admin in a real browser: many monitors at once, run now, by the keyboard alone, on a phone."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery._state import current_app, set_default_app
from support.site.databases import set_up_django
from support.site.pages import MONITORS, Page, barriers, choose, complaints, fill_the_site

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.browser]

set_up_django()


@pytest.fixture
def app() -> Iterator[Celery]:
    """The app of all threads, on a broker in memory."""
    former = current_app._get_current_object()
    app = Celery("site", broker=f"memory://{uuid.uuid4()}", set_as_current=False)
    app.conf.broker_transport_options = {"polling_interval": 0}
    set_default_app(app)
    yield app
    set_default_app(former)
    app.close()


def sent(app: Celery) -> list[str]:
    """Take the run ids out of the queue."""
    found = []
    with app.connection_for_write() as connection:
        while message := connection.default_channel.basic_get("celery", no_ack=True):
            found.append(message.headers["id"])
    return found


def fill(count: int, **columns: Any) -> None:
    from django_wheelbeat.models import Monitor

    Monitor.objects.bulk_create(Monitor(name=f"m{i:03}", task="t", interval_ms=60_000, **columns) for i in range(count))


def test_run_now_is_clicked_on_one_and_on_all_that_match(
    browser: Any, site: str, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_wheelbeat.admin import run_page as run_admin
    from django_wheelbeat.bulk import progress as walks
    from django_wheelbeat.models import Monitor

    monkeypatch.setattr(run_admin, "CHUNK_SENT", 50)
    monkeypatch.setattr(walks, "STEP_S", 0.0)
    fill(120, tags="eu")
    other = Monitor.objects.create(name="other", task="t", interval_ms=60_000)
    page = Page(browser, site)
    page.log_in()
    page.open(f"{MONITORS}{other.pk}/change/")
    page.find(".wheelbeat-run button").click()
    page.until(lambda: "was sent as run" in page.text(".messagelist"), "the button has sent it")
    (run_id,) = sent(app)
    assert run_id in page.text(".messagelist")

    page.open(f"{MONITORS}?tag=eu")
    page.find("#action-toggle").click()
    page.find(".question a").click()
    page.find("select[name=action] option[value=run_monitors_now]").click()
    page.find("button[name=index]").click()
    page.until(lambda: "120 monitors will be run now" in page.text("#content"), "it says how many")
    assert barriers(page) == []
    page.find("[name=run]").click()
    page.until(lambda: "120 runs were sent." in page.text(".messagelist"), "the steps follow by themselves")
    runs = sent(app)
    assert len(runs) == len(set(runs)) == 120
    assert complaints(browser) == []


def test_pause_with_a_filter_over_several_pages(browser: Any, site: str) -> None:
    from django_wheelbeat.models import Monitor

    fill(130, tags="eu")
    Monitor.objects.create(name="other", task="t", interval_ms=60_000, tags="us")
    Monitor.objects.filter(name="m000").update(enabled=False, pause_reason="mine")
    page = Page(browser, site)
    page.log_in()
    page.open(f"{MONITORS}?tag=eu")
    assert len(page.all("#result_list tbody tr")) == 100
    page.find("#action-toggle").click()
    page.find(".question a").click()
    page.find("select[name=action] option[value=pause_monitors]").click()
    page.find("button[name=index]").click()
    page.until(lambda: "129 enabled monitors will be paused." in page.text("#content"), "the exact number")
    page.type("reason", "data centre move")
    page.find("[name=confirmed]").click()
    page.until(lambda: "129 monitors were paused." in page.text(".messagelist"), "all pages of the list")
    reasons = dict(Monitor.objects.values_list("name", "pause_reason"))
    assert (reasons.pop("m000"), reasons.pop("other")) == ("mine", "")
    assert set(reasons.values()) == {"data centre move"}
    choose(page, "resume_monitors")
    page.until(lambda: "100 paused monitors will be resumed." in page.text("#content"), "one page of the list")
    page.type("reason", "all clear")
    page.find("[name=confirmed]").click()
    page.until(lambda: "100 monitors were resumed." in page.text(".messagelist"), "they run again")
    assert Monitor.objects.filter(enabled=False).count() == 30
    assert complaints(browser) == []


def test_the_keyboard_is_enough(browser: Any, site: str) -> None:
    from selenium.webdriver import Keys

    from django_wheelbeat.models import Monitor

    fill(2)
    page = Page(browser, site)
    page.log_in()
    page.tab_to("#result_list .action-select")
    page.press(Keys.SPACE)
    page.tab_to("select[name=action]", back=True)
    page.press("Pause")
    page.tab_to("button[name=index]")
    page.press(Keys.ENTER)
    page.find("[name=confirmed]")
    page.press("by keyboard", Keys.ENTER)  # the field for the reason has the focus
    page.until(lambda: "1 monitor was paused." in page.text(".messagelist"), "one of them is paused")
    assert Monitor.objects.get(enabled=False).pause_reason == "by keyboard"

    page.tab_to(".wheelbeat-links a[href$='scheduler/']")
    page.press(Keys.ENTER)
    page.find("#firing")
    page.tab_to("button[name=upcoming]")
    page.press(Keys.ENTER)
    page.until(lambda: page.all("#firing ~ table td"), "what is upcoming")
    page.tab_to("#firing ~ table td a")
    page.press(Keys.ENTER)
    page.find("[name=interval_ms]")
    page.tab_to("[name=interval_ms]")
    page.press("30s", Keys.ENTER)
    page.until(lambda: "was changed successfully" in page.text(".messagelist"), "the form is saved")
    assert Monitor.objects.filter(interval_ms=30_000).count() == 1
    assert complaints(browser) == []


def test_pages_fit_a_phone(browser: Any, site: str, tmp_path: Path) -> None:
    fill_the_site()
    page = Page(browser, site)
    page.log_in()
    page.narrow()
    for name, path in {
        "scheduler": "scheduler/?at=2030-01-01T12:00:00&span=minute", "incidents": "incidents/?tag=eu",
        "import": "import/",
    }.items():  # fmt: skip
        page.open(f"{MONITORS}{path}")
        page.find("#content")
        browser.save_screenshot(f"{tmp_path}/phone-{name}.png")
        assert page.fits(), name
    for action in ("pause_monitors", "edit_monitors", "delete_selected", "run_monitors_now"):
        page.open(MONITORS)
        choose(page, action)
        page.find(".wheelbeat-action .submit-row")
        browser.save_screenshot(f"{tmp_path}/phone-{action}.png")
        assert page.fits(), action
