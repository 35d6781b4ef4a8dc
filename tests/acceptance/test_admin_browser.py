"""The admin in a real browser under a strict content security policy: create, preview while typing, edit, pause."""

from __future__ import annotations

import json
import re
import shutil
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django_site import as_default, set_up_django, site_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

POLICY = "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; form-action 'self'"
WAIT_S = 60
MONITORS = "/admin/wheelbeat/monitor/"

set_up_django()


def under_policy(application: Any) -> Any:
    """Wrap a WSGI application: every answer forbids inline scripts and styles."""

    def answer(environ: Any, start_response: Any) -> Any:
        def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            return start_response(status, [*headers, ("Content-Security-Policy", POLICY)], *error)

        return application(environ, start)

    return answer


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """Address of the site on a SQLite file, served from threads; its superuser is ``ann`` with password ``secret``."""
    from django.contrib.auth.models import User
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.db import connections
    from django.test.testcases import LiveServerThread

    with site_database(f"sqlite:///{tmp_path}/site.sqlite3") as connection, as_default(connection):
        User.objects.create_superuser("ann", password="secret")
        former = connections.settings["default"]
        connections.settings["default"] = connection.settings_dict  # every request opens a connection of its own
        server = LiveServerThread("127.0.0.1", lambda handler: under_policy(StaticFilesHandler(handler)))
        server.start()
        try:
            assert server.is_ready.wait(WAIT_S)
            assert server.error is None, server.error
            yield f"http://127.0.0.1:{server.port}"
        finally:
            server.terminate()
            connections.settings["default"] = former


def installed(*names: str) -> str:
    """Return the path of the first of these programs that is on PATH."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.fail(f"{' or '.join(names)} is not installed: run `make services`, or install chromium and its driver")
    return found


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    """A headless Chromium in the time zone of New York."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = installed("chromium", "google-chrome", "chromium-browser")
    for argument in (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
        "disable-component-update", "disable-sync", "disable-dev-shm-usage", "window-size=1280,1600",
        f"user-data-dir={tmp_path}/profile",
    ):  # fmt: skip
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(installed("chromedriver")))
    driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "America/New_York"})
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """What the tests do on any page."""

    def __init__(self, browser: Any, site: str) -> None:
        self.browser, self.site = browser, site

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until ``condition`` is true; ``what`` names the event in the failure."""
        from selenium.common import NoSuchElementException, StaleElementReferenceException
        from selenium.webdriver.support.wait import WebDriverWait

        passing = [NoSuchElementException, StaleElementReferenceException]
        return WebDriverWait(self.browser, WAIT_S, 0.05, passing).until(lambda _: condition(), what)

    def open(self, path: str) -> None:
        """Go to a path of the site."""
        self.browser.get(self.site + path)

    def find(self, selector: str) -> Any:
        """Return the first element, as soon as there is one."""
        return self.until(lambda: self.browser.find_element("css selector", selector), selector)

    def all(self, selector: str) -> list[Any]:
        """Return every element that is there now."""
        return self.browser.find_elements("css selector", selector)

    def text(self, selector: str) -> str:
        """Return the visible text of the first element."""
        return self.until(lambda: (self.browser.find_element("css selector", selector).text,), selector)[0]

    def type(self, name: str, text: str) -> None:
        """Replace what is in a field of the form."""
        field = self.find(f"[name={name}]")
        field.clear()
        field.send_keys(text)

    def log_in(self) -> None:
        """Log in as the superuser and arrive at the list."""
        self.open("/admin/login/?next=" + MONITORS)
        self.type("username", "ann")
        self.type("password", "secret")
        self.find("[type=submit]").click()
        self.find("#changelist")


def test_create_preview_edit_and_pause(browser: Any, site: str, tmp_path: Path) -> None:
    from django_wheelbeat.models import Change, Monitor

    page = Page(browser, site)
    page.log_in()
    page.open(f"{MONITORS}add/")
    page.type("name", "Zürich / shop.example 😀")
    page.type("task", "shop.check")
    page.type("interval_ms", "5")
    page.until(lambda: "no unit" in page.text("[data-part=problems]"), "the preview says what is wrong while typing")
    page.type("interval_ms", "5m")
    page.until(lambda: page.text("[data-part=words]") == "every 5m", "the preview follows the typing")
    page.type("interval_ms", "")
    page.type("cron", "30 2 * * *")
    page.type("timezone", "Europe/Berlin")
    page.until(lambda: page.text("[data-part=words]").endswith("(Europe/Berlin)"), "the preview knows the zone")
    page.until(lambda: len(page.all("[data-fire-ms]")) == 10, "ten fire times")
    cells = [cell.text for cell in page.all("[data-fire-ms]:first-child td")]
    assert "02:30:00 CE" in cells[0]
    assert cells[1].endswith(":30:00 UTC")
    assert "PM E" in cells[2], "the third column is in the browser's own zone"
    browser.save_screenshot(f"{tmp_path}/form.png")
    assert not nameless(page)
    page.find("[name=_save]").click()

    page.find("#changelist")
    assert "02:30" in page.text(".field-next_fire")
    monitor = Monitor.objects.get()
    page.find(".field-name a").click()
    page.type("cron", "")
    page.type("interval_ms", "1m")
    page.type("change_reason", "closer look")
    page.until(lambda: page.text("[data-part=words]") == "every 1m", "the preview follows the edit")
    second = page.text("[data-part=notes]").partition("Lands on second :")[2][:2]
    assert second.isdigit()
    page.find("[name=_save]").click()
    page.find("#changelist")
    assert page.text(".field-next_fire").split()[2].endswith(f":{second}")

    page.find(".action-select").click()
    page.find("select[name=action]").send_keys("Pause")
    page.find("button[name=index]").click()
    page.type("reason", "deploy 7")
    browser.save_screenshot(f"{tmp_path}/pause.png")
    page.find("[name=confirmed]").click()
    page.until(lambda: "paused" in page.text(".field-state"), "the list says that it is paused")
    assert "deploy 7" in page.text(".field-state")
    browser.save_screenshot(f"{tmp_path}/list.png")

    monitor.refresh_from_db()
    assert (monitor.enabled, monitor.pause_reason, monitor.interval_ms) == (False, "deploy 7", 60_000)
    named = list(Change.objects.order_by("id").values_list("operation", "actor", "reason"))
    assert named == [("I", "ann", ""), ("U", "ann", "closer look"), ("U", "ann", "deploy 7")]
    log = [line["message"] for line in browser.get_log("browser") if line["level"] in {"SEVERE", "WARNING"}]
    assert not [message for message in log if "favicon.ico" not in message], (
        "the policy was violated, or a script failed"
    )


def test_looks_right_in_the_dark_and_on_a_phone(browser: Any, site: str, tmp_path: Path) -> None:
    from django_wheelbeat.models import Monitor, Quarantine

    hurried = Monitor.objects.create(name="shop.example", task="shop.check", interval_ms=300_000, tags="eu,prod")
    hurried.speed_up("10s", timedelta(hours=2))
    bad = Monitor.objects.create(name="bank.example", task="bank.check", cron="30 2 * * mon", timezone="Asia/Tokyo")
    Quarantine.objects.create(job_key=f"monitor:{bad.pk}", definition_hash="x", reason="no such task: bank.check")
    page = Page(browser, site)
    page.log_in()
    for scheme in ("light", "dark"):
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        page.open(f"{MONITORS}{hurried.pk}/change/")
        page.until(lambda: page.text("time[data-countdown]").startswith("1h 5"), "the countdown of the incident")
        panel = page.find("#wheelbeat-preview")
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", panel)
        browser.save_screenshot(f"{tmp_path}/preview-{scheme}.png")
        ink, paper = (
            brightness(page, "#wheelbeat-preview .wheelbeat-words", "color"),
            brightness(page, "body", "background-color"),
        )
        assert (ink < paper) == (scheme == "light")
        assert abs(ink - paper) > 0.5, "text can be read"
        page.open(MONITORS)
        assert "no such task" in page.text(".field-state")
        assert not nameless(page)
        browser.save_screenshot(f"{tmp_path}/list-{scheme}.png")
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 1800, "deviceScaleFactor": 1, "mobile": True}
    )
    for name, path in (("list", MONITORS), ("form", f"{MONITORS}{hurried.pk}/change/")):
        page.open(path)
        browser.save_screenshot(f"{tmp_path}/phone-{name}.png")
        assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth"), name


def nameless(page: Page) -> list[str]:
    """Return the controls that a screen reader could not name."""
    return page.browser.execute_script(
        """
        const controls = document.querySelectorAll("#main :is(input:not([type=hidden]), select, textarea, button)");
        const named = (control) => control.labels?.length || control.getAttribute("aria-label")
            || control.getAttribute("aria-labelledby") || control.textContent.trim() || control.type === "submit";
        return [...controls].filter((control) => !named(control)).map((control) => control.outerHTML);
        """
    )


def brightness(page: Page, selector: str, style: str) -> float:
    """Return how bright a computed colour is, from 0 to 1."""
    red, green, blue = re.findall(r"[0-9.]+", page.find(selector).value_of_css_property(style))[:3]
    return (0.2126 * float(red) + 0.7152 * float(green) + 0.0722 * float(blue)) / 255


AXE = Path(sys.prefix) / "node/node_modules/axe-core/axe.min.js"


def barriers(page: Page) -> list[str]:
    """Return what axe-core finds serious or worse in the content of the page."""
    assert AXE.exists(), f"{AXE} is missing: run `make axe`"
    assert complaints(page.browser) == [], "before axe-core adds styles of its own"
    page.browser.execute_script(AXE.read_text())
    found = page.browser.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "const context = {include: ['#content'], exclude: ['#searchbar']};"  # the search bar is Django's own
        "axe.run(context, {resultTypes: ['violations']}).then((result) => done(result.violations));"
    )
    page.browser.get_log("browser")
    return [
        f"{violation['id']}: {node['html']}"
        for violation in found
        if violation["impact"] in {"serious", "critical"}
        for node in violation["nodes"]
    ]


def complaints(browser: Any) -> list[str]:
    """Return what the browser has to say about the policy and about scripts."""
    log = [line["message"] for line in browser.get_log("browser") if line["level"] in {"SEVERE", "WARNING"}]
    return [message for message in log if "favicon.ico" not in message]


def choose(page: Page, action: str) -> None:
    """Choose an action for everything that the list shows."""
    page.find("#action-toggle").click()
    page.find(f"select[name=action] option[value={action}]").click()
    page.find("button[name=index]").click()


def reported(now_s: int) -> str:
    """Return a status document with a day of load and an hour of minutes."""
    runs = {"expected": 100, "sent": 99, "skipped": {"restart": 1}, "pending": 0, "reoffered": 0, "difference": 0}
    seconds = [5 + (second % 60 == 0) * 40 for second in range(3600)]
    minutes = [[now_s - 60 * (60 - at), 300 + at % 7 * 20, 0.02, 0.1 + at % 5 / 10] for at in range(60)]
    return json.dumps(
        {
            "version": 1, "state": "running", "behind_s": 0.0, "runs": runs, "watchdog": {}, "wedged": [],
            "jobs": {"monitors": 3, "entries": 1, "refused": 1, "reasons": {"monitor:2": "no such task"}},
            "lateness": {"runs": 99, "p50_s": 0.02, "p99_s": 0.1, "max_s": 0.4},
            "destinations": {"broker": {"connected": True, "waiting": 0, "in_flight": 2, "last_error": ""}},
            "source": {"kind": "sqlite", "lag_s": 0.3, "error": ""},
            "schedule": [{"name": "clean", "task": "t", "schedule": "<freq: 1 h>", "next_fire_ms": now_s * 1000}],
            "load": {"from_s": now_s, "seconds": " ".join(map(str, seconds)), "minutes": "300 " * 1439 + "900"},
            "minutes": minutes,
        }
    )  # fmt: skip


def fill_the_site() -> None:
    from django.utils import timezone

    from django_wheelbeat.models import Beat, Monitor, Quarantine

    for name in ("bank.example", "mail.example", "shop.example"):
        Monitor.objects.create(name=name, task="check", interval_ms=300_000, tags="eu")
    Monitor.objects.filter(name="mail.example").speed_up("10s", timedelta(hours=1))
    key = f"monitor:{Monitor.objects.get(name='bank.example').pk}"
    Quarantine.objects.create(job_key=key, definition_hash="x", reason="no such task: check")
    now = timezone.now()
    Beat.objects.create(
        beat_id="b", namespace="shop", host="host-1", pid=4711, version="1.0", started_at=now - timedelta(days=2),
        seen_at=now, status=reported(int(now.timestamp())),
    )  # fmt: skip


def test_every_page_is_free_of_barriers_in_light_and_dark(browser: Any, site: str, tmp_path: Path) -> None:
    from django_wheelbeat.models import Monitor

    fill_the_site()
    page = Page(browser, site)
    page.log_in()
    first = Monitor.objects.order_by("name").first().pk
    addresses = {
        "list": MONITORS,
        "form": f"{MONITORS}{first}/change/",
        "runs": f"{MONITORS}{first}/runs/",
        "scheduler": f"{MONITORS}scheduler/?at=2030-01-01T12:00:00&span=minute",
        "incidents": f"{MONITORS}incidents/?tag=eu",
        "import": f"{MONITORS}import/",
        "quarantine": "/admin/wheelbeat/quarantine/",
        "audit": "/admin/wheelbeat/audit/",
    }
    found = {}
    for scheme in ("light", "dark"):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        for name, address in addresses.items():
            page.open(address)
            page.find("#content")
            found[name, scheme] = barriers(page)
            browser.save_screenshot(f"{tmp_path}/{name}-{scheme}.png")
    assert {place: list_ for place, list_ in found.items() if list_} == {}
    assert complaints(browser) == []


def test_bulk_edit_runs_through_its_steps_by_itself(
    browser: Any, site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_wheelbeat import chunks, walks
    from django_wheelbeat.models import Monitor

    monkeypatch.setattr(chunks.chunks_of_ids, "__defaults__", (2,))
    monkeypatch.setattr(walks, "STEP_S", 0.0)
    Monitor.objects.bulk_create(Monitor(name=f"m{i}", task="t", interval_ms=60_000, tags="eu") for i in range(7))
    Monitor.objects.create(name="other", task="t", interval_ms=60_000)
    page = Page(browser, site)
    page.log_in()
    page.open(f"{MONITORS}?tag=eu")
    choose(page, "edit_monitors")
    page.find("[name=confirmed]")  # the list has a field "queue", too
    page.type("queue", "slow")
    page.type("tags_added", "moved")
    assert barriers(page) == []
    browser.save_screenshot(f"{tmp_path}/edit.png")
    page.find("[name=confirmed]").click()
    page.until(lambda: "7 monitors were changed." in page.text(".messagelist"), "the last step returns to the list")
    assert Monitor.objects.filter(queue="slow", tags="eu,moved").count() == 7
    assert Monitor.objects.get(name="other").queue == ""
    page.open(f"{MONITORS}?tag=moved")
    choose(page, "delete_selected")
    page.type("typed", "8")
    page.find("[name=confirmed]").click()
    assert "7 monitors" in page.text(".errorlist")
    assert barriers(page) == []
    page.type("typed", "7")
    page.find("[name=confirmed]").click()
    page.until(lambda: "7 monitors were deleted." in page.text(".messagelist"), "they are deleted")
    assert list(Monitor.objects.values_list("name", flat=True)) == ["other"]
    assert complaints(browser) == []


def test_incident_import_quarantine_and_scheduler(browser: Any, site: str, tmp_path: Path) -> None:
    from django_wheelbeat.models import Change, Monitor

    fill_the_site()
    page = Page(browser, site)
    page.log_in()
    page.find(".wheelbeat-links a[href$='incidents/']").click()
    page.type("tag", "eu")
    page.find(".wheelbeat-inline button").click()
    page.type("every", "5s")
    page.type("end", "2h")
    page.find("input[name=confirmed][value='Speed up']").click()
    page.until(lambda: "3 monitors were sped up." in page.text(".messagelist"), "the incident has begun")
    page.open(f"{MONITORS}incidents/")
    page.until(lambda: page.text("time[data-countdown]").startswith("1h 5"), "the countdown")

    file = tmp_path / "monitors.jsonl"
    file.write_text('{"name": "new.example", "task": "check", "interval": "5m"}\n{"name": "bad", "task": "t"}\n')
    page.open(f"{MONITORS}import/")
    page.find("[name=file]").send_keys(str(file))
    page.find("[name=look]").click()
    page.until(lambda: "1 new, 0 changed, 0 as they are, 1 lines" in page.text("[role=status]"), "the dry run")
    assert "expected one of interval" in page.text("[role=status]")
    assert barriers(page) == []
    page.find("[name=file]").send_keys(str(file))
    page.find("[name=skip_errors]").click()
    page.find("[name=import]").click()
    page.until(lambda: "1 monitors were added" in page.text(".messagelist"), "the import")
    assert Monitor.objects.filter(name="new.example").exists()

    page.open("/admin/wheelbeat/quarantine/")
    choose(page, "try_again")
    page.until(lambda: "Beats try 1 monitor again." in page.text(".messagelist"), "beats are asked")
    assert Change.objects.latest("id").reason == "try again"

    page.open(f"{MONITORS}scheduler/")
    assert "host-1" in page.text("h2")
    assert len(page.all("svg.wheelbeat-chart")) == 4
    assert all(chart.rect["height"] > 50 for chart in page.all("svg.wheelbeat-chart"))
    browser.execute_script("document.querySelector('[name=at]').value = '2030-01-01T12:00:00'")
    page.find("select[name=span] option[value=minute]").click()
    page.find(".wheelbeat-inline button").click()
    page.until(lambda: "Nothing fires then." in page.text("#content") or page.all("#firing ~ table td a"), "an answer")
    assert complaints(browser) == []
