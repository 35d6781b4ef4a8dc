"""Durations: exact in both directions, and refused where they could mean two things."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_wheelbeat.errors import InvalidSchedule
from celery_wheelbeat.schedules.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("90s", 90_000),
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        (" 1H 30M ", 5_400_000),
        ("36h", 129_600_000),
        ("2d", 172_800_000),
        ("1w", 604_800_000),
        ("0.5s", 500),
        ("1m0.25s", 60_250),
        ("250ms", 250),
        ("1s1ms", 1_001),
    ],
)
def test_what_people_write(text: str, duration_ms: int):
    assert parse_duration(text) == duration_ms


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("90", "has no unit"),
        ("1.5", "has no unit"),
        ("", "cannot be read"),
        ("5 minutes", "cannot be read"),
        ("30m1h", "cannot be read"),
        ("1h1h", "cannot be read"),
        ("-5s", "cannot be read"),
        ("1.5h", "cannot be read"),
        ("0.0001s", "cannot be read"),
        ("٣s", "cannot be read"),
        ("1_0s", "cannot be read"),
        ("9" * 5_000 + "s", "cannot be read"),
        ("0s", "is zero"),
        ("0h0m", "is zero"),
    ],
)
def test_everything_else_is_refused_with_examples(text: str, words: str):
    with pytest.raises(InvalidSchedule, match=words) as caught:
        parse_duration(text)
    assert "90s, 5m, 1h30m" in str(caught.value)


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [(0, "0s"), (1, "1ms"), (1_500, "1.5s"), (60_000, "1m"), (5_400_000, "1h30m"), (86_400_000 * 9 + 30, "9d0.03s")],
)
def test_how_durations_are_shown(duration_ms: int, text: str):
    assert format_duration(duration_ms) == text


@given(st.integers(1, 10**13))
def test_what_is_shown_can_be_typed_in_again(duration_ms: int):
    assert parse_duration(format_duration(duration_ms)) == duration_ms


@given(st.text())
def test_any_text_is_a_duration_or_an_invalid_schedule(text: str):
    try:
        duration_ms = parse_duration(text)
    except InvalidSchedule:
        return
    assert duration_ms > 0
