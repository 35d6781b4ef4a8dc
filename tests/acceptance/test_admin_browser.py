"""The admin in a real browser under a strict content security policy: create, preview while typing, edit, pause."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from support.site.databases import set_up_django
from support.site.pages import MONITORS, Page, barriers, brightness, choose, complaints, fill_the_site, nameless

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.browser]

set_up_django()


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
    second = page.text("[data-part=notes]").partition("Runs at second :")[2][:2]
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
        "one-off runs": f"{MONITORS}one-off-runs/",
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
    from django_wheelbeat.bulk import progress as walks
    from django_wheelbeat.database import chunks
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
    page.find("[name='dry-run']").click()
    page.until(lambda: "1 new, 0 changed, 0 unchanged, 1 lines" in page.text("[role=status]"), "the dry run")
    assert "expected exactly one of interval" in page.text("[role=status]")
    assert barriers(page) == []
    page.find("[name=file]").send_keys(str(file))
    page.find("[name=skip_errors]").click()
    page.find("[name=import]").click()
    page.until(lambda: "Monitors added: 1" in page.text(".messagelist"), "the import")
    assert Monitor.objects.filter(name="new.example").exists()

    page.open("/admin/wheelbeat/quarantine/")
    choose(page, "try_again")
    page.until(lambda: "1 monitor will be tried again." in page.text(".messagelist"), "beats are asked")
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
