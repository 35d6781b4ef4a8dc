"""Makes the screenshots of the documentation: runs the demo on a separate database and captures the admin.

``.venv/bin/python example_project/screenshots.py`` needs Chromium with chromedriver. It takes about three minutes, so
that the charts of the last hour have data.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.by import By

from demo import USER, answers, port_near

HERE = Path(__file__).resolve().parent
IMAGES = HERE.parent / "docs" / "images"
START_S = 120
MINUTES_WANTED = 2


def wait(what, condition, seconds=START_S):
    """Wait until ``condition`` returns a true value and return it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            sys.exit(f"{what}: not within {seconds} s")
        time.sleep(0.5)
    return found


def installed(*names):
    """Return the path of the first of these programs found on PATH."""
    found = next(filter(None, map(shutil.which, names)), None)
    return found or sys.exit(f"{' or '.join(names)} is not installed: the pictures are made with Chromium")


def chromium(profile):
    """Start a headless browser with the size of the screenshots."""
    options = webdriver.ChromeOptions()
    options.binary_location = installed("chromium", "google-chrome", "chromium-browser")
    for argument in ("headless", "no-sandbox", "disable-gpu", "window-size=1280,1000", f"user-data-dir={profile}"):
        options.add_argument(f"--{argument}")
    return webdriver.Chrome(options, webdriver.ChromeService(installed("chromedriver")))


def status():
    """Return the status document of the demo's beat, or None."""
    from django_wheelbeat.models import Beat

    row = Beat.objects.order_by("-seen_at").first()
    return None if row is None else json.loads(row.status)


class Camera:
    """Opens pages of the admin and saves screenshots of them."""

    def __init__(self, driver, site):
        self.driver, self.site = driver, site

    def log_in(self):
        self.driver.get(f"{self.site}/admin/login/?next=/admin/wheelbeat/monitor/")
        for name in ("username", "password"):
            self.driver.find_element(By.NAME, name).send_keys(USER)
        self.driver.find_element(By.CSS_SELECTOR, "[type=submit]").click()

    def scheme(self, name):
        media = {"features": [{"name": "prefers-color-scheme", "value": name}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    def take(self, name, path=None, scroll_to=None):
        if path is not None:
            self.driver.get(f"{self.site}/admin/wheelbeat/{path}")
        wait(name, lambda: self.driver.find_elements(By.ID, "content"))
        if scroll_to:
            target = self.driver.find_element(By.CSS_SELECTOR, scroll_to)
            self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", target)
        self.driver.save_screenshot(str(IMAGES / f"{name}.png"))
        print(f"{name}.png")


def photograph(camera):
    """Take every screenshot."""
    from datetime import timedelta

    from django_wheelbeat.models import Monitor

    Monitor.objects.filter(name__startswith="anchor").speed_up("10s", timedelta(hours=2))
    Monitor.objects.filter(name__startswith="birch login").pause("migration of the login service")
    first = Monitor.objects.filter(name__startswith="cedar", interval_ms__lte=30_000).first().pk
    camera.log_in()
    camera.take("list", "monitor/?q=")
    camera.take("preview", f"monitor/{first}/change/", "#wheelbeat-preview")
    camera.take("scheduler", "monitor/scheduler/")
    camera.take("incidents", "monitor/incidents/?tag=eu")
    camera.take("audit", "audit/")
    camera.scheme("dark")
    camera.take("scheduler-dark", "monitor/scheduler/")


def main():
    """Run the demo, take the screenshots, stop it."""
    IMAGES.mkdir(exist_ok=True)
    port = port_near(8010)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            "WHEELBEAT_EXAMPLE_VAR": f"{folder}/var",
            "WHEELBEAT_EXAMPLE_PORT": str(port),
            "DJANGO_SETTINGS_MODULE": "project.settings",
        }
        demo = subprocess.Popen([sys.executable, "demo.py"], cwd=HERE, stdout=subprocess.DEVNULL)
        driver = None
        try:
            site = f"http://127.0.0.1:{port}"
            wait("the admin", lambda: answers(f"{site}/admin/login/"))
            import django

            django.setup()
            wait("the survey of the load", lambda: (status() or {}).get("load"))
            wait("the last minutes", lambda: len(status()["minutes"]) >= MINUTES_WANTED, 60 * (MINUTES_WANTED + 2))
            driver = chromium(f"{folder}/profile")
            photograph(Camera(driver, site))
        finally:
            if driver is not None:
                driver.quit()
            demo.send_signal(signal.SIGTERM)
            demo.wait(60)


if __name__ == "__main__":
    main()
