"""Monitors: rows compiled into definitions, and one bad row that stops nobody."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from celery_wheelbeat.errors import InvalidMonitor, InvalidSchedule
from celery_wheelbeat.jobs.compile import Compiled, compile_rows, schedule_of
from celery_wheelbeat.jobs.definitions import DefinitionBatch, Flag, Misfire, Overlap, Route, misfire_of, overlap_of
from celery_wheelbeat.jobs.identity import fnv1a64
from celery_wheelbeat.jobs.rows import Limits, MonitorRow, definition_hash, key_of
from celery_wheelbeat.schedules.cron import Cron, CronTable
from celery_wheelbeat.schedules.kinds import ALWAYS_MS, NEVER_MS, Asked, Kind

NOW_MS = 1_700_000_000_000


def row(job_id: int = 1, **columns: object) -> MonitorRow:
    """A good row that runs every minute; ``columns`` replace what it says."""
    defaults = dict.fromkeys(MonitorRow._fields)
    defaults |= {"id": job_id, "name": f"check {job_id}", "task": "proj.check", "args": "[]", "kwargs": "{}"}
    defaults |= {"timezone": "UTC", "day_rule": "and", "one_off": False, "expires_next": False, "enabled": True}
    defaults |= {"misfire": "auto", "overlap": "allow", "effective_from_ms": NOW_MS}
    if not columns.keys() & {"interval_ms", "cron", "once_at_ms", "solar_event"}:
        defaults["interval_ms"] = 60_000
    return MonitorRow(**(defaults | columns))  # type: ignore[arg-type]


def compiled(*rows: MonitorRow, **options: object) -> tuple[Compiled, CronTable, list[Route]]:
    crons = CronTable()
    result = compile_rows(rows, crons=crons, **options)
    return result, crons, list(result.batch.routes or ())  # type: ignore[arg-type]


def batch_of(*rows: MonitorRow, **options: object) -> DefinitionBatch:
    result, _, _ = compiled(*rows, **options)
    assert result.refused == {}
    return result.batch


def jitter_s(job_id: int, window_s: int) -> int:
    return fnv1a64(job_id.to_bytes(8, "little", signed=True)) % window_s


def test_an_interval_row_becomes_a_definition():
    batch = batch_of(row(42, interval_ms=90_000, kwargs='{"url": "http://é"}', name="prüfen"))
    assert batch.ids.tolist() == [42]
    assert batch.kind.tolist() == [Kind.INTERVAL]
    assert batch.interval_ms.tolist() == [90_000]
    assert batch.offset_ms.tolist() == [1000 * jitter_s(42, 90)]
    assert (batch.start_ms.tolist(), batch.end_ms.tolist()) == ([ALWAYS_MS], [NEVER_MS])
    assert batch.effective_from_ms.tolist() == [NOW_MS]
    assert json.loads(batch.payload) == [[], {"url": "http://é"}]
    assert batch.lengths.tolist() == [len(batch.payload)]
    assert batch.names.decode() == "prüfen"
    assert batch.name_lengths.tolist() == [len("prüfen".encode())]
    assert batch.flags.tolist() == [Flag.ENABLED]


def test_the_columns_have_the_types_that_the_engine_expects():
    for batch in (batch_of(row(1), row(2)), batch_of()):
        assert batch.ids.dtype == batch.interval_ms.dtype == batch.offset_ms.dtype == np.int64
        assert (batch.kind.dtype, batch.cron_index.dtype, batch.flags.dtype) == (np.uint8, np.int32, np.uint16)
        assert (batch.route_index.dtype, batch.lengths.dtype, batch.name_lengths.dtype) == (
            np.uint32,
            np.uint32,
            np.uint16,
        )


def test_rows_come_out_ascending_and_the_last_of_one_id_counts():
    batch = batch_of(row(9), row(3, interval_ms=1_000), row(9, interval_ms=5_000))
    assert batch.ids.tolist() == [3, 9]
    assert batch.interval_ms.tolist() == [1_000, 5_000]


def test_payloads_and_names_are_found_by_their_lengths():
    batch = batch_of(row(1, args="[1]"), row(2, args="", kwargs=None), row(3, args=" \n", kwargs=' {"a": 1} '))
    ends = np.cumsum(batch.lengths).tolist()
    pieces = [batch.payload[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert [json.loads(piece) for piece in pieces] == [[[1], {}], [[], {}], [[], {"a": 1}]]


def test_a_cron_row_is_interned_and_stays_inside_its_minute():
    result, crons, _ = compiled(
        row(1, cron="*/5 * * * *", timezone="Europe/Berlin"),
        row(2, cron="*/5 * * * *", timezone="Europe/Berlin", jitter_s=0),
        row(3, cron="0 4 * * *", jitter_s=3_600),
        cron_jitter_s=30,
    )
    batch = result.batch
    assert batch.kind.tolist() == [Kind.CRON] * 3
    assert batch.cron_index.tolist() == [0, 0, 1]
    assert crons[0] == Cron("*/5 * * * *", timezone="Europe/Berlin")
    assert batch.offset_ms.tolist() == [1000 * jitter_s(1, 30), 0, 1000 * jitter_s(3, 3_600)]
    assert batch.interval_ms.tolist() == [0, 0, 0]


def test_a_start_names_the_phase():
    batch = batch_of(row(1, start_at_ms=NOW_MS + 1, end_at_ms=NOW_MS + 10**9), row(2, start_at_ms=NOW_MS, jitter_s=20))
    assert batch.anchor_ms.tolist() == [NOW_MS + 1, NOW_MS]
    assert batch.start_ms.tolist() == [NOW_MS + 1, NOW_MS]
    assert batch.end_ms.tolist() == [NOW_MS + 10**9, NEVER_MS]
    assert batch.offset_ms.tolist() == [0, 1000 * jitter_s(2, 20)]


def test_an_interval_under_a_second_has_no_jitter():
    assert batch_of(row(7, interval_ms=999)).offset_ms.tolist() == [0]


def test_a_one_off_row_is_late_rather_than_never():
    batch = batch_of(
        row(1, once_at_ms=NOW_MS + 5), row(2, once_at_ms=NOW_MS, misfire="skip"), row(3, one_off=True, misfire="all")
    )
    assert batch.kind.tolist() == [Kind.ONCE, Kind.ONCE, Kind.INTERVAL]
    assert batch.anchor_ms.tolist() == [NOW_MS + 5, NOW_MS, 0]
    assert batch.offset_ms.tolist()[:2] == [0, 0]
    assert [misfire_of(flags) for flags in batch.flags.tolist()] == [Misfire.LATEST, Misfire.SKIP, Misfire.ALL]
    assert all(flags & Flag.ONE_OFF for flags in batch.flags.tolist())


def test_paused_and_finished_rows_are_not_enabled():
    batch = batch_of(row(1, enabled=False), row(2, finished_at_ms=NOW_MS), row(3, overlap="queue_one"))
    assert [bool(flags & Flag.ENABLED) for flags in batch.flags.tolist()] == [False, False, True]
    assert overlap_of(int(batch.flags[2])) is Overlap.QUEUE_ONE


def test_an_incident_is_part_of_the_definition():
    batch = batch_of(row(1, incident_interval_ms=10_000, incident_until_ms=NOW_MS + 60_000), row(2))
    assert batch.incident_interval_ms.tolist() == [10_000, 0]
    assert batch.incident_until_ms.tolist() == [NOW_MS + 60_000, 0]


def test_a_solar_row_is_polled_with_the_schedule_that_it_was_given():
    class Sunrise:
        def __init__(self, *place: object) -> None:
            self.place = place

        def ask(self, now_ms: int) -> Asked:
            return Asked(None, now_ms + 1)

    sunny = row(5, solar_event="sunrise", solar_latitude=52.5, solar_longitude=13)
    batch = batch_of(row(1), sunny, solar=Sunrise)
    assert batch.kind.tolist() == [Kind.INTERVAL, Kind.POLLED]
    assert batch.polled[5].place == ("sunrise", 52.5, 13.0)  # type: ignore[attr-defined]


def test_a_solar_row_that_cannot_be_computed_is_refused():
    def no_ephem(event: str, latitude: float, longitude: float) -> object:
        raise InvalidSchedule("install ephem")

    sunny = row(5, solar_event="sunrise", solar_latitude=52.5, solar_longitude=13)
    for options, words in (({}, "ephem"), ({"solar": no_ephem}, "install ephem")):
        result, _, _ = compiled(row(1), sunny, **options)
        assert result.batch.ids.tolist() == [1]
        assert words in result.refused[5].reason
        assert result.refused[5].field == "solar_event"


def test_how_messages_are_sent_is_interned():
    result, _, routes = compiled(
        row(1),
        row(2, queue="", routing_key=None, headers="", options=" {} "),
        row(3, queue="slow", priority=0, expires_s=30, headers='{"tenant": "b"}', options='{"shadow": "x"}'),
        row(4, options='{"shadow": "x"}', expires_s=30.0, queue="slow", headers='{"tenant": "b"}', priority=0),
        row(5, expires_next=True),
    )
    assert result.refused == {}
    assert result.batch.route_index.tolist() == [0, 0, 1, 1, 2]
    assert routes[0] == Route("proj.check")
    assert json.loads(routes[1].options) == {
        "queue": "slow",
        "priority": 0,
        "expires": 30,
        "headers": {"tenant": "b"},
        "shadow": "x",
    }
    assert routes[2] == Route("proj.check", expires_next=True)


def test_one_bad_row_stops_no_other():
    bad = row(2, cron="61 * * * *", args="[1,\n2,,]")
    result, _, _ = compiled(row(1), bad, row(3))
    assert result.batch.ids.tolist() == [1, 3]
    problem = result.refused[2]
    assert problem.field == "cron"
    assert "61" in problem.reason
    assert "args: not valid JSON" in problem.reason
    assert "line 2, column 3" in problem.reason
    assert result.hashes == {2: definition_hash(bad)}


def test_a_row_called_like_an_entry_is_refused():
    entries = {"cleanup", "celery.backend_cleanup"}
    result, _, _ = compiled(row(1, name="cleanup"), row(2, name="celery.backend_cleanup"), entry_names=entries)
    assert result.batch.ids.tolist() == [2]
    assert str(result.refused[1]) == "name: same name as a beat_schedule entry"


def test_limits_are_those_of_the_settings():
    result, _, _ = compiled(row(1, args='["' + "x" * 2_000 + '"]'), limits=Limits(max_payload_bytes=1_024))
    assert "wheelbeat_max_payload_bytes allows 1,024" in result.refused[1].reason


@pytest.mark.parametrize(
    "columns",
    [
        {"interval_ms": 90_000},
        {"interval_ms": 90_000, "jitter_s": 7, "end_at_ms": NOW_MS + 1_000_000},
        {"interval_ms": 777, "start_at_ms": NOW_MS + 5_000},
        {"cron": "*/7 3-5 * * *", "timezone": "Pacific/Auckland", "incident_interval_ms": 60_000},
        {"cron": "0 12 13 * 5", "day_rule": "or"},
        {"once_at_ms": NOW_MS + 400},
    ],
)
def test_the_schedule_of_a_form_is_the_one_that_the_engine_runs(columns: dict[str, object]):
    if "incident_interval_ms" in columns:
        columns = columns | {"incident_until_ms": NOW_MS + 300_000}
    subject = row(11, **columns)
    schedule = schedule_of(subject, cron_jitter_s=30)
    assert schedule is not None
    batch = batch_of(subject, cron_jitter_s=30)
    fields = (schedule.offset_ms, schedule.start_ms, schedule.end_ms, schedule.incident_interval_ms)
    assert fields == (
        batch.offset_ms[0],
        batch.start_ms[0],
        batch.end_ms[0],
        batch.incident_interval_ms[0],
    )
    assert schedule.incident_until_ms == batch.incident_until_ms[0]
    first_ms = schedule.next_fire(NOW_MS)
    assert first_ms is not None
    assert first_ms > NOW_MS


def test_a_solar_row_has_no_computed_schedule():
    assert schedule_of(row(1, solar_event="sunset", solar_latitude=0.0, solar_longitude=0.0)) is None


def test_a_schedule_that_is_broken_raises():
    with pytest.raises(InvalidSchedule):
        schedule_of(row(1, cron="nonsense"))


def test_the_key_of_a_monitor_is_its_primary_key():
    assert key_of(42) == "monitor:42"


def test_the_hash_changes_with_the_definition_and_with_nothing_else():
    base = row(1)
    same = base._replace(effective_from_ms=1, finished_at_ms=5, queue="", cron="", solar_event="")
    assert definition_hash(same) == definition_hash(base)
    assert len(definition_hash(base)) == 2 * hashlib.blake2b(digest_size=16).digest_size
    others = [
        base._replace(name="x"),
        base._replace(interval_ms=60_001),
        base._replace(interval_ms=None, incident_interval_ms=60_000),
        base._replace(kwargs='{"a": 1}'),
        base._replace(enabled=False),
        base._replace(priority=0),
        base._replace(expires_s=0.5),
        base._replace(jitter_s=0),
    ]
    assert len({definition_hash(other) for other in [base, *others]}) == len(others) + 1
    assert definition_hash(base._replace(expires_s=30)) == definition_hash(base._replace(expires_s=30.0))
    assert definition_hash(base._replace(enabled=1)) == definition_hash(base)  # type: ignore[arg-type]


def test_a_refused_row_is_an_error_of_this_package():
    result, _, _ = compiled(row(1, task=""))
    assert isinstance(result.refused[1], InvalidMonitor)
    assert str(result.refused[1]) == "task: is empty"
