"""The page of one-off runs in a real browser: search, cancel, move, and no barrier in light and dark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from support.site.databases import set_up_django
from support.site.pages import MONITORS, Page, barriers, complaints, nameless

from celery_wheelbeat import later

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.browser]

set_up_django()


def test_runs_are_searched_cancelled_and_moved(browser: Any, site: str, tmp_path: Path) -> None:
    remind = Celery("proj", set_as_current=False).signature("proj.remind", args=("<b>",))
    now = datetime.now(UTC)
    ids = [later.apply_at(remind, now + timedelta(minutes=30 + n), key=f"order:{n}") for n in range(12)]
    page = Page(browser, site)
    page.log_in()
    page.find(".wheelbeat-links a[href$='one-off-runs/']").click()
    assert len(page.all("svg.wheelbeat-chart")) == 2
    assert len(page.all("#one-off-runs tbody tr")) == 12
    for scheme in ("light", "dark"):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        assert barriers(page) == []
        browser.save_screenshot(f"{tmp_path}/one-off-runs-{scheme}.png")
    assert not nameless(page)

    for box in page.all("[name=_selected_action]")[:10]:
        box.click()
    page.find("button[value=cancel]").click()
    page.type("reason", "the site is back")
    assert barriers(page) == []
    page.find("[name=confirmed]").click()
    page.until(lambda: "10 runs were cancelled." in page.text(".messagelist"), "they are cancelled")
    assert [later.pending(id=run_id) is None for run_id in ids] == [True] * 10 + [False] * 2

    page.find("select[name=by] option[value=key]").click()
    page.type("text", "order:11")
    page.find(".wheelbeat-inline button").click()
    page.until(lambda: len(page.all("#one-off-runs tbody tr")) == 1, "one run has the key")
    page.find("[name=_selected_action]").click()
    page.find("button[value=move]").click()
    assert barriers(page) == []
    page.type("by", "1h")
    page.find("[name=confirmed]").click()
    page.until(lambda: "1 run was moved." in page.text(".messagelist"), "it is moved")
    moved = later.pending(key="order:11")
    assert moved is not None
    assert moved.id in page.text("#one-off-runs"), "the search is still there"
    assert round((moved.at - now).total_seconds()) == 60 * (30 + 11) + 3_600

    page.narrow()
    page.open(f"{MONITORS}one-off-runs/")
    browser.save_screenshot(f"{tmp_path}/phone.png")
    assert page.fits()
    assert complaints(browser) == []
