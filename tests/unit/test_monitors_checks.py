"""Checks of a monitor: which column is named, with which words, and that no row makes them raise."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu.utils.json import loads

from celery_wheelbeat.jobs.compile import compile_rows
from celery_wheelbeat.jobs.identity import run_id
from celery_wheelbeat.jobs.rows import Limits, MonitorRow
from celery_wheelbeat.jobs.validation import FIRST_MS, LAST_MS, SOLAR_EVENTS, check
from celery_wheelbeat.schedules.cron import CronTable
from celery_wheelbeat.schedules.intervals import INTERVAL_MAX_MS

NOW_MS = 1_700_000_000_000
WITH_KOMBU = Limits(decode=loads)
GOOD = MonitorRow(
    id=1, name="check", task="proj.check", args="[]", kwargs="{}", interval_ms=60_000, cron="", timezone="UTC",
    day_rule="and", once_at_ms=None, solar_event="", solar_latitude=None, solar_longitude=None, jitter_s=None,
    start_at_ms=None, end_at_ms=None, one_off=False, queue="", exchange="", routing_key="", priority=None,
    headers="{}", expires_s=None, expires_next=False, options="{}", misfire="auto", overlap="allow", enabled=True,
    incident_interval_ms=None, incident_until_ms=None, effective_from_ms=NOW_MS, finished_at_ms=None,
)  # fmt: skip
A_RUN = run_id("monitor:7", NOW_MS, "celery")
CRON = {"interval_ms": None, "cron": "0 4 * * *"}
ONCE = {"interval_ms": None, "once_at_ms": NOW_MS}
SOLAR = {"interval_ms": None, "solar_event": "sunset", "solar_latitude": -33.9, "solar_longitude": 151.2}


@pytest.mark.parametrize(
    "columns",
    [
        {},
        CRON,
        ONCE,
        SOLAR,
        {"interval_ms": 100},
        {"interval_ms": INTERVAL_MAX_MS},
        {"jitter_s": 0},
        {"jitter_s": 60},
        CRON | {"jitter_s": 86_400},
        ONCE | {"jitter_s": 10},
        {"start_at_ms": FIRST_MS, "end_at_ms": LAST_MS},
        {"incident_interval_ms": 59_999, "incident_until_ms": NOW_MS},
        CRON | {"incident_interval_ms": 10**9, "incident_until_ms": NOW_MS},
        {"args": None, "kwargs": " ", "headers": None, "options": ""},
        {"args": '[{"__type__": "datetime", "__value__": "2030-01-01T00:00:00+00:00"}]'},
        {"args": '[{"__type__": "decimal", "__value__": "1.5"}, "\\u0000"]'},
        {"args": '["\\ud83d\\ude00 \\ud55c \\u003c"]', "kwargs": '{"a": 1, "a": 2}'},
        {"priority": 255, "expires_s": 0.5},
        {"headers": '{"tenant": {"id": 3}}'},
        {"options": '{"task_id": "nightly", "countdown": 3, "link": [{"task": "t"}], "delivery_mode": "transient"}'},
        {"options": '{"eta": "2030-01-01T00:00:00Z"}'},
        {"options": '{"task_id": "7b0c0c8e-6f0f-4d4c-9f43-6d4f3f3c2a11"}'},
        {"expires_s": 315_360_000.0},
        {"name": "Prüfung/№ 1 🚀", "task": "a.b"},
        {"name": "a\u00a0b\u200db 👩\u200d🚀 نام\u200cها"},
        {"queue": "acked", "exchange": "amq.topic", "routing_key": "unacked.checks"},
        {"queue": "celeryevents"},
        {"options": '{"link": {"task": "celery.chain", "kwargs": {"tasks": [{"options": {"queue": {"name": "q"}}}]}}}'},
        {"timezone": "Nowhere/Land"},
        {"enabled": 1, "one_off": 0, "expires_next": 0, "expires_s": 5},
    ],
)
def test_good_rows_have_no_problem(columns: dict[str, object]):
    assert check(GOOD._replace(**columns), limits=WITH_KOMBU) == []


@pytest.mark.parametrize(
    ("columns", "field", "words"),
    [
        ({"id": -1}, "id", "-1 is negative"),
        ({"name": ""}, "name", "is empty"),
        ({"task": " \t"}, "task", "is empty"),
        ({"name": "x" * 201}, "name", "has 201 characters"),
        ({"task": "a\0b"}, "task", "contains U+0000"),
        ({"name": "a\ud800"}, "name", "contains U+D800"),
        ({"name": "x\n[2026-12-01 00:00:00,000: CRITICAL/MainProcess] beat: made up"}, "name", "contains U+000A"),
        ({"task": "proj.check\x1b[2K"}, "task", "contains U+001B"),
        ({"name": "a\x85b"}, "name", "contains U+0085"),
        ({"name": "a\u2028b"}, "name", "contains U+2028"),
        ({"name": "a\u202eb"}, "name", "contains U+202E"),
        ({"exchange": "a\r\nb"}, "exchange", "contains U+000D"),
        ({"routing_key": "a\tb"}, "routing_key", "contains U+0009"),
        ({"headers": '{"a\\u000ab": 1}'}, "headers", "'a\\nb' contains U+000A"),
        ({"options": '{"shadow": "a\\u000ab"}'}, "options", "'shadow' contains U+000A"),
        ({"options": '{"task_id": "a\\u001bb"}'}, "options", "'task_id' contains U+001B"),
        ({"interval_ms": None}, "interval_ms", "got none"),
        ({"cron": "* * * * *", "once_at_ms": 5}, "interval_ms", "got interval_ms and cron and once_at"),
        ({"interval_ms": 0}, "interval_ms", "outside 1 ms…100 years"),
        ({"interval_ms": -5}, "interval_ms", "outside 1 ms…100 years"),
        ({"interval_ms": INTERVAL_MAX_MS + 1}, "interval_ms", "outside"),
        ({"jitter_s": -1}, "jitter_s", "outside 0…60 s"),
        ({"interval_ms": 1}, "interval_ms", "1ms is shorter than wheelbeat_min_interval allows, 100ms"),
        ({"interval_ms": 99}, "interval_ms", "shorter than wheelbeat_min_interval"),
        ({"jitter_s": 61}, "jitter_s", "outside 0…60 s"),
        (CRON | {"jitter_s": 86_401}, "jitter_s", "outside 0…86400 s"),
        (SOLAR | {"jitter_s": 1}, "jitter_s", "outside 0…0 s"),
        (CRON | {"cron": "0 0 31 2 *"}, "cron", "never"),
        (CRON | {"cron": "0 0 * *"}, "cron", ""),
        (CRON | {"timezone": "Nowhere/Land"}, "timezone", "unknown time zone 'Nowhere/Land'"),
        (CRON | {"timezone": ""}, "timezone", "unknown time zone"),
        (CRON | {"timezone": "../../etc/passwd"}, "timezone", "unknown time zone"),
        (CRON | {"timezone": "Europe"}, "timezone", "unknown time zone"),
        (CRON | {"timezone": "a\0b"}, "timezone", "unknown time zone"),
        (CRON | {"timezone": "localtime"}, "timezone", "unknown time zone"),
        (CRON | {"timezone": "europe/berlin"}, "timezone", "did you mean 'Europe/Berlin'"),
        (CRON | {"day_rule": "xor"}, "day_rule", "'xor' is not one of and, or"),
        (SOLAR | {"solar_event": "noon"}, "solar_event", "sunrise"),
        (SOLAR | {"solar_latitude": None}, "solar_latitude", "from -90 to 90"),
        (SOLAR | {"solar_longitude": float("nan")}, "solar_longitude", "from -180 to 180"),
        (SOLAR | {"solar_longitude": -180.5}, "solar_longitude", "from -180 to 180"),
        ({"start_at_ms": 5, "end_at_ms": 5}, "end_at", "not after start_at"),
        ({"end_at_ms": LAST_MS + 1}, "end_at", "years 1 to 9999"),
        (ONCE | {"start_at_ms": NOW_MS + 1}, "once_at", "never run"),
        (ONCE | {"end_at_ms": NOW_MS}, "once_at", "never run"),
        ({"incident_interval_ms": 500}, "incident_until", "both an interval and an end"),
        ({"incident_until_ms": 5}, "incident_until", "both an interval and an end"),
        (
            {"incident_interval_ms": 60_000, "incident_until_ms": 5},
            "incident_interval_ms",
            "1m is not shorter than the interval, 1m",
        ),
        ({"incident_interval_ms": 0, "incident_until_ms": 5}, "incident_interval_ms", "outside 1 ms"),
        (
            {"incident_interval_ms": 99, "incident_until_ms": 5},
            "incident_interval_ms",
            "99ms is shorter than wheelbeat_min_interval allows, 100ms",
        ),
        (ONCE | {"incident_interval_ms": 5, "incident_until_ms": 5}, "incident_interval_ms", "only interval and cron"),
        ({"args": "{}"}, "args", "expected a JSON list like"),
        ({"kwargs": "[]"}, "kwargs", "expected a JSON object"),
        ({"kwargs": "null"}, "kwargs", "got null"),
        ({"args": "[1,\n 2,,]"}, "args", "line 2, column 4"),
        ({"args": "(1)"}, "args", "line 1, column 1"),
        ({"args": "[NaN]"}, "args", "NaN is not a JSON value"),
        ({"args": "[-1e400]"}, "args", "-1e400 is too large: it would be sent as Infinity"),
        ({"args": f"[{'9' * 5_000}]"}, "args", "Exceeds the limit"),
        ({"args": "[" * 100_000}, "args", "nested too deeply"),
        ({"args": "[1" + "0" * 5_000 + "]"}, "args", "Exceeds the limit"),
        ({"args": '["a\0"]'}, "args", "Invalid control character at line 1, column 4"),
        ({"args": '[{"__type__": "datetime", "__value__": 3}]'}, "args", "marker that Celery cannot read"),
        ({"args": '[{"\\u005f_type__": "pickle", "__value__": "x"}]'}, "args", "marker that Celery cannot read"),
        ({"args": '["\\uD83d"]'}, "args", "U+D83D is half of a surrogate pair"),
        ({"kwargs": '{"a\\udc00": 1}'}, "kwargs", "U+DC00 is half of a surrogate pair"),
        ({"kwargs": '{"a": "\udc00"}'}, "kwargs", "U+DC00 is half of a surrogate pair"),
        ({"headers": '{"a": "\\ud800"}'}, "headers", "U+D800 is half of a surrogate pair"),
        ({"timezone": "a\0b"}, "timezone", "contains U+0000"),
        ({"id": 2**63}, "id", "does not fit into 64 bits"),
        ({"id": 2**63 - 2**48}, "id", "such ids belong to one-off runs"),
        ({"id": 2**63 - 1}, "id", "such ids belong to one-off runs"),
        ({"effective_from_ms": -(2**63) - 1}, "effective_from", "does not fit into 64 bits"),
        ({"args": '[{"__type__": "pickle", "__value__": "x"}]'}, "args", "marker that Celery cannot read"),
        ({"kwargs": '{"a": "' + "é" * 131_073 + '"}'}, "kwargs", "wheelbeat_max_payload_bytes allows 262,144"),
        ({"queue": "a\0"}, "queue", "contains U+0000"),
        ({"queue": "celery\x06\x163"}, "queue", "contains U+0006"),
        ({"queue": "unacked"}, "queue", "in use by"),
        ({"queue": "unacked_index"}, "queue", "in use by"),
        ({"queue": "_kombu.binding.celery"}, "queue", "in use by"),
        ({"queue": "wheelbeat:proj:seq:1:broker"}, "queue", "in use by"),
        ({"queue": "wb:lease:x"}, "queue", "in use by"),
        ({"queue": "celery-task-meta-x"}, "queue", "in use by"),
        ({"queue": "amq.gen-x"}, "queue", "in use by RabbitMQ"),
        ({"queue": "celery@host.celery.pidbox"}, "queue", "Celery's remote control"),
        ({"exchange": "celery.pidbox"}, "exchange", "Celery's remote control"),
        ({"exchange": "celeryev", "routing_key": "worker.heartbeat"}, "exchange", "Celery's events"),
        ({"options": '{"reply_to": "unacked"}'}, "options", "'reply_to' 'unacked' is reserved"),
        (
            {"options": '{"link": {"task": "t", "options": {"reply_to": "amq.rabbitmq.reply-to"}}}'},
            "options",
            "'link' contains the signature of 't': 'amq.rabbitmq.reply-to' is reserved",
        ),
        ({"options": f'{{"task_id": "{A_RUN}"}}'}, "options", "has the form of a run id"),
        ({"options": f'{{"task_id": "{A_RUN.upper()}"}}'}, "options", "has the form of a run id"),
        (
            {"options": f'{{"link_error": [{{"task": "t", "options": {{"task_id": "{A_RUN}"}}}}]}}'},
            "options",
            "'link_error' contains the signature of 't'",
        ),
        (
            {"options": '{"link": {"task": "t", "options": {"queue": "unacked"}}}'},
            "options",
            "'link' contains the signature of 't': 'unacked' is reserved",
        ),
        ({"priority": -1}, "priority", "outside 0…255"),
        ({"priority": 256}, "priority", "outside 0…255"),
        ({"expires_s": 0.0}, "expires_s", "outside"),
        ({"expires_s": float("nan")}, "expires_s", "outside"),
        ({"expires_s": 315_360_001.0}, "expires_s", "outside 0…315,360,000 s"),
        ({"expires_s": float("inf")}, "expires_s", "outside"),
        ({"expires_s": 5.0, "expires_next": True}, "expires_next", "not both"),
        (ONCE | {"expires_next": True}, "expires_next", "no next run"),
        ({"headers": "[]"}, "headers", "expected a JSON object"),
        ({"headers": '{"id": "x"}'}, "headers", "message protocol"),
        ({"headers": '{"wheelbeat_nonce": "x"}'}, "headers", "is reserved: beats and workers set it"),
        (
            {"headers": '{"wheelbeat_overlap": "skip"}'},
            "headers",
            "'wheelbeat_overlap' is reserved: beats and workers set it",
        ),
        (
            {"headers": '{"wheelbeat_job": "x/monitor:1"}'},
            "headers",
            "'wheelbeat_job' is reserved: beats and workers set it",
        ),
        (
            {"headers": '{"wheelbeat_claim_ttl": 1}'},
            "headers",
            "'wheelbeat_claim_ttl' is reserved: beats and workers set it",
        ),
        (
            {"headers": '{"Wheelbeat_Waiting": true}'},
            "headers",
            "'Wheelbeat_Waiting' is reserved: beats and workers set it",
        ),
        ({"headers": '{"CC": ["other"]}'}, "headers", "'CC' lets RabbitMQ send copies to other queues"),
        (
            {"options": '{"link_error": [[{"task": "t", "options": {"headers": {"wheelbeat_job": "x"}}}]]}'},
            "options",
            "'link_error' contains the signature of 't': 'wheelbeat_job' is reserved: beats and workers set it",
        ),
        ({"headers": '{"a": "' + "x" * 16_384 + '"}'}, "headers", "has 16,393 bytes, at most 16,384"),
        (
            {"headers": json.dumps({"a": "\N{GRINNING FACE}" * 5_000}, ensure_ascii=False)},
            "headers",
            "has 20,009 bytes",
        ),
        ({"options": "3"}, "options", "got a number"),
        ({"options": '{"queue": "slow"}'}, "options", "'queue' has its own field"),
        ({"options": '{"producer": 1}'}, "options", "set by the beat itself"),
        ({"options": '{"retry": true}'}, "options", "set by the beat itself"),
        ({"options": '{"serialiser": "json"}'}, "options", "did you mean 'serializer'?"),
        ({"options": '{"zzz": 1}'}, "options", "known are app_id"),
        ({"options": '{"countdown": true}'}, "options", "expected a number of seconds"),
        ({"options": '{"time_limit": 1e300}'}, "options", "expected a number of seconds from 0 to 315,360,000"),
        ({"options": '{"eta": "tomorrow"}'}, "options", "'eta' is 'tomorrow', expected an ISO 8601 instant"),
        ({"options": '{"time_limit": -1}'}, "options", "expected a number of seconds"),
        ({"options": '{"task_id": ""}'}, "options", "expected a text"),
        ({"options": '{"delivery_mode": 3}'}, "options", "expected 1, 2"),
        ({"misfire": "now"}, "misfire", "'now' is not one of auto, skip, latest, all"),
        ({"overlap": "maybe"}, "overlap", "is not one of allow, skip, queue_one"),
    ],
)
def test_a_problem_names_its_column_and_what_was_expected(columns: dict[str, object], field: str, words: str):
    problems = check(GOOD._replace(**columns), limits=WITH_KOMBU)
    assert [problem.field for problem in problems] == [field]
    assert words in problems[0].reason


@pytest.mark.parametrize(
    "columns",
    [
        {"args": '[{"__type__": "uuid", "__value__": "1"}]'},
        {"kwargs": '{"a": [[{"\\u005f_type__": 1}]]}'},
        {"headers": '{"a": {"__type__": 1}}'},
        {"options": '{"link": {"task": "t", "args": [{"__type__": 1}]}}'},
    ],
)
def test_a_marker_is_refused_where_no_decoder_was_given(columns: dict[str, object]):
    (problem,) = check(GOOD._replace(**columns))
    assert "marker that Celery cannot read" in problem.reason


def test_all_problems_are_reported_at_once():
    bad = GOOD._replace(name="", interval_ms=0, args="x", headers="y", options='{"retry": 1, "queue": 2}', misfire="z")
    assert [problem.field for problem in check(bad)] == [
        "name",
        "interval_ms",
        "args",
        "headers",
        "options",
        "options",
        "misfire",
    ]


def test_the_solar_events_are_those_of_celery():
    from celery.schedules import solar

    assert set(SOLAR_EVENTS) == set(solar._all_events)


TEXT = st.one_of(st.none(), st.sampled_from(["", " ", "[]", "{}", "[1]", "x", "\ud800", "null", "[[["]), st.text())
MS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
NUMBER = st.one_of(st.none(), st.floats(), st.integers(-(2**40), 2**40))
COLUMNS = dict.fromkeys(("args", "kwargs", "cron", "solar_event", "headers", "options"), TEXT)
COLUMNS |= {name: st.text(max_size=210) for name in ("name", "task", "timezone", "day_rule", "misfire", "overlap")}
COLUMNS |= {name: st.one_of(st.none(), st.text()) for name in ("queue", "exchange", "routing_key")}
COLUMNS |= {name: MS for name in MonitorRow._fields if name.endswith("_ms") and name != "effective_from_ms"}
COLUMNS |= dict.fromkeys(("solar_latitude", "solar_longitude", "expires_s"), NUMBER)
COLUMNS |= {name: st.one_of(st.none(), st.integers(-(2**31), 2**31)) for name in ("jitter_s", "priority")}


@settings(max_examples=300)
@given(st.fixed_dictionaries({}, optional=COLUMNS))
def test_no_row_makes_the_checks_raise_and_every_row_ends_up_somewhere(columns: dict[str, object]):
    subject = GOOD._replace(**columns)
    problems = check(subject)
    result = compile_rows([subject], crons=CronTable())
    assert len(result.batch) + len(result.refused) == 1
    if not subject.solar_event:
        assert bool(result.refused) == bool(problems)
    if len(result.batch):
        assert len(json.loads(result.batch.payload)) == 2


@pytest.mark.parametrize(
    ("columns", "field", "words"),
    [
        ({"interval_ms": "60000"}, "interval_ms", "'60000' is a str, expected int or NULL"),
        ({"interval_ms": 60_000.5}, "interval_ms", "60000.5 is a float, expected int or NULL"),
        ({"name": None}, "name", "None is a NoneType, expected str"),
        ({"kwargs": b"{}"}, "kwargs", "expected str or NULL"),
        ({"enabled": "yes"}, "enabled", "expected bool or int"),
        ({"expires_s": "5"}, "expires_s", "expected float or NULL or int"),
    ],
)
def test_a_column_that_holds_another_type_is_refused(columns: dict[str, object], field: str, words: str):
    """SQLite stores any value in any column."""
    (problem,) = check(GOOD._replace(**columns))
    assert problem.field == field
    assert words in problem.reason


def test_the_size_limit_counts_bytes():
    limits = Limits(max_payload_bytes=1_024)
    assert check(GOOD._replace(args='["' + "é" * 500 + '"]'), limits=limits) == []
    (problem,) = check(GOOD._replace(args='["' + "é" * 520 + '"]'), limits=limits)
    assert (problem.field, problem.reason[:35]) == ("args", "args and kwargs have 1,046 bytes, w")


def test_the_shortest_interval_is_a_setting() -> None:
    limits = Limits(min_interval_ms=1_000)
    assert check(GOOD._replace(interval_ms=1_000), limits=limits) == []
    (problem,) = check(GOOD._replace(interval_ms=999), limits=limits)
    assert str(problem) == "interval_ms: 999ms is shorter than wheelbeat_min_interval allows, 1s"
    assert check(GOOD._replace(interval_ms=1), limits=Limits(min_interval_ms=1)) == []


ALLOWED = Limits(allowed_tasks=("proj.*", "billing.charge"), allowed_queues=("checks*",))


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"task": "billing.charge", "queue": "checks"},
        {"queue": "checks-eu"},
        {"options": '{"link": {"task": "proj.next", "options": {"queue": "checks"}}}'},
        {"options": '{"link": ["proj.next"]}'},
        {"options": '{"link": {"task": "proj.next", "args": ["x"], "kwargs": {"body": "x", "link": "http://x"}}}'},
    ],
)
def test_what_the_settings_allow_passes(columns: dict[str, object]):
    assert check(GOOD._replace(**columns), limits=ALLOWED) == []


@pytest.mark.parametrize(
    ("columns", "field", "words"),
    [
        (
            {"task": "billing.refund"},
            "task",
            "matches no pattern of wheelbeat_allowed_tasks: 'proj.*', 'billing.charge'",
        ),
        ({"task": "Proj.check"}, "task", "matches no pattern"),
        ({"queue": "mail"}, "queue", "matches no pattern of wheelbeat_allowed_queues: 'checks*'"),
        ({"exchange": "mail"}, "exchange", "can route to any queue"),
        ({"routing_key": "checks"}, "routing_key", "can route to any queue"),
        ({"options": '{"reply_to": "mail"}'}, "options", "'reply_to': 'mail' matches no pattern"),
        ({"options": '{"link": {"task": "evil"}}'}, "options", "'link': 'evil' matches no pattern"),
        ({"options": '{"link": ["evil"]}'}, "options", "'link': 'evil' matches no pattern"),
        ({"options": '{"link_error": [["evil"]]}'}, "options", "'link_error': 'evil' matches no pattern"),
        (
            {"options": '{"link": {"task": "proj.a", "options": {"link_error": "evil"}}}'},
            "options",
            "'link': 'evil' matches",
        ),
        ({"options": '{"link": {"task": "proj.a", "options": {"chain": ["evil"]}}}'}, "options", "'link': 'evil'"),
        (
            {"options": '{"link": {"task": "proj.a", "subtask_type": "group", "kwargs": {"tasks": ["evil"]}}}'},
            "options",
            "'link': 'evil' matches",
        ),
        (
            {"options": '{"link_error": [{"task": "proj.a", "options": {"link": [{"task": "evil"}]}}]}'},
            "options",
            "'link_error': 'evil' matches no pattern",
        ),
        (
            {"options": '{"link": {"task": "proj.a", "options": {"queue": "mail"}}}'},
            "options",
            "'link': 'mail' matches",
        ),
        (
            {"options": '{"link": {"task": "proj.a", "options": {"reply_to": "mail"}}}'},
            "options",
            "'link': 'mail' matches",
        ),
        (
            {"options": '{"link": {"task": "proj.a", "options": {"routing_key": "x"}}}'},
            "options",
            "'link': 'x' can route to any queue",
        ),
    ],
)
def test_what_the_settings_do_not_allow_is_named(columns: dict[str, object], field: str, words: str):
    problems = check(GOOD._replace(**columns), limits=ALLOWED)
    assert [problem.field for problem in problems] == [field]
    assert words in problems[0].reason


def test_an_empty_list_allows_nothing_to_be_named():
    nothing = Limits(allowed_tasks=(), allowed_queues=())
    assert [problem.field for problem in check(GOOD._replace(queue="q"), limits=nothing)] == ["task", "queue"]
