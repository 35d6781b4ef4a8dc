"""What a feed asks of its reader while there is room, and while there is none."""

from __future__ import annotations

from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING

import pytest
from kombu.utils.json import loads

from celery_wheelbeat.jobs.rows import Limits
from celery_wheelbeat.later import feed
from celery_wheelbeat.later.feed import AHEAD_S, FULLEST, Held, LaterFeed
from celery_wheelbeat.later.readers import NO_NEW_SECOND, Read
from celery_wheelbeat.runtime.clock import SystemClock
from celery_wheelbeat.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_RUNS = 1_000
DEADLINE_S = 10.0


class Reader:
    """Notes each call; ``more`` is the answer of every poll."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[object] = SimpleQueue()
        self.more = False

    def poll(self, ahead_s: int, _room: int) -> Read:
        self.calls.put(ahead_s)
        return Read(1_000, [], None, self.more)

    def pause(self) -> None:
        self.calls.put("pause")

    def drop(self, _day: int) -> bool:
        return False

    def close(self) -> None:
        """Nothing is open."""

    def calls_until(self, wanted: object) -> set[object]:
        """Return the calls before the next one that is ``wanted``."""
        before = set()
        while (call := self.calls.get(timeout=DEADLINE_S)) != wanted:
            before.add(call)
        return before


@contextmanager
def started(reader: Reader, held: Held) -> Iterator[LaterFeed]:
    limits = Limits.of(Settings(), loads)
    made = LaterFeed(lambda _: reader, SystemClock(), lambda: None, limits=limits, most_runs=MOST_RUNS)  # type: ignore[arg-type,return-value]
    made.held = held
    made.start(None)
    try:
        yield made
    finally:
        made.close(DEADLINE_S)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "POLL_S", 0.01)


@pytest.mark.parametrize("full", [Held(0, feed.AHEAD_BYTES), Held(MOST_RUNS, 0)], ids=["memory", "runs"])
def test_without_room_open_seconds_are_followed_and_none_is_opened(full: Held) -> None:
    reader = Reader()
    with started(reader, full) as made:
        assert reader.calls_until(NO_NEW_SECOND) == set()
        made.held = Held(full.runs * 6 // 10, full.size * 6 // 10)  # half of it has to be free
        for _ in range(3 * feed.READS_MAX):
            made.take()
            assert reader.calls.get(timeout=DEADLINE_S) == NO_NEW_SECOND
        made.held = Held(full.runs * 4 // 10, full.size * 4 // 10)
        made.take()
        assert reader.calls_until(AHEAD_S) <= {NO_NEW_SECOND}


@pytest.mark.parametrize("held", [Held(0, int(feed.AHEAD_BYTES * FULLEST)), Held(int(MOST_RUNS * FULLEST), 0)])
def test_nothing_is_read_beyond_a_quarter_more_than_the_bound(held: Held) -> None:
    reader = Reader()
    with started(reader, held):
        assert reader.calls_until("pause") == set()
        assert reader.calls.get(timeout=DEADLINE_S) == "pause"


def test_a_poll_that_is_not_complete_waits_for_room() -> None:
    reader = Reader()
    reader.more = True
    with started(reader, Held(0, 0)) as made:
        reader.calls_until(AHEAD_S)
        made.held = Held(0, feed.AHEAD_BYTES)
        made.take()
        assert reader.calls_until("pause") <= {AHEAD_S}
        assert reader.calls.get(timeout=DEADLINE_S) == "pause"
