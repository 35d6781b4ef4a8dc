"""This beat as one of several: looks in, decisions carried out, lines said.

Per tick: ``turn`` returns the runs that newly taken shards owe, ``move_marks`` ends it. ``leave`` and
``close`` end the process. Invariant: nothing is sent before the first look, or before ``ALONE_S`` without one.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import suppress
from queue import Empty
from typing import TYPE_CHECKING, Any, Final

from celery_wheelbeat.beat.standing.rolls import Tally
from celery_wheelbeat.beat.standing.voice import Voice
from celery_wheelbeat.engine.sharing.shard_marks import UNKNOWN_MS
from celery_wheelbeat.membership.attendance import Attendance, Look
from celery_wheelbeat.membership.decision import Damping, Situation, decide, entries_outside
from celery_wheelbeat.membership.line import Standing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_wheelbeat.beat.standing.holdings import Holdings
    from celery_wheelbeat.beat.standing.rolls import Rolls
    from celery_wheelbeat.dispatch.dispatcher import Dispatcher
    from celery_wheelbeat.engine.sharing.shard_marks import ShardMarks
    from celery_wheelbeat.jobs.definitions import DueBatch
    from celery_wheelbeat.membership.attendance import Roster
    from celery_wheelbeat.membership.decision import Actions
    from celery_wheelbeat.runtime.clock import Clock

logger = logging.getLogger("celery.beat")

ALONE_S: Final = 10.0
"""A beat that no roll has answered for so long after its start goes on alone."""
MARK_EVERY_S: Final = 0.2
TRIM_EVERY_S: Final = 1.0
PATIENT_BEATS: Final = 5.0
"""T + 2 H: while another beat can send, a broker that this one cannot reach costs no run before it is gone for so long.
"""


class Member:
    """The standing of one beat among those of its namespace."""

    def __init__(self, beat_id: str, rolls: Rolls, holdings: Holdings, dispatcher: Dispatcher, clock: Clock) -> None:
        self.beat_id = beat_id
        self.holdings = holdings
        self.tally = Tally()
        self.roster: Roster | None = None
        """As of the last decision."""
        self._rolls = rolls
        self._dispatcher = dispatcher
        self._clock = clock
        self._attendance = Attendance(rolls.heartbeat_s)
        self._damping = Damping()
        self.voice = Voice(beat_id, rolls, holdings, dispatcher, clock)
        self._entries: Mapping[str, int] = {}
        self._begun_s: float | None = None
        self._has_looked = False
        self._is_alone = False
        self._moved_s = self._trimmed_s = float("-inf")
        self._was_cut_off = False
        self._unowned: frozenset[int] = frozenset()
        """Shards that no beat sends, as of the last decision."""
        self._owners: dict[int, str] = {}
        """Shard → the other beat that said last that it sends it."""
        holdings.follow_all()

    @property
    def state(self) -> str:
        """``waiting`` (for the first look), ``alone``, or the standing that it says."""
        if self.waits:
            return "waiting"
        return "alone" if self._is_alone else self.voice.standing.value

    def as_json(self) -> dict[str, Any]:
        """Return the values of the status document."""
        live = {} if self.roster is None else self.roster.live
        return {
            "state": self.state,
            "shards": len(self.holdings.own),
            "members": 1 + len(live),
            "unowned": len(self._unowned),
            "takes": dict(self.tally.takes),
            "taken_while_alive": self.tally.taken_while_alive,
        }

    @property
    def waits(self) -> bool:
        """Whether it is not known yet what this beat sends: nothing is loaded before, for ``ALONE_S`` at most.

        A beat that finds no other one thus settles what was missed while it loads, as a beat without rolls does.
        """
        if self._begun_s is None or self._is_alone or self.holdings.own:
            return False
        return (not self._has_looked or bool(self.holdings.announced)) and not self._is_late(self._clock.monotonic_s())

    def begin(self, namespace: str, marks: ShardMarks | None) -> None:
        """Say for the first time that this beat is here; further calls do nothing.

        ``marks``: those that earlier beats have stored, None if there are none.
        """
        if self._begun_s is not None:
            return
        self._begun_s = self._clock.monotonic_s()
        if marks is not None:
            self.holdings.remember(marks)
        self._rolls.pulse.start()
        self.voice.open(namespace)
        self._say()

    def turn(self, *, loaded: bool) -> list[DueBatch]:
        """Take in what the keepers have found, decide, and carry it out; returns the runs to send.

        ``loaded``: all definitions are in the engine.
        """
        now_s = self._clock.monotonic_s()
        if now_s - self._trimmed_s >= TRIM_EVERY_S:
            self._trimmed_s = now_s
            self.holdings.forget_sent()
        if self._begun_s is None:
            return []
        looks = self._take_looks()
        self.voice.hears = not (looks or self._has_looked) or self._attendance.hears(now_s)
        due = self._go_on_alone(now_s) if not looks else []
        if looks and not self._has_looked:
            self._meet(now_s)
        if loaded and self.voice.standing is Standing.JOINING:
            self.voice.change(standing=Standing.READY)
            logger.info("beat: Everything is loaded; this beat takes its share")
        if looks or self.holdings.frozen:
            due += self._decide(now_s)
        self.holdings.give_away()
        self._watch_rolls(now_s)
        if looks:
            self._rolls.pulse.looked(max(look.began_s for look in looks))
        return due

    def move_marks(self, limit_ms: int, *, loaded: bool) -> int | None:
        """Move the marks of what this beat sends, none beyond ``limit_ms``, and say the line of this tick.

        Returns the earliest mark of all shards, None while one has none. ``loaded``: the marks of a beat that still
        loads stay.
        """
        now_s = self._clock.monotonic_s()
        self.holdings.limit_ms = limit_ms if loaded else UNKNOWN_MS
        if loaded and (now_s - self._moved_s >= MARK_EVERY_S or self.voice.standing is Standing.LEAVING):
            self._moved_s = now_s
            self.holdings.move_marks()
        self._say()
        return self.holdings.lowest_ms

    def may_send(self) -> bool:
        """Return whether a sender may write to the broker now. Called from any thread."""
        return self._rolls.pulse.may_send() and not (self._was_cut_off and self._rolls.stops_when_cut_off)

    # The end.

    def leave(self) -> None:
        """Say that this beat leaves, and send nothing new; what waits may still be sent."""
        self.voice.change(standing=Standing.LEAVING)
        holdings = self.holdings
        holdings.announced = frozenset()
        holdings.freeze(holdings.own - holdings.frozen.keys(), self._clock.monotonic_s())
        self._say()

    def say_last(self, timeout_s: float, *, settled: bool) -> None:
        """Give up every shard, and let the threads write the last line within ``timeout_s``.

        ``settled``: all outcomes are collected; else the marks stay as they are.
        """
        if settled:
            self.holdings.let_go(self.holdings.own)
        else:
            self.holdings.give_up()
        self.voice.say_last(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Wait for the threads."""
        self.voice.close(timeout_s)
        self._rolls.pulse.close(timeout_s)

    # Parts of a turn.

    def _take_looks(self) -> list[Look]:
        looks = []
        with suppress(Empty):
            while True:
                report = self._rolls.reports.get()
                if isinstance(report, Look):
                    self._attendance.note(report)
                    looks.append(report)
        for look in looks:
            order = self.voice.line.order or look.now_ms or self._clock.wall_ms()
            self.voice.change(order=order, offset_ms=look.offset_ms)
        return looks

    def _go_on_alone(self, now_s: float) -> list[DueBatch]:
        if self._has_looked or self._is_alone or not self._is_late(now_s):
            return []
        self._is_alone = True
        logger.error("beat: No roll answers; this beat sends everything, as if there were no other")
        return self.holdings.take(range(self.holdings.shards))

    def _is_late(self, now_s: float) -> bool:
        return self._begun_s is not None and now_s - self._begun_s >= ALONE_S

    def _meet(self, now_s: float) -> None:
        """Look around for the first time: without another beat that sends, this one need not load before it does."""
        self._has_looked = True
        others = self._attendance.roster(now_s).live.values()
        if all(line.standing is not Standing.READY for line in others):
            self.voice.change(standing=Standing.READY)
        logger.info("beat: This beat is %s; %d others are here", self.beat_id, len(others))

    def _decide(self, now_s: float) -> list[DueBatch]:
        holdings, roster = self.holdings, self._attendance.roster(now_s)
        before, self.roster = self.roster, roster
        self._log_gone(before, roster)
        holdings.hear([*roster.live.values(), *roster.gone.values()], self._dispatcher.destination)
        self.voice.change(own=holdings.own, able=self.voice.able(), damped=self._damping.damped(now_s))
        woken = self._rolls.pulse.woken or self._was_cut_off or self._is_alone
        actions = decide(Situation(self.voice.line, holdings.announced, holdings.frozen, woken), roster, now_s)
        self._is_alone = self._was_cut_off = False
        others_send = any(line.able and line.standing is Standing.READY for line in roster.live.values())
        self._dispatcher.have_patience(PATIENT_BEATS * self._rolls.heartbeat_s if others_send else 0.0)
        self._unowned = actions.unowned
        due = self._carry_out(actions, roster, now_s)
        due += self._send_entries(roster)
        self._owners.update((shard, beat_id) for beat_id, line in roster.live.items() for shard in line.own)
        return due

    def _carry_out(self, actions: Actions, roster: Roster, now_s: float) -> list[DueBatch]:
        holdings = self.holdings
        if actions.overtaken:
            self._note_overtaken(actions, now_s)
        if actions.let_go:
            given = holdings.let_go(actions.let_go)
            logger.info("beat: %d shards let go; %d waiting runs are left to their owners", len(actions.let_go), given)
        if actions.freeze:
            holdings.freeze(actions.freeze, now_s)
        due = holdings.thaw(actions.thaw) if actions.thaw else []
        drained = holdings.drained()
        if drained:
            holdings.let_go(drained)
            logger.info("beat: %d shards let go; nothing of them waits", len(drained))
        holdings.announced = actions.announce | actions.take
        if actions.take:
            for beat_id in actions.fence:
                for keeper in self.voice.keepers:
                    keeper.fence(beat_id)
            due += self._take(actions, roster)
        forgettable = self._attendance.forgettable(self.voice.whole(), now_s)
        for keeper in self.voice.keepers if forgettable else ():
            keeper.forget(forgettable)
        return due

    def know(self, entries: Mapping[str, int]) -> None:
        """Take note of the entries that this beat knows: ``entry_hash`` → job id."""
        if entries is not self._entries:
            self._entries = entries
            self.voice.know(entries)

    def _send_entries(self, roster: Roster) -> list[DueBatch]:
        """Send the entries that fall to this beat because their owners do not know them."""
        me, bits = self.voice.whole(), self.holdings.shards - 1
        if not self._entries or self.voice.standing is not Standing.READY:
            return []
        owners = {shard: line for line in roster.live.values() for shard in line.own}
        apart = {
            one: job_id
            for one, job_id in self._entries.items()
            if (owner := owners.get(job_id & bits)) is not None and not owner.knows(one, me.digest)
        }
        marks: dict[str, int] = {}
        for line in (*roster.live.values(), *roster.gone.values()):
            for one, mark in line.odd.items():
                marks[one] = max(mark, marks.get(one, mark))
        self.holdings.set_apart({job_id: marks.get(one, UNKNOWN_MS) for one, job_id in apart.items()})
        shards = {one: job_id & bits for one, job_id in apart.items()}
        mine = entries_outside(shards, me, roster.live.values()) if shards else frozenset()
        if mine - self.holdings.odd.keys():
            logger.warning(
                "beat: This beat sends %d entries outside of its share, since the beat that has their shards does not "
                "know them. Do two applications use the namespace?",
                len(mine),
            )
        return self.holdings.send_outside({one: apart[one] for one in mine}, marks)

    def _take(self, actions: Actions, roster: Roster) -> list[DueBatch]:
        causes = Counter(self._cause(self._owners.get(shard), roster) for shard in actions.take)
        self.tally.takes += causes
        due = self.holdings.take(actions.take)
        why = ", ".join(f"{shards} {cause}" for cause, shards in sorted(causes.items()))
        logger.info("beat: %d shards taken with %d runs (%s)", len(actions.take), sum(map(len, due)), why)
        return due

    @staticmethod
    def _cause(owner: str | None, roster: Roster) -> str:
        """Return why a shard is to be taken, from who had it last."""
        if owner in roster.live:
            return "let go"
        if owner is None or owner not in roster.gone:
            return "without a beat"
        return "of a beat that left" if roster.gone[owner].standing is Standing.LEFT else "of a beat that is gone"

    def _note_overtaken(self, actions: Actions, now_s: float) -> None:
        if not self._damping.damped(now_s):
            self.tally.taken_while_alive += len(actions.overtaken)
            logger.warning("beat: %d shards were taken by another beat while this one had them", len(actions.overtaken))
        self._damping.strike(now_s)

    def _log_gone(self, before: Roster | None, now: Roster) -> None:
        for beat_id in now.gone.keys() & (before.live.keys() if before is not None else ()):
            line = now.gone[beat_id]
            logger.warning("beat: The beat %s is %s; it had %d shards", beat_id, line.standing.value, len(line.own))

    def _watch_rolls(self, now_s: float) -> None:
        """Note when no roll can be reached any more."""
        longest_s = 2.5 * self._rolls.heartbeat_s  # shortly before others take the shards of this beat
        cut_off = self._has_looked and now_s - self._attendance.last_look_s > longest_s
        if cut_off and not self._was_cut_off and self.roster is not None and self.roster.live:
            self._was_cut_off = True
            what = "sends nothing" if self._rolls.stops_when_cut_off else "goes on sending its share"
            logger.error("beat: No roll can be reached; this beat %s", what)

    def _say(self) -> None:
        now_s = self._clock.monotonic_s()
        waiting = bool(self.holdings.announced) or self.voice.standing is Standing.LEAVING
        self.voice.say(self._attendance.next_look_s(now_s, announced=waiting))
