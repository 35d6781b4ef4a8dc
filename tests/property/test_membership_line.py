"""No text makes reading a line fail in another way than ``InvalidLine``; marks are never raised."""

from __future__ import annotations

import contextlib
import json

from hypothesis import example, given
from hypothesis import strategies as st

from celery_wheelbeat.membership.line import BeatLine, InvalidLine

FIELDS = sorted(json.loads(BeatLine("b").to_text()))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.text())
def test_any_text_is_a_line_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidLine):
        BeatLine.from_text(text, "b")


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, min_size=1, max_size=3))
@example({"v": True})
def test_any_value_of_any_field_is_read_or_refused(changed: dict[str, object]) -> None:
    with contextlib.suppress(InvalidLine):
        line = BeatLine.from_text(json.dumps({**json.loads(BeatLine("b").to_text()), **changed}), "b")
        assert BeatLine.from_text(line.to_text(), "b") == line


@given(st.dictionaries(st.integers(0, 255), st.integers(-(2**53), 2**53), max_size=256))
def test_marks_are_never_raised(marks: dict[int, int]) -> None:
    line = BeatLine("b", own=frozenset(marks), marks={"broker": marks}, left={"broker": marks})
    read = BeatLine.from_text(line.to_text(), "b")
    for said in (read.marks["broker"], read.left["broker"]):
        assert said.keys() == marks.keys()
        assert all(said[shard] <= mark for shard, mark in marks.items())
