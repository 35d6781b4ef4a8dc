"""The admin in a real browser under a strict content security policy: create, preview while typing, edit, pause."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from django_site import as_default, set_up_django, site_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

POLICY = "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; form-action 'self'"
WAIT_S = 20
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


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    """A headless Chromium in the time zone of New York."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
        "disable-component-update", "disable-sync", "disable-dev-shm-usage", "window-size=1280,1600",
        f"user-data-dir={tmp_path}/profile",
    ):  # fmt: skip
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
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
        return self.find(selector).text

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
    from datetime import timedelta

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
        page.until(lambda: page.text("time[data-countdown]").startswith("1h 59m"), "the countdown of the incident")
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
