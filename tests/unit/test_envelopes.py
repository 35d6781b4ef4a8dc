"""Cutting a message into a skeleton, filling it again, and the cache of pieces."""

from __future__ import annotations

import re
import uuid

import numpy as np
import pytest

from celery_wheelbeat.dispatch.messages.byte_ranges import ByteRanges
from celery_wheelbeat.dispatch.messages.part_cache import CHUNK_BYTES, PartCache, PartColumns
from celery_wheelbeat.dispatch.messages.run_ids import texts_of
from celery_wheelbeat.dispatch.messages.template import (
    Hole,
    MarkedValue,
    Pieces,
    Uncut,
    cut,
    delivery_tags,
    fire_octets,
    fire_texts,
    nonces,
)

MESSAGE = b'{"id": "ID", "n": 100%, "root": "ID", "tag": "TAG"}'


def test_what_is_cut_and_filled_again_is_the_same() -> None:
    skeleton = cut(MESSAGE, [MarkedValue(Hole.ID, b"ID", 2), MarkedValue(Hole.TAG, b"TAG")])
    assert skeleton.holes == (Hole.ID, Hole.ID, Hole.TAG)
    assert skeleton.constant_length == len(MESSAGE) - 7
    expected = [MESSAGE, MESSAGE.replace(b"ID", b"%d")]
    rows = np.frombuffer(b"ID%d", np.uint8).reshape(2, 2)
    for ids in (rows, ByteRanges.of([b"ID", b"%d"])):
        for tags in (b"TAG", ByteRanges.of([b"TAG", b"TAG"])):
            made = skeleton.render({Hole.ID: ids, Hole.TAG: tags})
            assert [bytes(made.part(slice(at, at + 1))) for at in range(2)] == expected
            assert bytes(made.part(slice(0, 2))) == b"".join(expected)


@pytest.mark.parametrize(
    ("marks", "reason"),
    [
        ([MarkedValue(Hole.ID, b"ID", 3)], "its id is found 2 times in the message, expected 3"),
        ([MarkedValue(Hole.TAG, b"missing", None)], "its delivery tag is found 0 times in the message, expected some"),
        ([MarkedValue(Hole.ID, b'"TAG', 1), MarkedValue(Hole.TAG, b"TAG")], "two of its varying values overlap"),
    ],
)
def test_what_is_not_there_as_often_as_expected_is_not_cut(marks: list[MarkedValue], reason: str) -> None:
    with pytest.raises(Uncut, match=re.escape(reason)):
        cut(MESSAGE, marks)


def test_stamps_are_what_they_say() -> None:
    entropy = bytes(range(256))
    assert texts_of(nonces(entropy)) == [entropy[at : at + 16].hex().encode() for at in range(0, 256, 16)]
    for tag in texts_of(delivery_tags(entropy)):
        assert uuid.UUID(tag.decode()).version == 4
    fires = np.array([1_764_000_000_000, 1_764_000_000_256])
    assert texts_of(fire_texts(fires, b"at ")) == [b"at 1764000000000", b"at 1764000000256"]
    assert texts_of(fire_octets(fires)) == [int(fire).to_bytes(8, "big") for fire in fires], "zeros at the end included"


class Renderer:
    """Makes pieces that name their position, and counts how often it is asked."""

    def __init__(self, text: str = "", size: int = 0) -> None:
        self.asked: list[int] = []
        self._text = text
        self._size = size

    def __call__(self, positions: np.ndarray) -> PartColumns:
        self.asked += positions.tolist()
        filling = b"x" * self._size
        name = self._text.encode()
        return PartColumns.of([Pieces(b"oo", b"body%d%b" % (at, filling), b"r", name) for at in positions.tolist()])


def refs(*values: int) -> np.ndarray:
    return np.array(values, np.uint32)


def pieces_of(columns: PartColumns) -> list[Pieces]:
    """Return the pieces of each job as bytes."""
    found = []
    begins = columns.begin.tolist()
    for number, begin in enumerate(begins):
        lengths = (columns.opening_width, *(int(column[number]) for column in columns[3:]))
        ends = [begin + sum(lengths[: kind + 1]) for kind in range(4)]
        cells = [columns.buffer[end - length : end].tobytes() for end, length in zip(ends, lengths, strict=True)]
        found.append(Pieces(*cells))
    return found


def bodies_of(columns: PartColumns) -> list[bytes]:
    return [one.body for one in pieces_of(columns)]


def test_pieces_are_rendered_once() -> None:
    bodies, render = PartCache(10 * CHUNK_BYTES), Renderer("n")
    first = pieces_of(bodies.columns(refs(5, 4096, 7), 3, 2, render))
    again = pieces_of(bodies.columns(refs(7, 5, 4096), 3, 2, render))
    assert render.asked == [0, 1, 2]
    assert first == [Pieces(b"oo", b"body%d" % at, b"r", b"n") for at in (0, 1, 2)]
    assert again == [Pieces(b"oo", b"body%d" % at, b"r", b"n") for at in (2, 0, 1)]


def test_known_and_new_pieces_stand_where_they_were_asked_for() -> None:
    bodies, render = PartCache(10 * CHUNK_BYTES), Renderer("n")
    bodies.columns(refs(1, 3), 3, 2, render)
    mixed = bodies_of(bodies.columns(refs(4, 3, 2, 1, 4), 3, 2, render))
    assert mixed == [b"body0", b"body1", b"body2", b"body0", b"body4"]


def test_another_skeleton_has_other_pieces() -> None:
    bodies, render = PartCache(10 * CHUNK_BYTES), Renderer()
    bodies.columns(refs(5), 3, 2, render)
    bodies.columns(refs(5), 4, 2, render)
    assert render.asked == [0, 0]


def test_what_is_forgotten_is_rendered_again() -> None:
    bodies, render = PartCache(10 * CHUNK_BYTES), Renderer()
    bodies.columns(refs(5, 4096), 3, 2, render)
    bodies.forget(refs(4096, 70_000))
    bodies.columns(refs(5, 4096), 3, 2, render)
    assert render.asked == [0, 1, 1]


def test_sizes_are_those_of_the_pieces_that_are_kept() -> None:
    bodies, render = PartCache(10 * CHUNK_BYTES), Renderer("n")
    found = pieces_of(bodies.columns(refs(5, 4096), 3, 2, render))
    lengths = [sum(map(len, pieces)) - 2 for pieces in found]
    assert bodies.sizes(refs(4096, 6, 5)).tolist() == [lengths[1], 0, lengths[0]]
    bodies.forget(refs(5))
    assert bodies.sizes(refs(5, 100_000)).tolist() == [0, 0]


def test_a_job_that_is_due_twice_is_kept_once() -> None:
    bodies, render = PartCache(10 * CHUNK_BYTES), Renderer()
    for _ in range(2):
        assert len(bodies_of(bodies.columns(refs(5, 5), 3, 2, render))) == 2
    bodies.forget(refs(5))
    assert bodies.resident_bytes == 0


def test_edits_without_end_leave_no_stale_pieces() -> None:
    """Every part is dropped and rendered again, for one job and for many at a time: memory does not grow."""
    bodies, render = PartCache(4 * CHUNK_BYTES), Renderer(size=3000)
    every = np.arange(1000, dtype=np.uint32)
    bodies.columns(every, 3, 2, render)
    full = bodies.resident_bytes
    for number in range(3000):
        one = refs(number % 1000)
        bodies.forget(one)
        bodies.columns(one, 3, 2, render)
        assert bodies.resident_bytes <= 2 * full
    assert len(bodies._chunks) - len(bodies._free) <= 4
    bodies.forget(every)
    assert bodies.resident_bytes == bodies._thin_bytes == 0


def test_half_forgotten_chunks_make_room() -> None:
    bodies, render = PartCache(2 * CHUNK_BYTES), Renderer(size=10_000)
    every = np.arange(200, dtype=np.uint32)
    bodies.columns(every, 3, 2, render)
    bodies.forget(every[:180])
    newer = every + 1000
    bodies.columns(newer, 3, 2, render)
    render.asked.clear()
    assert bodies_of(bodies.columns(newer, 3, 2, render))[7] == b"body7" + b"x" * 10_000
    assert render.asked == []
    rest = bodies_of(bodies.columns(every[180:], 3, 2, render))
    assert (len(rest), len(render.asked)) == (20, 20), "the rest of their pieces is rendered again"
    assert bodies.resident_bytes <= 2 * CHUNK_BYTES


def test_what_does_not_fit_is_rendered_for_each_run() -> None:
    bodies, render = PartCache(CHUNK_BYTES), Renderer(size=CHUNK_BYTES // 2)
    for _ in range(2):
        found = bodies_of(bodies.columns(refs(0, 1, 2), 3, 2, render))
        assert [body[:5] for body in found] == [b"body0", b"body1", b"body2"]
    assert render.asked == [0, 1, 2, 1, 2]
    assert bodies.resident_bytes <= CHUNK_BYTES


def test_what_does_not_fit_uses_up_no_place() -> None:
    bodies = PartCache(CHUNK_BYTES)
    small, large = Renderer(size=CHUNK_BYTES // 4), Renderer(size=CHUNK_BYTES * 3 // 4)
    for ref in range(3):
        bodies.columns(refs(ref), 3, 2, small)
    bodies.forget(refs(0))
    for _ in range(10):
        bodies.columns(refs(7), 3, 2, large)
        bodies.columns(refs(8), 3, 2, small)
        bodies.forget(refs(8))
    assert len(bodies._chunks) == 1


def test_what_the_renderer_raises_leaves_the_cache_as_it_was() -> None:
    bodies = PartCache(CHUNK_BYTES)

    def fail(_positions: np.ndarray) -> PartColumns:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        bodies.columns(refs(0), 3, 2, fail)
    assert bodies_of(bodies.columns(refs(0), 3, 2, Renderer())) == [b"body0"]


def test_without_memory_every_piece_is_rendered_each_time(caplog: pytest.LogCaptureFixture) -> None:
    bodies, render = PartCache(1 << 60), Renderer()
    for _ in range(2):
        assert bodies_of(bodies.columns(refs(5, 6), 3, 2, render)) == [b"body0", b"body1"]
    assert render.asked == [0, 1, 0, 1]
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        f"beat: The system gives no {1 << 60} bytes for the pieces of messages"
    ]
