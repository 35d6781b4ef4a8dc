"""Public reports about when jobs run, each as somebody met it; ids as in ``docs/reference/public-reports.md``."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery.schedules import crontab
from support.engine.clockwork import Clockwork, ms, row
from support.engine.definitions import Job, batch_of

from celery_wheelbeat.engine import engine, shard
from celery_wheelbeat.engine.payloads import PAGE_BYTES
from celery_wheelbeat.errors import InvalidSchedule
from celery_wheelbeat.jobs.compile import schedule_of
from celery_wheelbeat.jobs.definitions import Offer
from celery_wheelbeat.schedules.cron import Cron
from celery_wheelbeat.schedules.fire_times import fires
from celery_wheelbeat.settings import Settings
from celery_wheelbeat.sources.lookup import definition_of_row

if TYPE_CHECKING:
    from collections.abc import Iterator

HOUR_MS = 3_600_000


@pytest.fixture(params=["UTC", "Europe/London", "Asia/Kolkata", "America/St_Johns"])
def process_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The zone of the machine, which must not matter."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def following(expression: str, zone: str, now: str, count: int = 2, day_rule: str = "and") -> list[str]:
    """Fire times after ``now``: those of the expression and those of an entry or monitor, which must agree."""
    schedule = schedule_of(row(cron=expression, timezone=zone, day_rule=day_rule))
    assert schedule is not None
    found = [fire for fire, _ in zip(fires(schedule, ms(now)), range(count), strict=False)]
    cron = Cron(expression, zone, day_rule)
    assert found == [fire for fire, _ in zip(fires(cron, ms(now)), range(count), strict=False)]
    return [_text(fire) for fire in found]


def _text(fire_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(fire_ms / 1000))


@pytest.mark.parametrize(
    ("report", "expression", "zone", "now", "expected"),
    [
        ("B03", "0 5 * * *", "Europe/Zurich", "2025-03-30T00:30Z", ["2025-03-30T03:00Z", "2025-03-31T03:00Z"]),
        (
            "B04",
            "0 * * * *",
            "US/Pacific",
            "2026-11-01T07:30Z",
            ["2026-11-01T08:00Z", "2026-11-01T09:00Z", "2026-11-01T10:00Z"],
        ),
        ("B10", "* * * */3 *", "America/New_York", "2015-02-15T05:00Z", ["2015-04-01T04:00Z"]),
        ("B10", "0 12 * * 0", "Europe/Berlin", "2022-03-24T11:00Z", ["2022-03-27T10:00Z"]),
        ("B14", "0 0 * * *", "Africa/Cairo", "2023-04-27T10:00Z", ["2023-04-27T22:00Z", "2023-04-28T21:00Z"]),
        ("B14", "0 0 * * *", "America/Sao_Paulo", "2017-10-14T15:00Z", ["2017-10-15T03:00Z", "2017-10-16T02:00Z"]),
        ("B15", "30 2 * * *", "America/New_York", "2024-03-09T17:00Z", ["2024-03-10T07:00Z"]),
        ("B15", "30 2 * * 0", "America/New_York", "2024-03-03T17:00Z", ["2024-03-10T07:00Z", "2024-03-17T06:30Z"]),
        ("B18", "* * * 5 *", "America/Los_Angeles", "2022-02-22T18:39:51Z", ["2022-05-01T07:00Z"]),
        ("B22", "0 6 * * *", "America/Mexico_City", "2023-04-01T13:00Z", ["2023-04-02T12:00Z", "2023-04-03T12:00Z"]),
        ("B142", "0 0 30 2 1", "UTC", "2024-01-31T00:00Z", ["2024-02-05T00:00Z", "2024-02-12T00:00Z"]),
        ("B144", "0 0 30 1-3 *", "UTC", "2023-01-30T00:00Z", ["2023-03-30T00:00Z"]),
        ("B144", "0 0 29 2 *", "UTC", "2096-03-01T00:00Z", ["2104-02-29T00:00Z"]),
        ("B146", "0 2 * * 0,1,3,7", "UTC", "2025-01-22T00:00Z", ["2025-01-22T02:00Z", "2025-01-26T02:00Z"]),
        ("B146", "0 0 * * 5-7", "UTC", "2024-09-20T12:00Z", ["2024-09-21T00:00Z", "2024-09-22T00:00Z"]),
        ("B148", "0 0 */2 * 1", "UTC", "2024-01-10T00:00Z", ["2024-01-15T00:00Z"]),
        ("B149", "10 2 12 8 0", "UTC", "2015-07-30T00:00Z", ["2018-08-12T02:10Z"]),
        ("B153", "*/90 * * * *", "UTC", "2024-01-10T00:30Z", ["2024-01-10T01:00Z", "2024-01-10T02:00Z"]),
        ("B154", " 5\t4 *  * 1-5 ", "UTC", "2024-01-10T00:00Z", ["2024-01-10T04:05Z", "2024-01-11T04:05Z"]),
    ],
)
def test_fire_times_that_were_wrong_elsewhere(
    report: str, expression: str, zone: str, now: str, expected: list[str]
) -> None:
    """B03 B04 B10 B14 B15 B18 B22 B142 B144 B146 B148 B149 B153 B154."""
    rule = "or" if report in ("B142", "B148") else "and"
    assert following(expression, zone, now, len(expected), rule) == expected


@pytest.mark.parametrize(
    "expression",
    [
        "0 0 31 4 *",
        "0 0 30,31 2 *",
        "*/0 * * * *",
        "60 * * * *",
        "٣ * * * *",
        "1_0 * * * *",
        "+5 * * * *",
    ],
)
def test_what_cannot_be_meant_is_refused(expression: str) -> None:
    """B142 B145 B157."""
    with pytest.raises(InvalidSchedule):
        Cron(expression)


def test_a_weekly_job_crosses_the_autumn_switch_without_a_second_run() -> None:
    """B01: the offset of before the switch was remembered, and noon came twice."""
    noon = crontab(minute=0, hour=12, day_of_week=1)
    entries = {"e": noon}
    beat = Clockwork(
        "2013-10-26T12:00Z", [row(cron="0 12 * * 1", timezone="Europe/Amsterdam")], entries, timezone="Europe/Amsterdam"
    )
    beat.run("2013-10-28T09:30Z")
    assert beat.sent == []
    beat.restart(entries=entries, timezone="Europe/Amsterdam")
    beat.run("2013-10-29T00:00Z")
    assert beat.fires("a") == beat.fires("e") == ["2013-10-28T11:00Z"]


def test_the_zone_of_the_machine_does_not_matter(process_zone: str) -> None:
    """B09 B33: the daemon reasoned in its own zone, even for jobs of another one."""
    entries = {"e": crontab(minute=0, hour=1), "every": crontab(minute="*/5")}
    beat = Clockwork("2022-10-29T23:50:54Z", [row(cron="0 1 * * *")], entries)
    beat.run("2022-10-30T02:30Z")
    assert beat.fires("a") == beat.fires("e") == ["2022-10-30T01:00Z"]
    assert len(beat.fires("every")) == 32
    assert {text[-3:-1] for text in beat.fires("every")} == {f"{minute:02d}" for minute in range(0, 60, 5)}


def test_every_answer_about_the_next_run_is_the_same() -> None:
    """B17: a monitor announced runs as missed, as it computed them by other rules than the scheduler."""
    app = Celery("b17", broker="memory://", set_as_current=False)
    path = Path(__file__).parent.parent / "data" / "cron_cases.json"
    cases = [case for case in json.loads(path.read_text()) if _runs(case)]
    assert len(cases) > 120
    rows = {}
    for number, case in enumerate(cases):
        rule = case["day_or_semantics"]
        rows[f"c{number:03d}"] = row(
            f"c{number:03d}",
            id=number,
            cron=case["expr"],
            timezone=case["tz"],
            day_rule=rule,
            jitter_s=None,
        )
    now_ms = ms("2026-03-28T00:00Z")
    compiled = Clockwork("2026-03-28T00:00Z", rows.values())
    for one in rows.values():
        form = schedule_of(one)
        assert form is not None
        command = definition_of_row(app, Settings(), one).schedule
        assert command is not None
        expected = form.next_fire(now_ms)
        assert command.next_fire(now_ms) == compiled.engine.next_fire(one.id, now_ms) == expected
    until_ms = now_ms + 30 * HOUR_MS
    compiled.run(until_ms)
    sent = defaultdict(list)
    for message in compiled.sent:
        sent[message.name].append(message.fire_ms)
    for name, one in rows.items():
        form = schedule_of(one)
        assert form is not None
        assert sent[name] == list(_until(form, now_ms, until_ms))


def _runs(case: dict[str, Any]) -> bool:
    try:
        Cron(case["expr"], case["tz"], case["day_or_semantics"])
    except InvalidSchedule:
        return False
    return True


def _until(schedule: Any, after_ms: int, until_ms: int) -> Iterator[int]:
    for fire_ms in fires(schedule, after_ms):
        if fire_ms > until_ms:
            return
        yield fire_ms


def test_a_day_and_a_half_hour_in_shanghai() -> None:
    """B25: jobs ran twice a day, eight hours apart, and intervals stopped."""
    beat = Clockwork(
        "2024-06-01T00:00Z",
        [row("cron", cron="0 22 * * *", timezone="Asia/Shanghai"), row("half", interval_ms=1_800_000)],
    )
    beat.run("2024-06-03T00:00Z")
    assert beat.fires("cron") == ["2024-06-01T14:00Z", "2024-06-02T14:00Z"]
    assert len(beat.fires("half")) == len(beat.sent) - 2 == 96


def test_two_jobs_with_the_same_fields_keep_their_zones() -> None:
    """B27: equal fields in two zones overwrote each other."""
    new_york, tokyo = (
        row(name, cron="0 9 * * *", timezone=zone) for name, zone in (("a", "America/New_York"), ("b", "Asia/Tokyo"))
    )
    beat = Clockwork("2024-06-02T15:00Z", [new_york, tokyo]).run("2024-06-03T15:00Z")
    assert (beat.fires("a"), beat.fires("b")) == (["2024-06-03T13:00Z"], ["2024-06-03T00:00Z"])
    beat.edit(new_york._replace(timezone="Europe/London", effective_from_ms=beat.now_ms))
    beat.run("2024-06-04T12:00Z")
    assert beat.fires("a")[1:] == ["2024-06-04T08:00Z"]
    assert beat.fires("b")[1:] == ["2024-06-04T00:00Z"]


def test_a_new_zone_runs_no_monthly_job_on_the_seventeenth() -> None:
    """B31 B33: after a change of the zone a stale last run made everything due."""
    entries = {"e": crontab(minute=0, hour=5, day_of_month=1)}
    beat = Clockwork("2015-05-01T04:00Z", (), entries).run("2015-05-01T06:00Z")
    assert beat.fires("e") == ["2015-05-01T05:00Z"]
    beat.restart("2016-05-17T16:00Z", entries, "Europe/Rome")
    assert len(beat.sent) == 1
    assert beat.run("2016-05-17T17:00Z").fires("e")[1:] == []
    beat.restart("2016-06-01T02:00Z", entries, "Europe/Rome")
    assert beat.run("2016-06-01T06:00Z").fires("e")[1:] == ["2016-06-01T03:00Z"]


def test_a_one_off_with_a_start_runs_at_its_minute() -> None:
    """B36: it came five minutes late, with the next reload of a pre-filter."""
    beat = Clockwork("2024-06-03T10:19Z")
    beat.edit(
        row(cron="30 10 * * *", one_off=True, start_at_ms=ms("2024-06-03T10:29:30Z"), effective_from_ms=beat.now_ms)
    )
    for second in range(1, 900):
        beat.jump(ms("2024-06-03T10:19Z") + second * 1000)
    (message,) = beat.sent
    assert message.at_ms == message.fire_ms == ms("2024-06-03T10:30Z")


def test_edits_of_one_job_move_no_other() -> None:
    """B58 B59: each edit reloaded everything, so intervals began again or nothing was sent for hours."""
    rows = [row(f"m{number:04d}", id=number + 1, interval_ms=60_000, jitter_s=None) for number in range(2_000)]
    beat = Clockwork("2024-06-03T10:00Z", [*rows, row("slow", id=9_000, interval_ms=600_000)])
    for second in range(1, 1_801):
        beat.jump(ms("2024-06-03T10:00Z") + second * 1000)
        if second % 60 == 0:
            beat.edit(rows[0]._replace(args=f"[{second}]"))
    counts = Counter(message.name for message in beat.sent)
    assert counts.pop("slow") == 3
    assert set(counts.values()) == {30}
    assert all(message.at_ms == message.fire_ms for message in beat.sent)


@pytest.mark.parametrize(("every_s", "life_s", "hours"), [(600, 300, 1), (3_600, 3_000, 10)])
def test_restarts_keep_the_phase_of_an_interval(every_s: int, life_s: int, hours: int) -> None:
    """B59 B68: next run = start + interval, so jobs with a long interval never ran between frequent deploys."""
    begin_ms = ms("2024-06-03T00:00Z") + 77_000
    beat = Clockwork("2024-06-03T00:01:17Z", [row(interval_ms=every_s * 1000)])
    for life in range(1, hours * 3_600 // life_s + 1):
        beat.run(begin_ms + life * life_s * 1000)
        beat.restart()
    fires_ms = sorted({message.fire_ms for message in beat.sent})
    assert len(fires_ms) == hours * 3_600 // every_s
    assert {later - earlier for earlier, later in pairwise(fires_ms)} == {every_s * 1000}


def test_a_new_interval_counts_at_once_and_runs_nothing_at_once() -> None:
    """B68: a new interval was ignored until the old one had run out, or fired at once."""
    beat = Clockwork("2024-06-03T10:01Z", [row(interval_ms=HOUR_MS)]).run("2024-06-03T10:20:30Z")
    beat.edit(row(interval_ms=60_000, effective_from_ms=beat.now_ms))
    assert beat.run("2024-06-03T10:22:30Z").fires() == ["2024-06-03T10:21Z", "2024-06-03T10:22Z"]
    beat.edit(row(interval_ms=HOUR_MS, effective_from_ms=beat.now_ms))
    assert beat.run("2024-06-03T11:30Z").fires()[2:] == ["2024-06-03T11:00Z"]


def test_a_past_start_and_a_cron_later_today_run_nothing_now() -> None:
    """B64: the last run was taken to be far in the past."""
    beat = Clockwork("2024-06-03T12:00Z")
    beat.edit(row(cron="58 12 * * *", start_at_ms=ms("2024-06-03T11:00Z"), effective_from_ms=beat.now_ms))
    assert beat.run("2024-06-03T13:30Z").fires() == ["2024-06-03T12:58Z"]


@pytest.mark.parametrize("misfire", ["auto", "latest", "all"])
def test_a_job_that_was_off_for_weeks_does_not_run_when_it_is_switched_on(misfire: str) -> None:
    """B65: its last run was old, so it was due."""
    off = row(cron="0 0 1 * *", enabled=False, misfire=misfire)
    beat = Clockwork("2024-04-17T00:00Z", [off]).run("2024-04-17T00:10Z")
    beat.restart("2024-06-17T00:00Z")
    beat.edit(off._replace(enabled=True, effective_from_ms=beat.now_ms))
    assert beat.run("2024-06-17T00:30Z").sent == []
    beat.restart("2024-06-30T23:58Z")
    assert beat.run("2024-07-01T00:01Z").fires() == ["2024-07-01T00:00Z"]


def test_after_six_hours_away_each_job_is_caught_up_once_at_most() -> None:
    """B69 B74: after a pause everything overdue came at once; and nobody could see why runs were missing."""
    half = [row(f"h{number:04d}", id=number + 1, interval_ms=1_800_000, jitter_s=None) for number in range(1_000)]
    often = [row(f"o{number:04d}", id=number + 5_001, interval_ms=60_000, jitter_s=None) for number in range(1_000)]
    beat = Clockwork("2024-06-03T05:00Z", [*half, *often]).run("2024-06-03T06:00Z")
    beat.sent.clear()
    beat.restart("2024-06-03T12:00Z")
    caught_up = [message for message in beat.sent if message.offer is Offer.MISFIRE]
    assert len(caught_up) == len({message.name for message in caught_up}) == 1_000
    assert {message.name[0] for message in caught_up} == {"h"}
    again = [message for message in beat.sent if message.offer is Offer.REOFFERED]
    assert all(ms("2024-06-03T06:00Z") < message.fire_ms <= ms("2024-06-03T06:00:05Z") for message in again)
    beat.run("2024-06-03T12:00:10Z")
    due_now = [message for message in beat.sent if message.offer is Offer.DUE]
    assert all(ms("2024-06-03T12:00Z") < message.fire_ms for message in due_now)
    (stretch,) = beat.ledger.last_skips
    assert (stretch.reason, stretch.until_ms) == ("restart", ms("2024-06-03T12:00Z"))
    assert stretch.runs == beat.ledger.skipped["restart"] > 350_000


def test_a_stall_of_five_seconds_drops_nothing() -> None:
    """B72: runs were thrown away as the loop was late by a second."""
    beat = Clockwork("2024-06-03T10:00Z", [row(f"m{n}", id=n + 1, interval_ms=1_000) for n in range(4)])
    beat.jump("2024-06-03T10:00:05Z")
    assert len(beat.sent) == 20
    assert max(message.at_ms - message.fire_ms for message in beat.sent) == 4_000


def test_an_end_in_the_past_ends_one_job_and_a_later_end_wakes_it() -> None:
    """B78: an ``expires`` in the past sent dead tasks, or raised at every tick."""
    ended = row(cron="*/10 * * * *", end_at_ms=ms("2024-06-03T10:05Z"))
    others = [row(f"m{number}", id=number + 1, interval_ms=60_000) for number in range(10)]
    beat = Clockwork("2024-06-03T09:55Z", [ended, *others]).run("2024-06-03T11:00:30Z")
    assert beat.fires() == ["2024-06-03T10:00Z"]
    assert len(beat.sent) == 1 + 10 * 65
    beat.edit(ended._replace(end_at_ms=ms("2024-06-04T10:00Z")))
    assert beat.run("2024-06-03T11:25Z").fires()[1:] == ["2024-06-03T11:10Z", "2024-06-03T11:20Z"]


@pytest.mark.parametrize(
    ("now", "columns", "expected"),
    [
        ("09:00", {"interval_ms": HOUR_MS, "start_at_ms": "10:17"}, ["2024-06-03T10:17Z", "2024-06-03T11:17Z"]),
        ("12:00", {"interval_ms": HOUR_MS, "start_at_ms": "10:17"}, ["2024-06-03T12:17Z", "2024-06-03T13:17Z"]),
        ("09:00", {"cron": "0 * * * *", "start_at_ms": "10:17"}, ["2024-06-03T11:00Z", "2024-06-03T12:00Z"]),
        ("09:00", {"cron": "0 * * * *", "start_at_ms": "11:00"}, ["2024-06-03T11:00Z", "2024-06-03T12:00Z"]),
    ],
)
def test_a_start_names_the_first_run_and_the_phase(now: str, columns: dict[str, Any], expected: list[str]) -> None:
    """B80: a start was ignored, shifted the phase, or kept a job from ever starting."""
    columns["start_at_ms"] = ms(f"2024-06-03T{columns['start_at_ms']}Z")
    beat = Clockwork(f"2024-06-03T{now}Z", [row(**columns, jitter_s=None if "interval_ms" in columns else 0)])
    assert beat.run("2024-06-03T13:30Z").fires()[:2] == expected


@pytest.mark.parametrize("forward_ms", [2 * HOUR_MS, 400 * 86_400_000])
def test_a_clock_that_jumps_forward_floods_nothing(forward_ms: int) -> None:
    """B136: a flood of past minutes, or nothing any more."""
    rows = [row(f"m{number:04d}", id=number + 1, cron="* * * * *") for number in range(1_000)]
    beat = Clockwork("2024-06-03T10:00:30Z", rows)
    beat.jump(beat.now_ms + forward_ms, "clock")
    assert len(beat.sent) == len({message.name for message in beat.sent}) <= 1_000
    beat.sent.clear()
    beat.run(beat.now_ms + 60_000)
    assert len(beat.sent) == 1_000


def test_a_job_far_away_neither_fires_at_once_nor_overflows() -> None:
    """B138: a timer of 31 bits fired at once, or the loop span."""
    beat = Clockwork("2096-03-01T00:00Z", [row(cron="0 0 29 2 *"), row("b", once_at_ms=ms("9999-12-31T23:59:59Z"))])
    beat.run("2096-03-02T00:00Z")
    assert beat.sent == []
    assert beat.engine.next_fire(row().id, beat.now_ms) == ms("2104-02-29T00:00Z")
    assert beat.engine.next_fire(row("b").id, beat.now_ms) == ms("9999-12-31T23:59:59Z")


def test_jobs_that_are_not_due_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """B133: the whole schedule was compared in each tick, and the heap rebuilt."""
    beat = Clockwork("2024-06-03T00:00:30Z", entries={})
    batch = batch_of([Job(number, cron=Cron("0 12 * * *")) for number in range(1, 20_001)], beat.crons)
    beat.engine.load(batch, {})
    asked: list[int] = []
    for module in (shard, engine):
        monkeypatch.setattr(module, "next_fires", lambda *given: asked.append(len(given)) or pytest.fail("asked"))
    for second in range(1, 601):
        assert beat.engine.advance(beat.now_ms + second * 1000) == []
    assert asked == []


def test_big_arguments_are_kept_once() -> None:
    """B123: several copies of every payload in memory."""
    kwargs = '{"s": "' + "x" * 250_000 + '"}'
    rows = [row(f"m{number}", id=number + 1, interval_ms=60_000, kwargs=kwargs) for number in range(40)]
    beat = Clockwork("2024-06-03T00:00Z", rows)
    live = 40 * len(kwargs)
    assert beat.engine.stats().payload_bytes < 1.5 * live
    for _ in range(30):
        beat.edit(*rows)
    assert beat.engine.stats().payload_bytes < 2 * live + PAGE_BYTES
