"""The thread of one roll: writes this beat's line and reads those of the others, each heartbeat or sooner.

What it finds goes to the scheduling thread as a ``Look`` or as ``Unheard``. An error of the store is one of these
reports; it never leaves the thread, and the store is asked again with the next heartbeat. A line is written only while
the scheduling thread says one: a beat that is wedged falls silent and is taken over.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from queue import Empty
from typing import TYPE_CHECKING, Final, NamedTuple

from celery_wheelbeat.errors import RollDown, reason_of
from celery_wheelbeat.membership.attendance import HeardLine, Look, Unheard
from celery_wheelbeat.membership.line import BeatLine, InvalidLine
from celery_wheelbeat.runtime.mailbox import Mailbox, Wake
from celery_wheelbeat.runtime.owned_thread import OwnedThread, ThreadBody

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from celery_wheelbeat.membership import Heard, Peer, Roll
    from celery_wheelbeat.runtime.clock import Clock

logger = logging.getLogger("celery.beat")

WEDGED_S: Final = 10.0
"""An older line is not written any more."""


class _Written(NamedTuple):
    line: BeatLine
    at_s: float


class _Wish(NamedTuple):
    made_s: float
    look_at_s: float


class Keeper:
    """Keeps the line of this beat on one roll. The scheduling thread owns it; the thread owns ``roll``."""

    def __init__(
        self, name: str, roll: Roll, reports: Mailbox[Look | Unheard], wake: Callable[[], None], clock: Clock
    ) -> None:
        """``reports``: shared by all keepers of a beat. ``wake`` is called after each report."""
        self.name = name
        self._roll = roll
        self._reports = reports
        self._wake_owner = wake
        self._clock = clock
        self._heartbeat_s = 1.0
        self._said: _Written | None = None
        self._wish = _Wish(float("-inf"), float("inf"))
        self._began_s = float("-inf")
        self._last: BeatLine | None = None
        self._forgettable: frozenset[str] = frozenset()
        self._orders: Mailbox[Callable[[], object]] = Mailbox()
        self._rung = Wake()
        self._trouble = ""
        self._is_wedged = False
        self._refused: dict[str, str] = {}
        body = ThreadBody(self._turn, failed=self._failed, end=self._end, interrupt=self._rung.ring)
        self._thread = OwnedThread(f"wheelbeat-roll-{name}", clock, body)

    # The scheduling thread.

    def start(self, heartbeat_s: float) -> None:
        """Start the thread; it looks for the first time after ``say``."""
        self._heartbeat_s = heartbeat_s
        self._thread.start()

    def say(self, line: BeatLine, within_s: float) -> None:
        """Set the line; it is written with the next heartbeat, or ``within_s`` if that is sooner. Call it each tick."""
        now_s = self._clock.monotonic_s()
        was_silent = self._said is None or self._is_wedged
        self._said = _Written(line, now_s)
        if was_silent or now_s + within_s < self._due_s():
            self._wish = _Wish(now_s, now_s if was_silent else now_s + within_s)
            self._rung.ring()

    def fence(self, beat_id: str) -> None:
        """End the connection to the broker of a beat that is gone, if the roll can."""
        self._orders.put(lambda: self._roll.fence(beat_id))
        self._rung.ring()

    def forget(self, beat_ids: Collection[str]) -> None:
        """Delete the lines of these beats, and of no others, after the next look that succeeds."""
        self._forgettable = frozenset(beat_ids)

    def stop(self, last: BeatLine | None, timeout_s: float) -> None:
        """Ask the thread to write the ``last`` line and to end; ``join`` waits for it."""
        self._last = last
        self._thread.stop(timeout_s)

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, up to ``timeout_s``."""
        self._thread.join(timeout_s)

    @property
    def stamp_s(self) -> float:
        """Monotonic instant of the thread's last sign of life."""
        return self._thread.stamp_s

    # The keeper's thread.

    def _turn(self) -> float:
        self._rung.wait(min(self._heartbeat_s, self._due_s() - self._clock.monotonic_s()))
        with suppress(Empty):
            while not self._thread.is_stopping:
                self._orders.get()()
        if self._clock.monotonic_s() >= self._due_s() and not self._thread.is_stopping:
            self._look()
        return 0.0

    def _due_s(self) -> float:
        """Return when to look next: a heartbeat after the last look began, or earlier if that was wished since."""
        if self._said is None:
            return float("inf")
        regular_s = self._began_s + self._heartbeat_s
        return min(regular_s, self._wish.look_at_s) if self._wish.made_s >= self._began_s else regular_s

    def _look(self) -> None:
        self._began_s = began_s = self._clock.monotonic_s()
        said = self._said
        if said is None or self._falls_silent(began_s - said.at_s):
            return
        heard = self._roll.beat(said.line.to_text())
        ended_s = self._clock.monotonic_s()
        offset_ms = 0 if heard.now_ms is None else self._clock.wall_ms() - heard.now_ms
        lines = list(self._readable(heard))
        self._report(Look(self.name, said.line, lines, heard.order, heard.now_ms, began_s, ended_s, offset_ms))
        if self._trouble:
            self._trouble = ""
            logger.info("beat: The roll %s is read again", self.name)
        forgettable, self._forgettable = self._forgettable, frozenset()
        if forgettable:
            self._roll.forget(forgettable)

    def _falls_silent(self, silent_s: float) -> bool:
        wedged = silent_s > WEDGED_S
        if wedged and not self._is_wedged:
            logger.critical("beat: No tick for %.0f s: this beat falls silent, and others take its shards", silent_s)
        self._is_wedged = wedged
        return wedged

    def _readable(self, heard: Heard) -> Iterable[HeardLine]:
        """Yield the lines that can be read; one that cannot is logged once."""
        self._refused = {peer.beat_id: self._refused.get(peer.beat_id, "") for peer in heard.peers}
        for peer in heard.peers:
            try:
                line = BeatLine.from_text(peer.text, peer.beat_id)
            except InvalidLine as error:
                self._refuse(peer, error)
                continue
            if heard.now_ms is not None and peer.age_s is not None:
                line = line.not_ahead_of(heard.now_ms - round(peer.age_s * 1000))
            yield HeardLine(line, peer.counter, peer.age_s)

    def _refuse(self, peer: Peer, error: InvalidLine) -> None:
        if not self._refused[peer.beat_id]:
            logger.warning("beat: A line on the roll %s is left out: %s", self.name, error)
        self._refused[peer.beat_id] = str(error)

    def _failed(self, error: Exception) -> float:
        reason = str(error) if isinstance(error, RollDown) else reason_of(error)
        if not self._trouble:
            logger.warning("beat: The roll %s cannot be read: %s", self.name, reason)
        self._trouble = reason
        self._report(Unheard(self.name, reason))
        return 0.0

    def _report(self, report: Look | Unheard) -> None:
        self._reports.put(report)
        self._wake_owner()

    def _end(self) -> None:
        with suppress(Exception):  # others find out by the silence of this beat
            if self._last is not None:
                self._roll.leave(self._last.to_text())
        with suppress(Exception):  # the connection is discarded
            self._roll.close()
