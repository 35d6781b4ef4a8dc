"""A site with the admin, a real browser, and what tests do on any page of it. Fixtures: ``site`` and ``browser``."""

from __future__ import annotations

import json
import re
import shutil
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.site.databases import as_default, site_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

POLICY = "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; form-action 'self'"
WAIT_S = 120.0
TABS_MAX = 150
MONITORS = "/admin/wheelbeat/monitor/"


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

    def narrow(self) -> None:
        """Become as narrow as a phone."""
        metrics = {"width": 390, "height": 1800, "deviceScaleFactor": 1, "mobile": True}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def fits(self) -> bool:
        """Whether nothing has to be scrolled sideways."""
        return self.browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        from selenium.webdriver import ActionChains

        ActionChains(self.browser).send_keys(*keys).perform()

    def tab_to(self, selector: str, *, back: bool = False) -> None:
        """Move the focus by the Tab key until it is on an element that fits, and can be seen there."""
        from selenium.webdriver import ActionChains, Keys

        for _ in range(TABS_MAX):
            keys = ActionChains(self.browser)
            keys = (
                keys.key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT) if back else keys.send_keys(Keys.TAB)
            )
            keys.perform()
            focused = self.browser.switch_to.active_element
            if self.browser.execute_script("return arguments[0].matches(arguments[1])", focused, selector):
                assert focused.is_displayed(), selector
                return
        pytest.fail(f"{selector} cannot be reached by the keyboard")

    def log_in(self) -> None:
        """Log in as the superuser and arrive at the list."""
        self.open("/admin/login/?next=" + MONITORS)
        self.type("username", "ann")
        self.type("password", "secret")
        self.find("[type=submit]").click()
        self.find("#changelist")


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
    """Three monitors, an incident, a quarantine, and a beat that has reported."""
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
