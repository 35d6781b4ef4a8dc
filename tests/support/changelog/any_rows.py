"""Rows of ``wheelbeat_monitor`` as anybody may write them: texts of the grammar, and of its neighbours.

Drawn with a seed, a hundred thousand of them in seconds. Most rows differ from a plain one in a column or two, or the
constraints of the tables would refuse nearly all of them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    Draw = Callable[[random.Random], Any]

CONTROLS = ["\0", "\n", "\r\n", "\t", "\x1b[2K", "\x1f", "\x7f", "\x85", "\u2028", "\u202e", "\x06\x163"]
ODD_CHARACTERS = [*CONTROLS, "\u00a0", "\u200d", "\ufeff", "é", "😀", "\ufffd", "\uffff", "'", '"', "\\", "%", "٣"]
DIGITS = ["0", "1", "5", "7", "12", "29", "31", "59", "60", "99", "007", "1" * 30, "1" * 400, "٣", "1_0", "१२", "²"]
NAMES = ["mon", "sun", "FRI", "jan", "dec", "L", "W", "?", "R", "H", "*", ""]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Etc/GMT+12", "Asia/Kolkata"]
NO_ZONES = ["", "utc", "Mars/Base", "localtime", "posix/UTC", "right/UTC", "Factory", "../UTC", "/etc/passwd", "Europe",
            "UTC\0", "UTC\n", "Europe/Berlin ", "Z" * 64, "+01:00", "EST5EDT4"]  # fmt: skip
WHOLE = ["0", "-0", "1", "-1", "7", "1e2", "1E-400", "9" * 30, "0.1", "123.456e-7", "1e308", "-1.7976931348623157e308"]
TOO_LARGE = [
    "1e309",
    "1e999",
    "-1E+0400",
    "9" * 310 + ".5",
    "9" * 310 + "e1",
    "9" * 5_000,
    "1e999999999",
    "9" * 250 + "E99",
]
NO_NUMBERS = ["01", "1.", ".5", "+1", "--1", "0x1", "NaN", "-NaN", "Infinity", "-Infinity", "1e", "1_0", "٣", "True"]
STRINGS = ["", "a", "ü", "😀", "\\u00fc", "\\ud83d\\ude00", "\\u0000", "\\n", "a'b", "%s", "{}", "1e999", "NaN",
           "\\u005f", "x" * 300, "__type__", "customer 7e123"]  # fmt: skip
NO_STRINGS = ["\\ud800", "\\uDFFFx", "\\u12", "\\x41", "\n", "\t", "\x1f", "\0", '"', "\\", "\ufeff\\"]
MARKERS = [
    '{"__type__": "datetime", "__value__": "2030-01-01T00:00:00+00:00"}', '{"__type__": "decimal", "__value__": "1.5"}',
    '{"__type__": "decimal", "__value__": "NaN"}', '{"__type__": "datetime", "__value__": 3}', '{"__type__": "uuid"}',
    '{"__type__": "pickle", "__value__": "x"}', '{"__type__": ["datetime"], "__value__": ""}', '{"__type__": null}',
    '{"\\u005f_type__": "datetime", "__value__": "x"}', '{"__\\u0074ype__": "uuid", "__value__": "x"}',
]  # fmt: skip
BEFORE = ["", "", "", " ", "\n", "\ufeff", "\u00a0", "[", "{", ",", "//", "\0"]
AFTER = ["", "", "", " ", "\r\n", "]", "}", ",", "[]", "{}", "#", "\x1f"]
HEADERS = ["tenant", "wheelbeat_job", "WHEELBEAT_x", "id", "task", "CC", "x-death", "a\\nb", "", "a" * 300, "ü"]
QUEUES = ["", "", "q", "checks.eu", "unacked", "unacked_index", "_kombu.binding.q", "amq.gen", "celery.pidbox",
          "celeryev", "wb:1", "wheelbeat:q", "Q" * 200, "ü"]  # fmt: skip
OPTIONS = {
    "serializer": ["json", "pickle", "nope", 5], "compression": ["zlib", "", None], "time_limit": [1, True, 10**12],
    "eta": ["2030-01-01T00:00:00Z", "tomorrow", "9999-12-31T23:59:59.999999+14:00", ""],
    "countdown": [0, 1.5, -1, 1e300, "1"],
    "task_id": ["x", "a\nb", "\x1b", ""], "shadow": ["s", "s\r"], "reply_to": ["r", "unacked"], "queue": ["q"],
    "retry": [True], "delivery_mode": [1, 2, 3, "transient"], "ignore_result": [True, "yes"], "args": [[]],
    "link": [{"task": "t"}, {}, [], "t", {"task": "t", "options": {"queue": "unacked"}}, [[[{"options": 1}]]]],
    "link_error": [{"task": "t", "options": {"headers": {"wheelbeat_job": "x"}}}, {"task": 5, "options": []}],
    "priority": [3], "unknown": [None], "expires": [1], "group_id": ["g"], "user_id": ["guest"],
}  # fmt: skip


def text_of(rng: random.Random, longest: int) -> str:
    """A name as people have them, or one that they should not have."""
    base = rng.choice(["check", "proj.check", "Prüfung/№ 1", " ", "", "x" * longest, "名前"])
    if rng.random() < 0.5:
        at = rng.randint(0, len(base))
        base = base[:at] + rng.choice(ODD_CHARACTERS) + base[at:]
    return base[: longest + (rng.random() < 0.1)]


def cron_of(rng: random.Random) -> str:
    """A cron expression: stars, lists, ranges and steps, with what people and other programs write beside them."""
    if rng.random() < 0.1:
        return rng.choice(
            ["@daily", "@hourly", "@reboot", "@Yearly", "@", "* * * * * *", "0 0 31 2 *", "R R R R R", " "]
        )

    def number() -> str:
        return str(rng.randint(0, 31)) if rng.random() < 0.7 else rng.choice(DIGITS + NAMES)

    def item() -> str:
        kind = rng.random()
        if kind < 0.3:
            return "*"
        if kind < 0.5:
            return f"{rng.choice(['*', number()])}/{number()}"
        if kind < 0.65:
            return f"{number()}-{number()}"
        if kind < 0.7:
            return f"{number()}-{number()}/{number()}"
        if kind < 0.75:
            return rng.choice(
                ["", "+5", "-5", " 5", "5-", "L-3", "5L", "friL", "5#2", "mon#9", "5W", "~", "*/", "**", "1.5"]
            )
        return number()

    fields = [
        ",".join(item() for _ in range(rng.choice([1, 1, 1, 2, 3]))) for _ in range(rng.choice([5] * 12 + [0, 4, 6, 7]))
    ]
    return rng.choice([" ", " ", " ", "  ", "\t", "\n", ", "]).join(fields)[:255]


def json_of(rng: random.Random, *, of_object: bool, depth: int = 0) -> str:
    """The text of a list or an object: JSON most of the time, nearly JSON else."""

    def value(depth: int) -> str:
        kind = rng.random()
        if kind < 0.25:
            return rng.choice(WHOLE if rng.random() < 0.8 else TOO_LARGE + NO_NUMBERS)
        if kind < 0.6:
            return string()
        if kind < 0.7:
            return rng.choice(["true", "false", "null"])
        if kind < 0.75:
            return rng.choice(MARKERS)
        return json_of(rng, of_object=kind < 0.88, depth=depth + 1) if depth < 3 else "[]"

    def string() -> str:
        quote = '"' if rng.random() < 0.98 else "'"
        return quote + rng.choice(STRINGS if rng.random() < 0.9 else NO_STRINGS) + quote

    count = rng.choice([0, 0, 1, 1, 2, 3])
    if of_object:
        keys = [string() if rng.random() < 0.2 else f'"k{rng.randint(0, 2)}"' for _ in range(count)]
        text = "{" + ", ".join(f"{key}: {value(depth)}" for key in keys) + "}"
    else:
        text = (
            "["
            + rng.choice([", ", ",", ",,"][: 2 + (rng.random() < 0.1)]).join(value(depth) for _ in range(count))
            + "]"
        )
    if depth == 0 and rng.random() < 0.1:
        text = rng.choice(BEFORE) + text + rng.choice(AFTER)
    if depth == 0 and rng.random() < 0.02:
        text = rng.choice([text[:-1], text[1:], "", " ", "null", "5", '"x"', "[" * 900 + "]" * 900, "[" * 6_000])
    return text


def headers_of(rng: random.Random) -> str:
    """The text of headers."""
    if rng.random() < 0.5:
        return json_of(rng, of_object=rng.random() < 0.95)
    names = rng.sample(HEADERS, rng.choice([1, 2]))
    return "{" + ", ".join(f'"{name}": {rng.choice(WHOLE)}' for name in names) + "}"


def options_of(rng: random.Random) -> str:
    """The text of options."""
    if rng.random() < 0.2:
        return json_of(rng, of_object=True)
    names = rng.sample(sorted(OPTIONS), rng.choice([1, 1, 2]))
    return json.dumps({name: rng.choice(OPTIONS[name]) for name in names})


def instant_of(rng: random.Random, vendor: str) -> Any:
    """An instant as the vendor stores it; in SQLite any text."""
    usual = ["2030-03-17 17:46:40", "2026-01-15 08:00:00.123456", "2031-07-01 02:30:00.999999", "0001-01-01 00:00:00",
             "9999-12-31 23:59:59.999999", "1970-01-01 00:00:00"]  # fmt: skip
    odd = {
        "postgresql": ["infinity", "-infinity", "4713-01-01 00:00:00 BC", "294276-12-31 23:59:59"],
        "mysql": ["0000-01-01 00:00:00"],
        "sqlite": [
            "garbage",
            "",
            "2030-13-45 99:99:99",
            5,
            2.5,
            b"2030",
            "now",
            "2030-03-17T17:46:40+05:30",
            "-9999-01-01",
        ],
    }[vendor]
    return rng.choice(usual if rng.random() < 0.7 else odd)


def columns_of(vendor: str) -> dict[str, Draw]:
    """Column → how a value for it is drawn, without schedules."""
    longs = [0, 1, 100, 2**31 - 1, 3_155_760_000_000, 2**62, 2**63 - 1, -1, -(2**63)]
    floats = [1.5, 0.3, 0.1 + 0.2, 1e-300, 315_360_000.0, 1e300, float("inf"), float("nan"), -1.0, 0.0]
    return {
        "task": lambda rng: text_of(rng, 200),
        "args": lambda rng: json_of(rng, of_object=rng.random() < 0.03),
        "kwargs": lambda rng: json_of(rng, of_object=rng.random() > 0.03),
        "timezone": lambda rng: rng.choice(ZONES if rng.random() < 0.5 else NO_ZONES),
        "day_rule": lambda rng: rng.choice(["and", "or", "xor", ""]),
        "jitter_s": lambda rng: rng.choice([None, 0, 7, 30, 86_400, 2**31 - 1]),
        "start_at": lambda rng: instant_of(rng, vendor),
        "end_at": lambda rng: instant_of(rng, vendor),
        "one_off": lambda rng: rng.random() < 0.5,
        "queue": lambda rng: rng.choice(QUEUES) if rng.random() < 0.8 else text_of(rng, 200),
        "exchange": lambda rng: rng.choice(QUEUES) if rng.random() < 0.8 else text_of(rng, 200),
        "routing_key": lambda rng: rng.choice(QUEUES) if rng.random() < 0.8 else text_of(rng, 200),
        "priority": lambda rng: rng.choice([None, 0, 9, 255, 300, -1]),
        "headers": headers_of,
        "expires_s": lambda rng: rng.choice(floats),
        "expires_next": lambda rng: rng.random() < 0.5,
        "options": options_of,
        "misfire": lambda rng: rng.choice(["auto", "skip", "latest", "all", "never"]),
        "overlap": lambda rng: rng.choice(["allow", "skip", "queue_one", "ALLOW"]),
        "enabled": lambda rng: rng.random() < 0.5,
        "interval_ms": lambda rng: rng.choice(longs),
        "effective_from": lambda rng: instant_of(rng, vendor),
        "finished_at": lambda rng: instant_of(rng, vendor),
    }


def schedule_of(rng: random.Random, vendor: str) -> dict[str, Any]:
    """The columns of a schedule, now and then of two."""
    kind = rng.random()
    if kind < 0.5:
        return {"interval_ms": rng.choice([100, 1_000, 60_000, 90_500, 86_400_000, 1_500])}
    if kind < 0.85:
        return {"cron": cron_of(rng), "timezone": rng.choice(ZONES)}
    if kind < 0.9:
        return {"once_at": instant_of(rng, vendor)}
    if kind < 0.95:
        event = rng.choice(["sunset", "solar_noon", "dawn_civil", "noon", "SUNSET"])
        place = (
            (52.5, 13.4) if rng.random() < 0.5 else (rng.choice([90.0, -90.0, 0.0]), rng.choice([180.0, -180.0, 0.0]))
        )
        return {"solar_event": event, "solar_latitude": place[0], "solar_longitude": place[1]}
    speed = {"incident_interval_ms": rng.choice([1, 100, 1_500, 59_999]), "incident_until": instant_of(rng, vendor)}
    return {"interval_ms": 60_000, **speed}


def any_rows(vendor: str, rng: random.Random, count: int) -> Iterator[dict[str, Any]]:
    """Draw ``count`` rows, columns by name; each third one is plain."""
    columns = columns_of(vendor)
    values_of_any_type = [None, 5, 1.5, "5", "x", b"x", b"\xff", ""]
    for number in range(count):
        row = {"name": f"{number} check", "task": "proj.check", "interval_ms": 60_000}
        if number % 3 == 0:
            yield row | {"kwargs": f'{{"n": {number}}}'}
            continue
        del row["interval_ms"]
        row |= schedule_of(rng, vendor)
        if rng.random() < 0.15:
            row["name"] = f"{text_of(rng, 180)}{number}"
        for column in rng.sample(sorted(columns), rng.choice([0, 1, 1, 1, 2, 3])):
            row[column] = columns[column](rng)
            if vendor == "sqlite" and rng.random() < 0.1:
                row[column] = rng.choice(values_of_any_type)
        yield row


def edits(vendor: str, rng: random.Random, count: int) -> Iterator[dict[str, Any]]:
    """Draw ``count`` edits: the columns that an UPDATE sets. Nobody but the triggers edits ``effective_from``."""
    columns = columns_of(vendor)
    for _ in range(count):
        chosen = rng.sample(sorted(columns.keys() - {"interval_ms", "effective_from"}), rng.choice([1, 1, 2]))
        yield {column: columns[column](rng) for column in chosen}
