"""What one beat says of itself, the same on all its rolls.

The line is made from what the beat holds at that moment, so that its marks are true whenever a keeper writes it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from celery_wheelbeat import __version__
from celery_wheelbeat.dispatch.lane import FIRST_CONNECTION_S
from celery_wheelbeat.engine.sharing.shard_marks import UNKNOWN_MS
from celery_wheelbeat.membership.line import BeatLine, Standing, entries_said

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from celery_wheelbeat.beat.standing.holdings import Holdings
    from celery_wheelbeat.beat.standing.rolls import Rolls
    from celery_wheelbeat.dispatch.dispatcher import Dispatcher
    from celery_wheelbeat.membership.keeper import Keeper
    from celery_wheelbeat.runtime.clock import Clock

SAY_EVERY_S: Final = 0.2
"""Shortest time between two lines, unless what this beat sends has changed."""


class Voice:
    """Owned by ``Member``. ``line`` has what changes rarely; ``whole`` adds shards and marks."""

    def __init__(self, beat_id: str, rolls: Rolls, holdings: Holdings, dispatcher: Dispatcher, clock: Clock) -> None:
        self.line = BeatLine(beat_id, shards=holdings.shards, active=rolls.active, release=__version__)
        self.hears = True
        """Whether a roll was read lately, or none yet: a beat that hears nothing cannot take what it is named for."""
        self.keepers: Sequence[Keeper] = ()
        self._rolls = rolls
        self._holdings = holdings
        self._dispatcher = dispatcher
        self._clock = clock
        self._began_s = 0.0
        self._was_connected = False
        self._said_s = float("-inf")
        self._said: tuple[object, ...] = ()

    def open(self, namespace: str) -> None:
        """Start the keepers."""
        self._began_s = self._clock.monotonic_s()
        self.keepers = self._rolls.open(namespace)
        self.change(rolls=tuple(keeper.name for keeper in self.keepers))
        for keeper in self.keepers:
            keeper.start(self._rolls.heartbeat_s)

    def change(self, **values: Any) -> None:
        """Change fields of the line."""
        self.line = replace(self.line, **values)

    def know(self, hashes: Collection[str]) -> None:
        """Say which entries this beat knows."""
        entries, digest = entries_said(hashes)
        self.change(entries=entries, digest=digest)

    @property
    def standing(self) -> Standing:
        """How far this beat is in its life."""
        return self.line.standing

    def able(self) -> frozenset[str]:
        """Return the destination if its connection is up, or was never up and this beat has just started."""
        connected = self._dispatcher.health().connected
        self._was_connected |= connected
        if not self.hears:
            return frozenset()
        hopeful = not self._was_connected and self._clock.monotonic_s() - self._began_s < FIRST_CONNECTION_S
        return frozenset({self._dispatcher.destination}) if connected or hopeful else frozenset()

    def whole(self) -> BeatLine:
        """Return the line with what this beat holds now."""
        holdings, destination = self._holdings, self._dispatcher.destination
        own = holdings.own | holdings.announced
        return replace(
            self.line,
            own=own,
            able=self.able(),
            marks={destination: holdings.said(own)},
            left={destination: holdings.said(holdings.left)},
            odd={one: mark for one, mark in holdings.odd_marks.items() if mark != UNKNOWN_MS},
        )

    def say(self, within_s: float) -> None:
        """Let the keepers write the line within ``within_s``, or at once if what this beat sends has changed."""
        now_s = self._clock.monotonic_s()
        held = (self._holdings.own, self._holdings.announced, self.standing)
        changed = held != self._said
        if not self.keepers or (not changed and now_s - self._said_s < SAY_EVERY_S):
            return
        self._said_s, self._said = now_s, held
        self.change(number=self.line.number + 1)
        line = self.whole()
        for keeper in self.keepers:
            keeper.say(line, 0.0 if changed else within_s)

    def say_last(self, timeout_s: float) -> None:
        """Let the keepers write the last line and end within ``timeout_s``."""
        self.change(standing=Standing.LEFT, number=self.line.number + 1)
        last = self.whole()
        for keeper in self.keepers:
            keeper.stop(last, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Wait for the keepers."""
        for keeper in self.keepers:
            keeper.join(timeout_s)
