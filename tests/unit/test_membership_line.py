"""A line is read as it was written; whatever else another process wrote is refused with the reason."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from celery_wheelbeat.membership.line import (
    ENTRIES_LISTED,
    GROUPS,
    LINE_BYTES,
    ODD_LISTED,
    BeatLine,
    InvalidLine,
    Standing,
    covered,
    entries_said,
    entry_hash,
    mask_of,
)

LINE = BeatLine(
    "0b5c",
    number=7,
    standing=Standing.READY,
    order=3,
    own=frozenset({0, 5, 255}),
    able=frozenset({"broker"}),
    marks={"broker": {0: 1_764_000_000_000, 5: 1_763_999_990_000, 255: 1_764_000_000_000}},
    left={"broker": {9: 1_763_999_998_000}},
    odd={"9f1c22ab9f1c22ab": 1_764_000_000_000},
    entries=frozenset({"9f1c22ab9f1c22ab", "aaaaaaaaaaaaaaaa"}),
    digest="d",
    offset_ms=-12,
    steps=1,
    rolls=("database", "redis"),
    release="0.2.0",
    account={"sent": 81_230, "skipped": {"backlog": 4}},
)


@pytest.mark.parametrize("line", [LINE, BeatLine("b"), BeatLine("b", entries=None, damped=True, active=1, shards=1)])
def test_a_line_is_read_as_it_was_written(line: BeatLine) -> None:
    assert BeatLine.from_text(line.to_text(), line.beat_id) == line


def test_a_usual_line_is_short() -> None:
    own = frozenset(range(0, 256, 2))
    line = BeatLine("x" * 36, own=own, marks={"broker": dict.fromkeys(own, 1_764_000_000_000)})
    assert len(line.to_text()) < 700


def test_a_shard_without_a_mark_gets_none() -> None:
    line = BeatLine("b", own=frozenset({1, 2}), marks={"broker": {1: 50}})
    assert BeatLine.from_text(line.to_text(), "b").marks == {"broker": {1: 50}}


def test_many_different_marks_are_lowered_to_a_few() -> None:
    marks = {shard: shard * shard for shard in range(256)}
    line = BeatLine("b", own=frozenset(marks), marks={"broker": marks}, left={"broker": marks})
    for read in (
        BeatLine.from_text(line.to_text(), "b").marks["broker"],
        BeatLine.from_text(line.to_text(), "b").left["broker"],
    ):
        assert read.keys() == marks.keys()
        assert all(read[shard] <= mark for shard, mark in marks.items())
        assert len(set(read.values())) == GROUPS


def test_the_longest_line_fits() -> None:
    hashes = {entry_hash(str(number), "t", "s") for number in range(ENTRIES_LISTED)}
    entries, digest = entries_said(hashes)
    marks = {shard: shard for shard in range(256)}
    line = BeatLine(
        "b",
        own=frozenset(marks),
        marks={"broker": marks},
        left={"broker": marks},
        entries=entries,
        digest=digest,
        account={"sent": 1 << 60},
    )
    assert len(line.to_text()) < LINE_BYTES * 3 // 4
    odd = replace(line, odd={entry_hash(str(number), "other", "s"): 1 << 52 for number in range(10_000)})
    read = BeatLine.from_text(odd.to_text(), "b").odd
    assert len(read) == ODD_LISTED
    assert read.items() <= odd.odd.items()


def test_a_line_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidLine, match=r"line of beat b: 70.* bytes, expected at most 65536"):
        BeatLine("b", account={"text": "x" * 70_000}).to_text()


def test_more_entries_than_are_listed_are_compared_by_their_digest() -> None:
    hashes = {entry_hash(str(number), "t", "s") for number in range(ENTRIES_LISTED + 1)}
    entries, digest = entries_said(hashes)
    assert entries is None
    line = BeatLine("b", entries=entries, digest=digest)
    assert line.knows(next(iter(hashes)), digest)
    assert not line.knows(next(iter(hashes)), "another")


def test_an_entry_with_another_schedule_is_another_entry() -> None:
    assert entry_hash("a", "t", "10 s") != entry_hash("a", "t", "20 s")
    assert entry_hash("a", "bc", "d") != entry_hash("ab", "c", "d")


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(LINE.to_text()), **fields})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "expected object, not \\[\\]"),
        ("[" * 60_000, "recursion|Expecting"),
        ("x" * 70_000, "70000 characters, expected at most 65536"),
        ("9" * 60_000, "limit"),
        (changed(v=2), "expected version 1, not 2"),
        (changed(beat="other"), "expected the id of its writer, not 'other'"),
        (changed(state="asleep"), "'asleep' is not a valid Standing"),
        (changed(state=None), "None is not a valid Standing"),
        (changed(state=["ready"]), "not a valid Standing"),
        (changed(n=-1), "expected n as a number"),
        (changed(n=True), "expected n as a number"),
        (changed(n=1.5), "expected n as a number"),
        (changed(order="3"), "expected order as a number"),
        (changed(shards=0), "expected shards as a number"),
        (changed(shards=512), "expected shards as a number"),
        (changed(own="-1"), "expected a mask of 256 shards, not '-1'"),
        (changed(own="0x1"), "expected a mask"),
        (changed(own="1_0"), "expected a mask"),
        (changed(own=""), "expected a mask"),
        (changed(own="1" * 65), "expected a mask"),
        (changed(shards=8, own="100"), "expected a mask of 8 shards, not '100'"),
        (changed(own=5), "expected a mask"),
        (changed(able="broker"), "expected a list of at most 100 texts"),
        (changed(able=["x"] * 101), "expected a list of at most 100 texts"),
        (changed(able=["a\n2026-01-01 CRITICAL"]), "expected a short text"),
        (changed(able=[["broker"]]), "expected a short text"),
        (changed(marks=[]), "expected marks as an object"),
        (changed(marks={"broker": 5}), "expected groups as an object"),
        (changed(marks={"broker": {"1": "soon"}}), "expected mark as a number"),
        (changed(marks={"broker": {"1": 10**40}}), "expected mark as a number"),
        (changed(marks={"broker": {"zz": 1}}), "expected a mask"),
        (changed(odd={"\ud800": 1}), "expected a short text"),
        (changed(entries=["x"] * 2_001), "expected a list of at most 2000 texts"),
        (changed(damped=1), "expected true or false, not 1"),
        (changed(active=0), "expected active as a number"),
        (changed(release="x" * 201), "expected a short text"),
        (changed(account=[1]), "expected account as an object"),
    ],
)
def test_a_malformed_line_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidLine, match=f"^line of beat '0b5c' cannot be read: .*({reason})"):
        BeatLine.from_text(text, "0b5c")


def test_fields_of_a_later_release_are_ignored() -> None:
    assert BeatLine.from_text(changed(holds="ff"), "0b5c") == LINE


def test_of_two_marks_for_one_shard_the_lower_one_counts() -> None:
    text = changed(marks={"broker": {"1": 9, "3": 5}})
    assert BeatLine.from_text(text, "0b5c").marks["broker"] == {0: 5, 1: 5}


def test_a_line_is_covered_if_others_have_each_of_its_marks() -> None:
    line = BeatLine("a", own=frozenset({1}), marks={"broker": {1: 50}}, left={"broker": {2: 40}})
    one = BeatLine("b", own=frozenset({1}), marks={"broker": {1: 50}})
    other = BeatLine("c", left={"broker": {2: 41}})
    assert covered(line, [one, other])
    assert not covered(line, [one])
    assert not covered(line, [other, BeatLine("b", marks={"broker": {1: 49}})])
    assert not covered(line, [one, BeatLine("c", left={"elsewhere": {2: 41}})])


def test_masks_are_hexadecimal() -> None:
    assert mask_of(range(256)) == "f" * 64
    assert mask_of([0, 4]) == "11"
    assert mask_of([]) == "0"
