"""A roll in memory, whose clock and whose reach a test decides."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_wheelbeat.errors import RollDown
from celery_wheelbeat.membership import Heard, Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Row:
    """What the store holds of one beat."""

    namespace: str
    order: int
    counter: int
    written_ms: int
    text: str


@dataclass
class MemoryStore:
    """What all rolls of a test share."""

    now_ms: Callable[[], int] = _wall_ms
    rows: dict[str, Row] = field(default_factory=dict)
    fenced: list[str] = field(default_factory=list)
    """Beats whose connection was ended."""
    can_fence: bool = False
    last_order: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class MemoryRoll:
    """``Roll`` in a ``MemoryStore``. While ``reaches()`` is False, the store is down for this beat."""

    def __init__(
        self, store: MemoryStore, namespace: str, beat_id: str, reaches: Callable[[], bool] = lambda: True
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._beat_id = beat_id
        self._reaches = reaches

    def beat(self, text: str) -> Heard:
        with self._reached():
            now_ms = self._store.now_ms()
            row = self._store.rows.get(self._beat_id)
            if row is None:
                self._store.last_order += 1
                row = self._store.rows[self._beat_id] = Row(self._namespace, self._store.last_order, 0, 0, "")
            row.counter, row.written_ms, row.text = row.counter + 1, now_ms, text
            peers = [
                Peer(beat_id, other.order, other.counter, (now_ms - other.written_ms) / 1000, other.text)
                for beat_id, other in self._store.rows.items()
                if beat_id != self._beat_id and other.namespace == self._namespace
            ]
            return Heard(peers, row.order, now_ms)

    def leave(self, text: str) -> None:
        self.beat(text)

    def fence(self, beat_id: str) -> bool:
        with self._reached():
            self._store.fenced.append(beat_id)
            return self._store.can_fence

    def forget(self, beat_ids: Collection[str]) -> None:
        with self._reached():
            for beat_id in beat_ids:
                row = self._store.rows.get(beat_id)
                if row is not None and row.namespace == self._namespace:
                    del self._store.rows[beat_id]

    def close(self) -> None:
        """Nothing is open."""

    def _reached(self) -> threading.Lock:
        if not self._reaches():
            raise RollDown("roll in memory: out of reach")
        return self._store.lock
