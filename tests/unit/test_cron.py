"""Cron schedules: the case file of public bug reports, then the grammar, value semantics and the table."""

from __future__ import annotations

import json
import pickle
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from celery_wheelbeat import Cron, InvalidSchedule, WheelbeatError
from celery_wheelbeat.schedules import cron_fields, zones
from celery_wheelbeat.schedules.cron import CronTable

CASES = json.loads((Path(__file__).parents[1] / "data" / "cron_cases.json").read_text("utf-8"))
NOT_SUPPORTED = {"W", "seconds", "seconds-last", "year"}
NOW_MS = 1_750_000_000_000  # 2025-06-15T15:06:40Z


def first_fires(expression: str, after: str, count: int = 3, timezone: str = "UTC", day_rule: str = "and") -> list[str]:
    fires = Cron(expression, timezone, day_rule).next_fires(datetime.fromisoformat(after), count)
    return [f"{fire:%Y-%m-%dT%H:%MZ}" for fire in fires]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case_file(case: dict[str, Any]) -> None:
    if case.get("expected_error") or NOT_SUPPORTED & set(case.get("requires", ())):
        with pytest.raises(InvalidSchedule) as refusal:
            Cron(case["expr"], case["tz"], case["day_or_semantics"])
        assert ("never fires" in str(refusal.value)) == (case.get("error_kind") == "never")
        return
    cron = Cron(case["expr"], case["tz"], case["day_or_semantics"])
    fires = cron.next_fires(datetime.fromisoformat(case["after"]), len(case["expected"]))
    assert [f"{fire:%Y-%m-%dT%H:%M:%SZ}" for fire in fires] == case["expected"], case["why"]


@pytest.mark.parametrize(
    ("expression", "same"),
    [
        ("0 0 * * 7", "0 0 * * 0"),
        ("0 0 * * sun", "0 0 * * Sunday"),
        ("0 0 * * 0-7", "0 0 * * 0-6"),
        ("0 0 * * 7-2", "0 0 * * 0,1,2"),
        ("0 0 * * 7-7", "0 0 * * 0"),
        ("0 0 * * sun-7/3", "0 0 * * 0,3,6"),
        ("0-7 7-7 6-7 7-7 *", "0,1,2,3,4,5,6,7 7 6,7 7 *"),
        ("0 0 * * fri-7/2", "0 0 * * 5,0"),
        ("0 0 * * 5-2", "0 0 * * 5,6,0,1,2"),
        ("55-5/3 1 * * *", "55,58,1,4 1 * * *"),
        ("0 22-3/2 * * *", "0 22,0,2 * * *"),
        ("0 0 28-3 * *", "0 0 28,29,30,31,1,2,3 * *"),
        ("0 0 1 oct-February/2 *", "0 0 1 10,12,2 *"),
        ("5-5/3 1 * * *", "5 1 * * *"),
        ("05 07 * * *", "5 7 * * *"),
        ("5/20 1 * * *", "5,25,45 1 * * *"),
        ("10-20/90 1 * * *", "10 1 * * *"),
        ("*/90 * * * *", "*/60 * * * *"),
        ("\t0\n0 * *  * ", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@WEEKLY", "0 0 * * 0"),
        ("0 0 * * 1#1,2#3,5l", "0 0 * * 5L,1#1,tue#3"),
        ("0 0 * * mon#2,fri", "0 0 * * 5,1#2"),
        ("0 0 * * friL,SundayL", "0 0 * * 5L,0L"),
        ("5,* 1 * * *", "0-59 1 * * *"),
        ("*,5 1 * * *", "* 1 * * *"),
        ("*/7,* 1 * * *", "* 1 * * *"),
        ("*,* 1 * * *", "* 1 * * *"),
        ("0 1,* * * *", "0 0-23 * * *"),
        ("0 0 1,* * *", "0 0 * * *"),
        ("0 0 L,* * *", "0 0 * * *"),
        ("0 0 * jan,* *", "0 0 * * *"),
        ("0 0 * * 3,*", "0 0 * * *"),
        ("0 0 * * mon-fri,*", "0 0 * * *"),
    ],
)
def test_ways_to_write_the_same(expression: str, same: str) -> None:
    assert Cron(expression) == Cron(same)
    assert hash(Cron(expression)) == hash(Cron(same))


@pytest.mark.parametrize("field", cron_fields.FIELDS, ids=[field.title for field in cron_fields.FIELDS])
@pytest.mark.parametrize("step", [1, 3])
def test_every_range_of_every_field(field: cron_fields.Field, step: int) -> None:
    place = cron_fields.FIELDS.index(field)
    size = field.high - field.low + 1
    for first in range(field.low, field.high + 1):
        for last in range(field.low, field.high + 1):
            texts = ["*"] * 5
            texts[place] = f"{first}-{last}" + (f"/{step}" if step > 1 else "")
            fields = cron_fields.parse(" ".join(texts))
            masks = (
                fields.minutes,
                fields.hours,
                fields.day_fields.days,
                fields.day_fields.months,
                fields.day_fields.weekdays,
            )
            ahead = range(0, (last - first) % size + 1, step)
            expected = {(first - field.low + distance) % size + field.low for distance in ahead}
            assert masks[place] == sum(1 << value for value in expected), texts[place]


def test_what_makes_two_schedules_differ() -> None:
    base = Cron("0 5 1 * 1", "Europe/Berlin")
    assert base != Cron("0 5 1 * 1", "Europe/Paris")
    assert base != Cron("0 5 1 * 1", "Europe/Berlin", day_rule="or")
    assert Cron("0 0-23 * * *") != Cron("0 * * * *"), "a full range is a fixed time, a star follows the wall clock"
    assert Cron("0 5 * * 1", day_rule="or") == Cron("0 5 * * 1", day_rule="and"), "a star leaves the day rule no choice"


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("0 0 31 2 *", "never fires"),
        ("0 0 30,31 feb *", "never fires"),
        ("0 0 31 4,6,9,11 0", "never fires"),
        ("0 0 L 2 1#1", "never fires"),
        ("60 * * * *", "minute field, '60': out of range, expected 0 to 59"),
        ("* * * 13 *", "month field, '13': out of range"),
        ("* * * * 8", "day of week field, '8'"),
        ("* * * jan *,", "remove the extra comma"),
        ("* * ? * *", "write '*'"),
        ("* * LW * *", "nearest working day"),
        ("* * l-3 * *", "day of month"),
        ("* * * * L", "day of week"),
        ("* * * * 8L", "day of week field, '8'"),
        ("* * * * 1,7/2", "'7/2': crons differ in what a step from 7 means, write 0/2, or 0 for Sunday alone"),
        ("* * * * aprilL", "day of week"),
        ("* * friL * *", "day of month"),
        ("* * * * 1#0", "expected #1 to #5"),
        ("R * * * *", "minute field"),
        ("h(0-5) * * * *", "minute field"),
        ("1_0 * * * *", "minute field"),
        ("0 0 mon * *", "belongs to another field"),
        ("0 0 * mond *", "month field"),
        ("0 0 * * */-1", "day of week"),
        ("0 0 * * 1-", "day of week"),
        ("*5 * * * *", "minute field"),
        ("", "0 fields"),
        ("@", "unknown macro"),
        ("0 0 * * * *", "6 fields"),
        ("0 0 * * 1,,2", "extra comma"),
        ("1," * 600 + "1 * * * *", "at most 1000"),
    ],
)
def test_refusals_say_what_and_why(expression: str, complaint: str) -> None:
    with pytest.raises(InvalidSchedule, match=complaint.replace("'*'", r"'\*'")):
        Cron(expression)


@pytest.mark.parametrize(
    "name",
    ["", "Mars/Olympus", "europe/berlin", "../etc/passwd", "America", "tzdata.zi", "UTC\0", "/etc/localtime", "JST-9"],
)
def test_unknown_zones_are_refused(name: str) -> None:
    with pytest.raises(InvalidSchedule, match="unknown time zone"):
        Cron("* * * * *", name)


@pytest.mark.parametrize(
    "name", ["localtime", "posixrules", "Factory", "posix/Europe/Berlin", "right/Europe/Berlin", "right/UTC"]
)
def test_files_beside_the_zones_are_no_zones(name: str) -> None:
    with pytest.raises(InvalidSchedule, match="unknown time zone"):
        Cron("* * * * *", name)
    assert name not in zones.names()


def test_a_close_zone_name_is_proposed() -> None:
    with pytest.raises(InvalidSchedule, match="did you mean 'Europe/Berlin'"):
        Cron("* * * * *", "Europe/Berln")


def test_an_unknown_day_rule_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="expected 'and' or 'or'"):
        Cron("* * * * *", day_rule="xor")


def test_invalid_schedule_is_an_error_of_the_package_and_a_value_error() -> None:
    assert issubclass(InvalidSchedule, WheelbeatError)
    assert issubclass(InvalidSchedule, ValueError)


def test_strictly_after_to_the_millisecond() -> None:
    cron = Cron("* * * * *")
    assert cron.next_fire(59_999) == 60_000
    assert cron.next_fire(60_000) == 120_000
    assert cron.next_fire(-1) == 0
    assert cron.next_fire(-60_001) == -60_000


def test_a_naive_instant_is_refused() -> None:
    with pytest.raises(InvalidSchedule, match="expected an aware datetime"):
        Cron("* * * * *").next_fires(datetime(2025, 1, 1), 1)  # noqa: DTZ001 - the mistake under test


def test_reports_named_in_the_bug_list() -> None:
    assert first_fires("0 0 29 2 1", "2024-03-01T00:00Z") == [
        "2044-02-29T00:00Z",
        "2072-02-29T00:00Z",
        "2112-02-29T00:00Z",
    ]
    assert first_fires("10 2 12 8 0", "2015-07-30T00:00Z", 1) == ["2018-08-12T02:10Z"]
    assert first_fires("0 0 29 2 *", "2096-03-01T00:00Z", 1) == ["2104-02-29T00:00Z"]
    assert first_fires("0 0 */2 * 1", "2024-01-10T00:00Z", 1, day_rule="or") == ["2024-01-15T00:00Z"]
    assert first_fires("30 2 * * *", "2024-03-09T17:00Z", 2, "America/New_York") == [
        "2024-03-10T07:00Z",
        "2024-03-11T06:30Z",
    ]
    assert first_fires("0 * * * *", "2026-11-01T07:30Z", 3, "US/Pacific") == [
        "2026-11-01T08:00Z", "2026-11-01T09:00Z", "2026-11-01T10:00Z",
    ]  # fmt: skip
    assert first_fires("0 0 * * *", "2017-10-14T15:00Z", 2, "America/Sao_Paulo") == [
        "2017-10-15T03:00Z",
        "2017-10-16T02:00Z",
    ]


def test_local_mean_time_with_odd_seconds() -> None:
    # Liberia was 44 min 30 s behind UTC until 1972.
    fires = Cron("0 12 * * *", "Africa/Monrovia").next_fires(datetime(1971, 6, 1, tzinfo=UTC), 1)
    assert fires == [datetime(1971, 6, 1, 12, 44, 30, tzinfo=UTC)]


def test_far_future_follows_the_rule_of_the_zone() -> None:
    assert first_fires("0 12 1 1,7 *", "2500-01-01T00:00Z", 2, "Europe/Berlin") == [
        "2500-01-01T11:00Z",
        "2500-07-01T10:00Z",
    ]


def test_the_ends_of_the_calendar() -> None:
    cron = Cron("0 0 1 1 *", "Pacific/Kiritimati")
    assert cron.next_fires(datetime(9999, 6, 1, tzinfo=UTC), 5) == []
    assert cron.next_fire(2**62) is None
    first_ms = cron.next_fire(-(2**62))
    assert first_ms is not None
    assert datetime(1, 1, 1, tzinfo=UTC) < datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=first_ms)


def test_slots_that_only_exist_where_the_clock_skips_come_to_an_end() -> None:
    # Second Sunday of March, 02:00 to 03:00, is skipped every year; a star makes the job follow the wall clock.
    assert Cron("*/30 2 8-14 3 0", "America/New_York").next_fire(NOW_MS) is None
    fixed = Cron("30 2 8-14 3 0", "America/New_York")
    assert fixed.next_fires(datetime(2025, 6, 1, tzinfo=UTC), 1) == [datetime(2026, 3, 8, 7, tzinfo=UTC)]


def test_sets_become_an_expression_that_reads_back_the_same() -> None:
    cron = Cron.from_sets(
        minutes={0, 15, 30, 45}, hours={1, 2, 3, 9}, days=range(1, 32), months={1, 7}, weekdays={0, 6}, fixed_time=False
    )
    assert cron.expression == "*/15 1-3,9 * 1,7 0,6"
    assert not cron.fixed_time
    odd = Cron.from_sets(
        minutes=[5],
        hours=[0, 7],
        days=[1],
        months=range(1, 13),
        weekdays=range(7),
        fixed_time=False,
        timezone="Asia/Tokyo",
    )
    assert odd.expression == "5 */24,7 1 * *"
    assert odd == Cron("5 */24,7 1 * *", "Asia/Tokyo")
    full = Cron.from_sets(
        minutes=[0], hours=range(24), days=range(1, 32), months=range(1, 13), weekdays=range(7), fixed_time=True
    )
    assert full.expression == "0 0-23 * * *"


@pytest.mark.parametrize("minutes", [[], [60], [-1], ["5"], [1.5]])
def test_sets_are_checked(minutes: list[Any]) -> None:
    with pytest.raises(InvalidSchedule, match="cron minute field"):
        Cron.from_sets(minutes=minutes, hours=[1], days=[1], months=[1], weekdays=range(7), fixed_time=True)


def test_sets_that_no_star_can_write() -> None:
    with pytest.raises(InvalidSchedule, match="holds the value 0"):
        Cron.from_sets(minutes=[5], hours=[1], days=[1], months=[1], weekdays=range(7), fixed_time=False)


def test_values_survive_pickling() -> None:
    cron = Cron("*/5 9-17 * * 1-5", "America/New_York")
    copy = pickle.loads(pickle.dumps(cron))  # noqa: S301 - our own bytes
    assert copy == cron
    assert copy.next_fire(NOW_MS) == cron.next_fire(NOW_MS)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/15 * * * *", "every 15 minutes"),
        ("17 * * * *", "at minute 17 of every hour"),
        ("30 2 * * *", "at 02:30"),
        ("0 9,17 * * mon-fri", "at 09:00 and 17:00 on Monday, Tuesday, Wednesday, Thursday and Friday"),
        ("*/20 9-17 1,15,L * *", "every 20 minutes during hours 9 to 17 on day 1 and 15 and the last day of the month"),
        ("0 */2 * * *", "at minute 0, every 2 hours"),
        ("0 5 13 * 5", "at 05:00 on day 13 of the month if it is Friday"),
        ("5 4 * */3 5L,2#2", "at 04:05 on the second Tuesday and the last Friday in January, April, July and October"),
    ],
)
def test_in_words(expression: str, words: str) -> None:
    assert Cron(expression).describe() == words


def test_either_day_field_in_words() -> None:
    assert Cron("0 5 13 * 5", day_rule="or").describe() == "at 05:00 on day 13 of the month or on Friday"
    assert Cron("0 5 1-31 * 5", day_rule="or").describe() == "at 05:00"


def test_warnings_of_legal_but_surprising_fields() -> None:
    assert Cron("*/15 2 * * *").warnings() == ()
    assert Cron("*/60 * * * *").warnings() == ()
    (step,) = Cron("*/90 * * * *").warnings()
    assert step.startswith("step /90 in the minute field is larger than the field (60 values)")
    (both,) = Cron("0 5 13 * 5").warnings()
    assert "only on days that match both" in both
    (either,) = Cron("0 5 13 * 5", day_rule="or").warnings()
    assert "match either" in either


def test_warnings_of_clock_changes_in_the_coming_year() -> None:
    def warned(expression: str) -> tuple[str, ...]:
        return Cron(expression, "America/New_York").warnings(NOW_MS)

    assert warned("30 2 * * *") == (
        "2026-03-08 02:00 to 03:00 (America/New_York) is skipped by the clock: the run comes at 03:00",
    )
    assert warned("30 1 * * *") == (
        "2025-11-02 01:00 to 02:00 (America/New_York) is repeated by the clock: only the first pass runs",
    )
    assert warned("*/30 1 * * *") == (
        "2025-11-02 01:00 to 02:00 (America/New_York) is repeated by the clock: both passes run",
    )
    assert warned("*/30 2 * * *") == (
        "2026-03-08 02:00 to 03:00 (America/New_York) is skipped by the clock: these runs do not happen",
    )
    assert warned("*/30 * * * *") == warned("30 2 * * 1") == warned("0 5 * * *") == ()
    assert Cron("30 2 * * *", "UTC").warnings(NOW_MS) == ()


def test_the_table_shares_equal_schedules() -> None:
    table = CronTable()
    sunday = table.intern(Cron("0 0 * * 7"))
    assert table.intern(Cron("0 0 * * sun")) == sunday
    assert table.intern(Cron("0 0 * * 1")) == sunday + 1
    assert len(table) == 2
    assert table[sunday] == Cron("0 0 * * 0")


def test_the_table_computes_a_fire_once_for_all_jobs_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    compute = Cron.next_fire

    def counting(cron: Cron, after_ms: int) -> int | None:
        asked.append(after_ms)
        return compute(cron, after_ms)

    monkeypatch.setattr(Cron, "next_fire", counting)
    table = CronTable()
    index = table.intern(Cron("0 3 * * *"))
    fire_ms = table.next_fire(index, NOW_MS)
    assert {table.next_fire(index, NOW_MS + jitter_ms) for jitter_ms in range(0, 30_000, 1000)} == {fire_ms}
    assert asked == [NOW_MS]
    assert table.next_fire(index, NOW_MS - 1000) == fire_ms
    assert table.next_fire(index, NOW_MS - 500) == fire_ms
    assert len(asked) == 2, "an earlier question with the same answer widens what is known"
    assert fire_ms is not None
    assert table.next_fire(index, fire_ms) == fire_ms + 86_400_000
    assert len(asked) == 3


def test_the_table_remembers_that_nothing_comes() -> None:
    table = CronTable()
    index = table.intern(Cron("*/30 2 8-14 3 0", "America/New_York"))
    assert table.next_fire(index, NOW_MS) is None
    assert table.next_fire(index, NOW_MS + 1) is None
    assert table.next_fire(index, 0) is not None


def test_the_table_may_be_filled_from_many_threads() -> None:
    table = CronTable()
    crons = [Cron(f"{minute} {hour} * * *") for minute in range(30) for hour in range(10)]
    found: list[list[int]] = []
    start = threading.Barrier(8)

    def fill() -> None:
        start.wait()
        found.append([table.intern(cron) for cron in crons])

    threads = [threading.Thread(target=fill) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(table) == len(crons)
    assert all(indices == found[0] for indices in found)
    assert [table[index] for index in found[0]] == crons
