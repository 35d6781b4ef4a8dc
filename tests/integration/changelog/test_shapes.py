"""What monitors have in common, as PostgreSQL stores it: equal only where they are, for every writer and session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.beat.loading import LoadingBeat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.changelog.places import Place

pytestmark = pytest.mark.postgres

SHAPE = "substring(packed FROM 9 FOR 16)"
XOR_OF_HASHES_BEFORE_0008 = {
    "timezone": "1510011", "routing_key": "r3154344", "headers": '{"x":"109952"}', "options": '{"shadow":"1993969"}',
}  # fmt: skip
"""With these, ``proj.evil`` had the shape of ``proj.good`` in Europe/Berlin without further options."""


@pytest.fixture
def beat(postgres: Place) -> Iterator[LoadingBeat]:
    """A beat that has read nothing yet."""
    beat = LoadingBeat(postgres)
    yield beat
    beat.close()


def insert(place: Place, name: str, **columns: Any) -> None:
    row = {"name": name, "task": "t", "interval_ms": 60_000, **columns}
    place.execute(
        f"INSERT INTO wheelbeat_monitor ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))})", *row.values()
    )


def shapes(place: Place) -> dict[str, bytes]:
    return {name: bytes(shape) for name, shape in place.execute(f"SELECT name, {SHAPE} FROM wheelbeat_monitor")}


def test_a_definition_made_to_look_like_others_is_compiled_for_itself_alone(beat: LoadingBeat, postgres: Place) -> None:
    insert(postgres, "attacker", task="proj.evil", **XOR_OF_HASHES_BEFORE_0008)
    for number in range(5):
        insert(postgres, f"victim {number}", task="proj.good", timezone="Europe/Berlin", args=f"[{number}]")
    beat.load()
    ids = [row[0] for row in postgres.execute("SELECT id FROM wheelbeat_monitor ORDER BY id")]
    tasks = [beat.engine.routes[view.route_index].task for view in beat.engine.lookup(ids)]
    assert tasks == ["proj.evil"] + 5 * ["proj.good"]
    assert len(set(shapes(postgres).values())) == 2


VARIANTS: list[dict[str, Any]] = [
    {}, {"task": "tt"}, {"task": "t\\"}, {"task": "t\\\\"}, {"task": r"t\000"}, {"task": "ü"},
    {"interval_ms": None, "cron": "* * * * *"}, {"timezone": "UTCq"}, {"timezone": "UTC", "queue": "q"},
    {"exchange": "q"}, {"routing_key": "q"}, {"queue": "qq"}, {"queue": "q", "exchange": "q"},
    {"exchange": "q", "routing_key": "q"}, {"exchange": "qq"}, {"day_rule": "or"}, {"misfire": "all"},
    {"overlap": "skip"}, {"headers": "{} "}, {"options": "{} "}, {"headers": "{}{", "options": "}"},
    {"headers": "", "options": "{}{}"}, {"headers": "{}{}", "options": ""}, {"jitter_s": 0}, {"jitter_s": 1},
    {"jitter_s": 256}, {"priority": 0}, {"priority": 1}, {"priority": 255}, {"expires_s": 1.0}, {"expires_s": 0.1},
    {"expires_s": 0.1 + 2**-56}, {"expires_s": float("inf")}, {"expires_s": float("nan")}, {"expires_s": 256.0},
    {"enabled": False}, {"one_off": True}, {"expires_next": True}, {"one_off": True, "expires_next": True},
]  # fmt: skip


def test_whatever_differs_makes_another_shape_and_what_is_a_monitors_own_does_not(postgres: Place) -> None:
    for number, columns in enumerate(VARIANTS):
        insert(postgres, f"a{number}", **columns)
        own = {} if "cron" in columns else {"interval_ms": 90_000}
        insert(postgres, f"b{number}", args='["\\\\"]', kwargs='{"k": 1}', **{**columns, **own})
    found = shapes(postgres)
    assert len(set(found.values())) == len(VARIANTS)
    assert all(found[f"a{number}"] == found[f"b{number}"] for number in range(len(VARIANTS)))


def test_no_setting_of_the_session_makes_another_shape(postgres: Place) -> None:
    columns = {"task": r"t\x", "headers": '{"a": "\\\\"}', "expires_s": 0.1 + 2**-56, "args": '["\\\\"]'}
    insert(postgres, "usual", **columns)
    settings = {
        "extra_float_digits": "-15", "bytea_output": "escape", "standard_conforming_strings": "off",
        "escape_string_warning": "off", "datestyle": "German", "search_path": "public, pg_catalog", "jit": "on",
    }  # fmt: skip
    for name, value in settings.items():
        postgres.execute(f"SET {name} = {value}")
    try:
        insert(postgres, "unusual", **columns)
    finally:
        postgres.execute("RESET ALL")
    first, second = postgres.execute("SELECT substring(packed FROM 9 FOR 24) FROM wheelbeat_monitor")
    assert bytes(first[0]) == bytes(second[0])


@pytest.mark.parametrize(
    "text",
    [
        "[01]", "[1,]", "[NaN]", "[Infinity]", "['a']", "[1][2]", "[1e999]", "[-1E+0999]", "[1e99999999]",
        f"[{'9' * 310}]", f"[{'9' * 5000}]", '["\\ud800"]', '["\\u0000"]', '[{"__type__": "x"}]',
        '[{"\\u005f_type__": "x"}]', "[" * 9_000 + "]" * 7_000, "[\x01]",
    ],
)  # fmt: skip
def test_arguments_that_may_not_be_sent_are_left_to_a_closer_look(postgres: Place, text: str) -> None:
    insert(postgres, "args", args=text)
    insert(postgres, "kwargs", kwargs=f'{{"a": {text}}}')
    assert [row[0] for row in postgres.execute("SELECT packed FROM wheelbeat_monitor")] == [None, None]


@pytest.mark.parametrize(
    "text", ["[1e308]", "[-1.7976931348623157e308]", "[1e-999]", '["\\ud83d\\ude00", "\\u00e9"]', '["7e999"]']
)
def test_arguments_that_can_be_sent_are_read_in_bulk(postgres: Place, text: str) -> None:
    insert(postgres, "args", args=text)
    assert postgres.execute("SELECT packed IS NULL FROM wheelbeat_monitor") == [(False,)]
