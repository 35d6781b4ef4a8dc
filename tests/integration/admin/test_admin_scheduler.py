"""The page of the scheduler: what it shows of a beat, what fires at an instant, who may see it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = "/admin/wheelbeat/monitor/scheduler/"
NOON = datetime(2030, 6, 3, 12, 0, tzinfo=UTC)


def document(**changes: Any) -> dict[str, Any]:
    from celery_wheelbeat.dispatch import PublisherHealth
    from celery_wheelbeat.dispatch.reports.lateness import Quantiles
    from celery_wheelbeat.engine.ledger import Ledger
    from celery_wheelbeat.observe.status import ColdStart, DestinationState, EntryState, Jobs, Observed
    from celery_wheelbeat.observe.status import document as made_of

    ledger = Ledger()
    ledger.expect(10)
    ledger.confirm(6)
    ledger.skip("backlog", 3)
    begin_s = int(NOON.timestamp())
    seconds, minutes = ["1"] * 3600, ["60"] * 1440
    seconds[125], minutes[720] = "77", "999"
    observed = Observed(
        state="running",
        now_ms=1_700_000_010_000,
        cursor_ms=1_700_000_010_000,
        jobs=Jobs(5, 2, {"monitor:7": "cron: <b>no</b>"}, 1),
        ledger=ledger,
        pending=1,
        lateness=Quantiles(6, 0.1, 0.2, 0.3),
        destinations={"broker": DestinationState(PublisherHealth(False, 1, 0.0), 4, None, 1, "refused <i>")},
        source={"kind": "postgresql", "lag_s": 0.4},
        sweeps=3,
        watchdog={},
        clock_steps=0,
        threads={},
        wedged=[],
        schedule=[
            EntryState("clean <up>", "tasks.clean", "<freq: 1.00 hour>", begin_s * 1000, (begin_s - 3600) * 1000)
        ],
        lanes={"fast": 3, "celery": {"a hook <b>": 2, "custom schedule": 1}, "behind": True},
        shards=64,
        cold_start=ColdStart(7, 0.25),
        survey={
            "load": {"from_s": begin_s, "seconds": " ".join(seconds), "minutes": " ".join(minutes)},
            "minutes": [[begin_s - 60, 600, 0.1, 0.9], [begin_s, 120, 0.2, 0.4]],
        },
    )
    return {**made_of(observed), **changes}


def report(status: Any, *, ago: timedelta = timedelta(0), beat_id: str = "b1") -> None:
    from django.utils import timezone

    from django_wheelbeat.models import Beat

    now = timezone.now()
    Beat.objects.create(
        beat_id=beat_id, namespace="shop", host="<host>", pid=12345, version="1", started_at=now - timedelta(days=1),
        seen_at=now - ago, status=status if isinstance(status, str) else json.dumps(status),
    )  # fmt: skip


def test_the_page_shows_what_a_beat_reports(either: Any, login: Callable[..., Any]) -> None:
    report(document())
    browser = login()
    assert 'href="/admin/wheelbeat/monitor/scheduler/"' in browser.get("/admin/wheelbeat/monitor/").content.decode()
    response = browser.get(PAGE)
    page = response.content.decode()
    assert "&lt;host&gt;" in page
    assert "12345" in page, "a process id is no amount: no separators"
    for shown in (
        "6 / 10",
        "backlog 3",
        "lag 0.4 s",
        "not connected: refused &lt;i&gt;",
        "cron: &lt;b&gt;no&lt;/b&gt;",
        "<dd>64</dd>",
        "7 jobs in 0.25 s",
        "3, 3, the celery lane is behind",
        "2 jobs: a hook &lt;b&gt;",
        "1 job: custom schedule",
        "Mon 2030-06-03 11:00:00 UTC",
        "1 more entry is not shown",
    ):
        assert shown in page, shown
    assert "The peak: 77 runs at Mon 2030-06-03 12:02:05 UTC" in page
    assert "The peak: 999 runs at Tue 2030-06-04 00:00:00 UTC" in page
    assert "2.0 runs per second in the last minute, at most 10.0." in page
    assert "99% within 0.400 s, all within 0.900 s" in page
    assert "clean &lt;up&gt;" in page
    assert "&lt;freq: 1.00 hour&gt;" in page
    assert page.count('<svg class="wheelbeat-chart"') == 4
    assert "<script>" not in page
    assert "style=" not in page, "a strict content security policy forbids it"


@pytest.mark.parametrize(
    "status",
    ["{}", "no JSON", "[1]", document(load=None, minutes=[])],
    ids=["empty", "text", "list", "without a survey"],
)
def test_a_row_without_a_document_is_shown_as_far_as_it_goes(db: Any, login: Callable[..., Any], status: Any) -> None:
    report(status)
    response = login().get(PAGE)
    assert response.status_code == 200
    assert b"&lt;host&gt;" in response.content


def test_entries_of_an_older_beat_have_no_last_fire_time(db: Any, login: Callable[..., Any]) -> None:
    older = document()
    del older["schedule"][0]["last_fire_ms"], older["shards"], older["cold_start"], older["lanes"]
    report(older)
    page = login().get(PAGE)
    assert page.status_code == 200
    assert "<td>–</td></tr>" in page.content.decode()


def test_a_complete_list_of_entries_is_not_called_a_part(db: Any, login: Callable[..., Any]) -> None:
    whole = document()
    whole["jobs"]["entries"] = 1
    report(whole)
    assert "not shown" not in login().get(PAGE).content.decode()


def test_what_is_upcoming_is_the_minute_from_now_on(either: Any, login: Callable[..., Any]) -> None:
    from django.utils import timezone

    from django_wheelbeat.models import Monitor

    before = timezone.now()
    make = Monitor.objects.create
    make(name="often", task="t", interval_ms=20_000)
    soon = make(name="soon", task="t", once_at=before + timedelta(seconds=45))
    make(name="later", task="t", once_at=before + timedelta(minutes=10))
    browser = login()
    response = browser.get(PAGE, {"upcoming": "1"})
    assert {monitor.name for monitor, _ in response.context["firings"]} == {"often", "soon"}
    assert f'href="/admin/wheelbeat/monitor/{soon.pk}/change/"' in response.content.decode()
    further = browser.get(PAGE, {"upcoming": "1", "since_ms": "1900000000000", "after": str(soon.pk)})
    assert further.context["begin"] == "Sun 2030-03-17 17:46:40 UTC"
    assert "often" not in {monitor.name for monitor, _ in further.context["firings"]}, "its key lies before"
    for odd in ({"since_ms": "x"}, {"since_ms": "9" * 30}, {"since_ms": "-1"}, {"after": "x"}):
        assert "firings" not in browser.get(PAGE, {"upcoming": "1", **odd}).context


def test_silent_and_stopped_beats_are_distinguished(db: Any, login: Callable[..., Any]) -> None:
    report(document(), ago=timedelta(minutes=5), beat_id="hangs")
    report(document(state="stopped"), ago=timedelta(minutes=6), beat_id="gone")
    page = login().get(PAGE).content.decode()
    assert page.index(">silent<") < page.index(">stopped<")
    assert "nothing is being sent" in page


def test_only_people_with_the_permission_see_it(db: Any, login: Callable[..., Any]) -> None:
    assert login("a", only=("view_monitor", "view_beat", "change_monitor")).get(PAGE).status_code == 403
    watcher = login("b", only=("view_scheduler",))
    assert watcher.get(PAGE).status_code == 200
    assert b"What fires at" not in watcher.get(PAGE).content, "that lists monitors"
    asked = watcher.get(PAGE, {"at": "2030-06-03T12:00", "span": "second"})
    assert "firings" not in asked.context
    assert watcher.post(PAGE).status_code == 405


def fill() -> None:
    from django_wheelbeat.models import Monitor

    make = Monitor.objects.create
    for i in range(60):
        make(name=f"spread {i}", task="t", interval_ms=60_000)
    make(name="grid", task="t", interval_ms=10_000, jitter_s=0)
    make(name="phase", task="t", interval_ms=3_600_000, start_at=NOON)
    make(name="other phase", task="t", interval_ms=3_600_000, start_at=NOON + timedelta(seconds=1))
    make(name="cron", task="t", cron="0 12 * * *", jitter_s=0)
    make(name="cron spread", task="t", cron="0 12 * * *")
    make(name="cron elsewhere", task="t", cron="0 12 * * *", timezone="Asia/Tokyo", jitter_s=0)
    make(name="once", task="t", once_at=NOON)
    make(name="sped up", task="t", interval_ms=3_600_000, jitter_s=1_000)
    Monitor.objects.filter(name="sped up").update(incident_interval_ms=1_000, incident_until=NOON + timedelta(hours=1))
    make(name="paused", task="t", interval_ms=10_000, jitter_s=0, enabled=False)
    make(name="unreadable", task="t", cron="so so")


def expected(begin: datetime, length: timedelta) -> set[str]:
    """Ask every monitor for its own next fire time."""
    from django_wheelbeat.admin.preview import next_fire_ms
    from django_wheelbeat.models import Monitor
    from django_wheelbeat.monitors.rows import row_of, to_ms
    from django_wheelbeat.monitors.settings import beat_settings

    found = {m.name: next_fire_ms(row_of(m), to_ms(begin) - 1, beat_settings()) for m in Monitor.objects.all()}
    return {name for name, fire_ms in found.items() if fire_ms is not None and fire_ms < to_ms(begin + length)}


@pytest.mark.parametrize(("span", "length"), [("second", timedelta(seconds=1)), ("minute", timedelta(minutes=1))])
def test_what_fires_at_an_instant(
    either: Any, login: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, span: str, length: timedelta
) -> None:
    from django_wheelbeat.admin import firing

    fill()
    monkeypatch.setattr(firing, "CHUNK_ROWS", 7)
    names = expected(NOON, length)
    assert {"grid", "phase", "cron", "once", "sped up"} <= names
    assert names.isdisjoint({"cron elsewhere", "paused", "unreadable"})
    browser = login()
    response = browser.get(PAGE, {"at": "2030-06-03T12:00:00", "span": span})
    assert {monitor.name for monitor, _ in response.context["firings"]} == names
    assert response.context["go_on"] is None
    assert browser.get(PAGE, {"at": "yesterday", "span": span}).context["form"].errors


def test_a_search_goes_on_where_it_stopped(db: Any, login: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from django_wheelbeat.admin import firing

    fill()
    monkeypatch.setattr(firing, "CHUNK_ROWS", 5)
    monkeypatch.setattr(firing, "SCANNED_MAX", 10)
    monkeypatch.setattr(firing, "FOUND_MAX", 4)
    browser, seen, query = login(), [], "at=2030-06-03T12:00:00&span=minute"
    for _ in range(40):
        response = browser.get(f"{PAGE}?{query}")
        seen += [monitor.name for monitor, _ in response.context["firings"]]
        if response.context["go_on"] is None:
            break
        query = response.context["go_on"]
        assert parse_qs(urlsplit(f"?{query}").query)["at"] == ["2030-06-03T12:00:00"]
    assert len(seen) == len(set(seen))
    assert set(seen) == expected(NOON, timedelta(minutes=1))
