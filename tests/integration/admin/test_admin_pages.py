"""What all pages of the section have in common: the site that they belong to, monitors with any primary key."""

from __future__ import annotations

from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from django.test.utils import CaptureQueriesContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIST = "/admin/wheelbeat/monitor/"


@pytest.fixture
def second_site() -> Iterator[str]:
    """Monitors are in an admin site of their own, and only there; yields the path of that site."""
    from django.contrib import admin
    from django.test import override_settings
    from django.urls import path

    from django_wheelbeat.admin import MonitorAdmin
    from django_wheelbeat.models import Monitor

    site = admin.AdminSite("second")
    site.register(Monitor, MonitorAdmin)
    admin.site.unregister(Monitor)
    urls = ModuleType("urls_of_two_sites")
    urls.urlpatterns = [path("admin/", admin.site.urls), path("second/", site.urls)]  # type: ignore[attr-defined]
    try:
        with override_settings(ROOT_URLCONF=urls):
            yield "/second/"
    finally:
        admin.site.register(Monitor, MonitorAdmin)


def test_monitors_in_a_second_site_are_shown_there_and_link_there(
    db: Any, login: Callable[..., Any], second_site: str
) -> None:
    from django_wheelbeat.models import Monitor, Quarantine

    monitor = Monitor.objects.create(name="a", task="t", interval_ms=60_000)
    Quarantine.objects.create(job_key=f"monitor:{monitor.pk}", definition_hash="x", reason="r")
    browser, section = login(), f"{second_site}wheelbeat/"
    asked = {"action": "pause_monitors", "_selected_action": [monitor.pk], "index": "0"}
    for path, data in (
        ("", None),
        ("monitor/", None),
        ("monitor/", asked),
        ("monitor/", asked | {"action": "run_monitors_now"}),
        ("monitor/add/", None),
        (f"monitor/{monitor.pk}/change/", None),
        (f"monitor/{monitor.pk}/history/", None),
        (f"monitor/{monitor.pk}/delete/", None),
        (f"monitor/{monitor.pk}/runs/", None),
        ("monitor/scheduler/", None),
        ("monitor/incidents/", None),
        ("monitor/import/", None),
    ):
        response = browser.get(section + path) if data is None else browser.post(section + path, data)
        assert response.status_code == 200, path
        page = response.content.decode()
        assert "/second/wheelbeat/monitor/" in page, path
        assert "/admin/wheelbeat/monitor/" not in page, path
    for path in ("", "quarantine/", "change/", "beat/", "audit/"):
        page = browser.get(f"/admin/wheelbeat/{path}")
        assert page.status_code == 200, "the default site has the other models, and no monitors to link to"
        assert b"wheelbeat/monitor/" not in page.content


def test_monitors_with_negative_primary_keys_can_be_found_and_changed(either: Any, login: Callable[..., Any]) -> None:
    """The beat refuses them, since such ids belong to entries; all the more somebody has to get at them."""
    from django_wheelbeat.models import Change, Monitor, Quarantine

    for pk in (-7, -1, 0, 1):
        Monitor.objects.create(pk=pk, name=f"m{pk}", task="t", interval_ms=10_000, jitter_s=0)
    browser = login()
    answer = {"action": "pause_monitors", "_selected_action": ["-7", "-1", "0", "1"], "confirmed": "x", "reason": "r"}
    browser.post(LIST, answer)
    assert not Monitor.objects.filter(enabled=True).exists()
    browser.post(LIST, {"action": "resume_monitors", "_selected_action": ["-7"], "confirmed": "x", "reason": "r"})
    assert Monitor.objects.get(enabled=True).pk == -7
    Monitor.objects.update(enabled=True)
    shown = browser.get(f"{LIST}scheduler/", {"at": "2030-06-03T12:00:00", "span": "second"})
    assert [monitor.pk for monitor, _ in shown.context["firings"]] == [0, 1]
    Quarantine.objects.create(job_key="monitor:-7", definition_hash="x", reason="r")
    page = browser.get("/admin/wheelbeat/quarantine/").content.decode()
    assert f'href="{LIST}-7/change/"' in page
    browser.post("/admin/wheelbeat/quarantine/", {"action": "try_again", "_selected_action": ["monitor:-7"]})
    assert Change.objects.latest("id").monitor_id == -7
    found = browser.get("/admin/wheelbeat/audit/", {"q": "-7"}).context["cl"].result_list
    assert {audit.monitor_id for audit in found} == {-7}


def test_a_claim_that_was_given_back_is_not_shown_as_running() -> None:
    from celery_wheelbeat.worker.claims import Claim, State
    from django_wheelbeat.admin.past_runs import PastRun, Result

    def run(state: State, ended_ms: int, result: Result | None = None) -> PastRun:
        return PastRun(1_000, "id", result, Claim(state, "n", "e", "d", 1_500, ended_ms))

    assert (run(State.RUNNING, 0).claim_in_words, run(State.RUNNING, 0).runtime_s) == ("running", None)
    assert (run(State.DONE, 2_500).claim_in_words, run(State.DONE, 2_500).runtime_s) == ("ended", 1.0)
    given_back = run(State.OPEN, 2_500)
    assert given_back.claim_in_words == "failed, or returned to the broker"
    assert (given_back.start_delay_s, given_back.runtime_s) == (0.5, None)
    assert run(State.OPEN, 2_500, Result("FAILURE", None)).runtime_s == 1.0


def test_the_banner_is_on_every_page_of_the_section(db: Any, login: Callable[..., Any]) -> None:
    from django_wheelbeat.models import Monitor

    pk = Monitor.objects.create(name="a", task="t", interval_ms=60_000).pk
    browser = login()
    for path in ("", "add/", f"{pk}/change/", f"{pk}/history/", f"{pk}/delete/", f"{pk}/runs/", "scheduler/",
                 "incidents/", "import/", "../", "../quarantine/", "../audit/", "../beat/", "../change/"):  # fmt: skip
        page = browser.get(f"{LIST}{path}".replace("monitor/../", ""))
        assert "No beat has ever reported" in page.content.decode(), path


def test_the_last_due_time_is_computed_like_the_next(either: Any, login: Callable[..., Any]) -> None:
    from django.utils import timezone

    from django_wheelbeat.models import Monitor
    from django_wheelbeat.monitors.rows import to_ms

    make = Monitor.objects.create
    made = make(name="often", task="t", interval_ms=60_000, jitter_s=0)
    make(name="paused", task="t", interval_ms=60_000, enabled=False)
    make(name="bad", task="t", cron="so so")
    make(name="future", task="t", interval_ms=60_000, start_at=timezone.now() + timedelta(days=1))
    columns = {f.attname: getattr(made, f.attname) for f in Monitor._meta.fields if f.attname not in ("id", "name")}
    make(**columns | {"name": "since", "effective_from": timezone.now() - timedelta(hours=1)})
    browser = login()
    with CaptureQueriesContext(either) as queries:
        response = browser.get(LIST)
    assert not any("audit" in query["sql"] for query in queries)
    rows = {monitor.name: monitor for monitor in response.context["cl"].result_list}
    due = rows["since"]
    assert due.next_fire_ms - due.last_fire_ms == 60_000
    assert to_ms(timezone.now()) - due.last_fire_ms < 120_000
    assert [rows[name].last_fire_ms for name in ("paused", "bad", "future")] == [None] * 3
    assert '<td class="field-last_fire"><time data-local-time datetime="' in response.content.decode()
    page = browser.get(f"{LIST}{due.pk}/change/").content.decode()
    assert "Last due: <time data-local-time" in page


def test_an_instant_is_shown_in_three_zones_without_a_script(db: Any, login: Callable[..., Any]) -> None:
    from django.test import override_settings

    from django_wheelbeat.admin.local_times import local_time
    from django_wheelbeat.models import Monitor

    with override_settings(TIME_ZONE="America/New_York"):
        shown = str(local_time(1_900_000_000_000, "Asia/Tokyo"))
        assert "Mon 2030-03-18 02:46:40 JST</time>" in shown
        assert 'title="Sun 2030-03-17 17:46:40 UTC · Sun 2030-03-17 13:46:40 EDT"' in shown
        assert local_time(None, "UTC") == "–"
        pk = Monitor.objects.create(name="a", task="t", cron="30 2 * * *", timezone="Asia/Tokyo").pk
        page = login().get(f"{LIST}{pk}/change/").content.decode()
        heads = page[page.index('data-part="table"') :]
        assert heads.index("Asia/Tokyo") < heads.index(">UTC<") < heads.index("This site (America/New_York)")
        assert " EDT</td>" in heads or " EST</td>" in heads


def test_the_preview_can_be_asked_ten_times_a_second(
    db: Any, login: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_wheelbeat.admin import monitor as monitor_admin

    monkeypatch.setattr(monitor_admin, "now_ms", lambda: 1_900_000_000_000)
    browser, other = login("ann"), login("bob")
    asked = f"{LIST}preview/?interval_ms=5m&task=t"
    answers = [browser.get(asked) for _ in range(12)]
    assert [answer.status_code for answer in answers] == [200] * 10 + [429] * 2
    assert answers[-1]["Retry-After"] == "1"
    assert other.get(asked).status_code == 200
    monkeypatch.setattr(monitor_admin, "now_ms", lambda: 1_900_000_001_000)
    assert browser.get(asked).status_code == 200
    from django.test import override_settings

    with override_settings(CACHES={"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}):
        assert {browser.get(asked).status_code for _ in range(12)} == {200}, "nothing is counted, nothing refused"


def test_a_number_that_was_not_counted_is_not_offered_for_selection(
    either: Any, login: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_wheelbeat.admin import paginator
    from django_wheelbeat.models import Monitor

    monkeypatch.setattr(paginator, "COUNTED_MAX", 20)
    monkeypatch.setattr(paginator, "PAGED_MAX", 20)
    Monitor.objects.bulk_create(
        Monitor(name=f"m{i:02}", task="t", interval_ms=60_000, tags="eu", enabled=i > 0) for i in range(30)
    )
    browser = login()
    monkeypatch.setattr(type(admin_of_monitors()), "list_per_page", 10)  # whichever of them the addresses lead to
    page = browser.get(f"{LIST}?tag=eu").content.decode()
    assert "Select all matching objects" in page
    assert "Select all 20" not in page
    assert "All 20 selected" not in page
    chosen = {"action": "pause_monitors", "_selected_action": ["0"], "select_across": "1", "index": "0"}
    assert "29 enabled monitors will be paused." in browser.post(f"{LIST}?tag=eu", chosen).content.decode()
    monkeypatch.setattr(paginator, "COUNTED_MAX", 50)
    assert "Select all 30" in browser.get(f"{LIST}?tag=eu").content.decode()


def admin_of_monitors() -> Any:
    from django.contrib import admin

    from django_wheelbeat.models import Monitor

    return admin.site._registry[Monitor]


def test_a_result_is_linked_in_the_site_that_has_it(
    db: Any, login: Callable[..., Any], second_site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_wheelbeat.admin import history_page
    from django_wheelbeat.admin.past_runs import History, PastRun, Result
    from django_wheelbeat.models import Monitor

    monitor = Monitor.objects.create(name="a", task="t", interval_ms=60_000)
    pages = [("admin:wheelbeat_monitor_change", monitor.pk), ("admin:of_no_site", 7), None]
    runs = [PastRun(1_900_000_000_000, "id", Result(f"STATE{i}", None, page), None) for i, page in enumerate(pages)]
    monkeypatch.setattr(history_page, "history_of", lambda *_: History(runs, []))
    page = login().get(f"{second_site}wheelbeat/monitor/{monitor.pk}/runs/").content.decode()
    assert f'<a href="/second/wheelbeat/monitor/{monitor.pk}/change/">STATE0</a>' in page
    assert "<td>STATE1</td>" in page
    assert "<td>STATE2</td>" in page
