"""The day fields against a plain reading of each date: last days, nth and last weekdays, both day rules."""

from __future__ import annotations

import calendar
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from celery_wheelbeat import Cron, InvalidSchedule

ORDINARY_DAYS = st.lists(st.integers(1, 31).map(str), min_size=1, max_size=4)
DAYS = st.one_of(
    st.just("*"), st.just("*/2"), ORDINARY_DAYS.map(",".join), ORDINARY_DAYS.map(lambda drawn: ",".join([*drawn, "L"]))
)
WEEKDAY_ITEMS = st.one_of(
    st.integers(0, 7).map(str),
    st.tuples(st.integers(0, 7), st.integers(1, 5)).map(lambda drawn: f"{drawn[0]}#{drawn[1]}"),
    st.integers(0, 7).map(lambda weekday: f"{weekday}L"),
)
WEEKDAYS = st.one_of(st.just("*"), st.just("*/3"), st.lists(WEEKDAY_ITEMS, min_size=1, max_size=3).map(",".join))


def date_matches(text: str, when: datetime) -> bool:
    if text.startswith("*"):
        return text == "*" or when.day % 2 == 1
    last = calendar.monthrange(when.year, when.month)[1]
    return any(when.day == (last if item == "L" else int(item)) for item in text.split(","))


def weekday_matches(text: str, when: datetime) -> bool:
    weekday = when.isoweekday() % 7
    if text.startswith("*"):
        return text == "*" or weekday in {0, 3, 6}
    for item in text.split(","):
        if int(item[0]) % 7 != weekday:
            continue
        if item.endswith("L"):
            matches = (when + timedelta(days=7)).month != when.month
        elif "#" in item:
            earlier = sum((when - timedelta(weeks=week)).month == when.month for week in range(1, 5))
            matches = earlier + 1 == int(item[2])
        else:
            matches = True
        if matches:
            return True
    return False


@settings(max_examples=300)
@given(days=DAYS, weekdays=WEEKDAYS, day_rule=st.sampled_from(["and", "or"]), month=st.integers(0, 1200))
def test_every_chosen_date_and_no_other(days: str, weekdays: str, day_rule: str, month: int) -> None:
    start = datetime(1990 + month // 12, month % 12 + 1, 1, tzinfo=UTC)
    either = day_rule == "or" and not days.startswith("*") and not weekdays.startswith("*")
    expected = []
    for ahead in range(90):
        when = start + timedelta(days=ahead)
        matches = (date_matches(days, when), weekday_matches(weekdays, when))
        if any(matches) if either else all(matches):
            expected.append(when)
    try:
        cron = Cron(f"0 0 {days} * {weekdays}", day_rule=day_rule)
    except InvalidSchedule:
        assert expected == []
        return
    fires = cron.next_fires(start - timedelta(seconds=1), 91)
    assert [fire for fire in fires if fire < start + timedelta(days=90)] == expected
