"""A world of beats that share the work: the pure modules of ``membership`` over rolls in memory, one seed = one world.

Events on one true time in ms. A member has a clock of its own, a keeper per roll in small, and the least that a beat
does with a decision: it sends what its shards owe up to its clock, and says marks. Not modelled: the engine, a broker
that loses what it took, threads.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.errors import RollDown
from celery_wheelbeat.membership.attendance import Attendance, HeardLine, Look
from celery_wheelbeat.membership.decision import Damping, Situation, decide
from celery_wheelbeat.membership.line import BeatLine, Standing

from .memory_roll import MemoryRoll, MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_wheelbeat.membership.decision import Actions

SHARDS = 8
HEARTBEAT_MS = 1_000
GONE_MS = 3_000
WAIT_MS = 1_000
"""Bound of one exchange with a roll."""
EPOCH_MS = 1_764_000_000_000
BROKER = "broker"
WATCH_MS = 250
FAULTS = (
    "kill",
    "leave",
    "join",
    "pause",
    "cut database",
    "cut redis",
    "cut broker",
    "database down",
    "redis down",
    "slow",
    "skew",
    "clock of the database",
    "forget",
)
GRACEFUL = ("leave", "join")


@dataclass
class Settings:
    """How a world is made."""

    beats: int = 3
    rolls: Sequence[str] = ("database", "redis")
    faults: Sequence[str] = ()
    active: int = 16
    length_ms: int = 30_000
    calm_ms: int = 15_000
    """Time without further faults at the end."""
    without: frozenset[str] = frozenset()
    """Rules that are taken away, to see that they are needed: ``announce``, ``left``, ``pulse``."""


class World:
    """Runs the events of one seed and watches the shards."""

    def __init__(self, seed: int, settings: Settings) -> None:
        self.random = random.Random(seed)
        self.settings = settings
        self.now_ms = 0
        self.step_ms = 0
        """How far the clock of the database was set."""
        self.up = dict.fromkeys((*settings.rolls, BROKER), True)
        self.stores = {
            name: MemoryStore(now_ms=lambda name=name: EPOCH_MS + self.now_ms + (name == "database") * self.step_ms)
            for name in settings.rolls
        }
        self.said: dict[str, BeatLine] = {}
        """Text in a roll → the line that it is; encoding has tests of its own."""
        self.members: list[Member] = []
        self.sent: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
        """Shard → (after, up to, beat) in fire times."""
        self.disturbed_ms = 0
        self.unowned_ms = dict.fromkeys(range(SHARDS), 0)
        """Since when no beat that can send has the shard."""
        self.longest_unowned_ms = 0
        self.two_owners_ms = 0
        self._events: list[tuple[int, int, Member | None, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = count()
        for _ in range(settings.beats):
            self.join(self.random.randrange(500))

    def at(self, delay_ms: int, member: Member | None, call: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (self.now_ms + delay_ms, next(self._numbers), member, call, arguments))

    def run(self) -> World:
        """Run all faults, then calm; everything that is due in the first part has been sent at the end."""
        self.at(500, None, self._watch)
        if self.settings.faults:
            self.at(6_000, None, self._misfortune)
        self.at(self.settings.length_ms, None, self._heal)
        while self._events[0][0] <= self.settings.length_ms + self.settings.calm_ms:
            self.now_ms, _, member, call, arguments = heapq.heappop(self._events)
            if member is None:
                call(*arguments)
            elif member.alive and self.now_ms < member.paused_until_ms:
                self.at(member.paused_until_ms - self.now_ms + self.random.randrange(5), member, call, *arguments)
            elif member.alive:
                member.wake()
                call(*arguments)
        return self

    def join(self, delay_ms: int) -> None:
        member = Member(self, f"beat-{len(self.members)}")
        self.members.append(member)
        self.at(delay_ms, member, member.begin)

    def reaches(self, member: Member, what: str) -> bool:
        return self.up[what] and what not in member.cut

    def lost(self) -> list[tuple[int, int]]:
        """Return (shard, fire time) from which on something was not sent; look after the first 8 s."""
        found = []
        for shard in range(SHARDS):
            reached = EPOCH_MS + 8_000
            for after, until, _ in sorted(self.sent[shard]):
                if after > reached:
                    break
                reached = max(reached, until)
            if reached < EPOCH_MS + self.settings.length_ms:
                found.append((shard, reached - EPOCH_MS))
        return found

    def copied_ms(self) -> int:
        """Return the sum of fire time that more than one beat has sent."""
        total = 0
        for stretches in self.sent.values():
            reached = 0
            for after, until, _ in sorted(stretches):
                total += max(0, min(until, reached) - after)
                reached = max(reached, until)
        return total

    def _watch(self) -> None:
        self.at(WATCH_MS, None, self._watch)
        owners: dict[int, int] = defaultdict(int)
        for member in self.members:
            if member.alive and self.now_ms >= member.paused_until_ms and self.reaches(member, BROKER):
                for shard in member.own:
                    owners[shard] += 1
        able = any(member.can_take() for member in self.members)
        if any(member.alive and self.now_ms < member.slow_until_ms for member in self.members):
            self.disturbed_ms = self.now_ms  # no bound is promised while looks take longer than they may
        self.two_owners_ms += WATCH_MS * sum(found > 1 for found in owners.values())
        for shard in range(SHARDS):
            if owners[shard] or not able:
                self.unowned_ms[shard] = self.now_ms
            since_ms = max(self.unowned_ms[shard], self.disturbed_ms)
            self.longest_unowned_ms = max(self.longest_unowned_ms, self.now_ms - since_ms)

    # Faults.

    def _misfortune(self) -> None:
        if self.now_ms >= self.settings.length_ms:
            return
        self.at(self.random.choice((900, 1_500, 3_000, 6_000, 9_000)), None, self._misfortune)
        self.disturbed_ms = self.now_ms
        fault = self.random.choice(self.settings.faults)
        ready = [one for one in self.members if one.can_take()]
        if fault == "join":
            if sum(one.alive for one in self.members) < 6:
                self.join(0)
            return
        if not ready:
            return
        member = self.random.choice(ready)
        if fault == "kill":
            member.advance()
            member.alive = False
            if self.now_ms < self.settings.length_ms - 15_000 or sum(one.can_take() for one in self.members) < 2:
                self.join(self.random.choice((500, 3_000, 8_000)))
        elif fault == "leave":
            if len(ready) > 1:
                self.at(0, member, member.leave)
                self.join(self.random.choice((0, 1_000, 4_000)))
        elif fault == "pause":
            member.advance()
            longest_ms = self.settings.length_ms - self.now_ms + 2_000
            pause_ms = min(longest_ms, self.random.choice((800, 1_600, 2_500, 3_500, 6_000, 15_000)))
            member.paused_until_ms = self.now_ms + pause_ms
            self.at(pause_ms, None, self._end, int)
        else:
            self._disturb(fault, member)

    def _disturb(self, fault: str, member: Member) -> None:
        what, _, how = fault.rpartition(" ")
        end_ms = self.random.choice((900, 2_500, 5_000, 12_000))
        if what == "cut":
            member.advance()
            member.cut.add(how)
            self.at(end_ms, None, self._end, member.cut.discard, how)
        elif how == "down":
            self.up[what] = False
            self.at(end_ms, None, self._end, self.up.__setitem__, what, True)
        elif fault == "slow":
            member.slow_until_ms = self.now_ms + end_ms
            self.at(end_ms, None, self._end, int)
        elif fault == "skew":
            member.advance()
            member.skew_ms += self.random.choice((-12_000, -3_000, -400, 400, 3_000, 12_000))
        elif fault == "forget":
            self.stores[self.random.choice(list(self.stores))].rows.clear()
        else:
            self.step_ms += self.random.choice((-20_000, -4_000, 4_000, 20_000))

    def _end(self, call: Callable[..., object], *arguments: Any) -> None:
        call(*arguments)
        self.disturbed_ms = self.now_ms

    def _heal(self) -> None:
        self.up = dict.fromkeys(self.up, True)
        self.step_ms = 0
        self.disturbed_ms = self.now_ms
        for member in self.members:
            member.advance()
            member.cut.clear()
            member.slow_until_ms = member.skew_ms = 0
        if not any(member.alive for member in self.members):
            self.join(0)


class Member:
    """One beat."""

    def __init__(self, world: World, beat_id: str) -> None:
        self.world = world
        self.beat_id = beat_id
        self.alive = True
        self.skew_ms = 0
        self.paused_until_ms = self.slow_until_ms = 0
        self.cut: set[str] = set()
        self.own: dict[int, int] = {}
        """Shard → mark."""
        self._standing = Standing.JOINING
        self._order = 0
        self._number = 0
        self._frozen: dict[int, float] = {}
        self._frozen_mark: dict[int, int] = {}
        self._left: dict[int, int] = {}
        self._best: dict[int, int] = {}
        self._announced: frozenset[int] = frozenset()
        self._attendance = Attendance(HEARTBEAT_MS / 1000)
        self._damping = Damping()
        self._offset_ms = 0
        self._cut_since_ms: int | None = None
        self._seen_ms = world.now_ms
        self._woken_ms: int | None = None
        self._was_paused = False
        self._rolls = {
            name: MemoryRoll(store, "site", beat_id, lambda name=name: world.reaches(self, name))
            for name, store in world.stores.items()
        }
        self._look_ms = dict.fromkeys(self._rolls, 0)
        self._looking = dict.fromkeys(self._rolls, False)

    def can_take(self) -> bool:
        world = self.world
        heard = any(world.reaches(self, name) for name in self._rolls) and world.now_ms >= self.slow_until_ms
        awake = self.alive and world.now_ms >= self.paused_until_ms
        return awake and heard and self._standing is Standing.READY and world.reaches(self, BROKER)

    @property
    def _wall_ms(self) -> int:
        return EPOCH_MS + self.world.now_ms + self.skew_ms

    @property
    def _now_s(self) -> float:
        return self.world.now_ms / 1000

    def begin(self) -> None:
        for name in self._rolls:
            self._wish(name, self.world.random.randrange(50))
        self.world.at(self.world.random.choice((200, 600, 2_000, 5_000)), self, self._loaded)

    def _loaded(self) -> None:
        if self._order:
            self._standing = Standing.READY
            self.world.disturbed_ms = self.world.now_ms
            self._wish_all(0)
        else:
            self.world.at(300, self, self._loaded)

    def wake(self) -> None:
        """Notice a pause, as ``Pulse`` does; called before each event of this member."""
        if self.world.now_ms - self._seen_ms > 1_000 + HEARTBEAT_MS and "pulse" not in self.world.settings.without:
            self._woken_ms, self._was_paused = self.world.now_ms, True
        self._seen_ms = self.world.now_ms

    def leave(self) -> None:
        self._standing = Standing.LEAVING
        self.advance()
        for shard in self.own:
            self._freeze(shard)
        self._wish_all(0)
        self.world.at(self.world.random.randrange(20, 1_000), self, self._leave_for_good)

    def _leave_for_good(self) -> None:
        self.advance()
        for shard in list(self.own):
            self._let_go(shard)
        self._standing = Standing.LEFT
        for roll in self._rolls.values():
            with suppress(RollDown):
                roll.leave(self._text())
        self.alive = False

    # Sending.

    def advance(self) -> None:
        """Send what the shards owe up to now."""
        world = self.world
        if not self.alive or not world.reaches(self, BROKER) or world.now_ms < self.paused_until_ms:
            return
        if self._woken_ms is not None and world.now_ms - self._woken_ms <= 2_000:
            return
        for shard, mark in self.own.items():
            until_ms = self._frozen_mark.get(shard, self._wall_ms)
            if until_ms > mark:
                world.sent[shard].append((mark, until_ms, self.beat_id))
                self.own[shard] = until_ms

    def _freeze(self, shard: int) -> None:
        if shard not in self._frozen:
            self._frozen[shard] = self._now_s
            self._frozen_mark[shard] = max(self.own[shard], self._wall_ms)
            self.world.at(self.world.random.randrange(20, 400), self, self._settle, shard)

    def _settle(self, shard: int) -> None:
        """Nothing of a frozen shard is on its way any more: let it go, if the broker took everything."""
        self.advance()
        if shard in self._frozen and self.own[shard] >= self._frozen_mark[shard]:
            self._let_go(shard)
            self._wish_all(0)

    def _let_go(self, shard: int) -> None:
        self._frozen.pop(shard, None)
        self._frozen_mark.pop(shard, None)
        self._left[shard] = self.own.pop(shard)
        self._best[shard] = max(self._best.get(shard, 0), self._left[shard])

    # The rolls.

    def _line(self) -> BeatLine:
        self.advance()
        self._number += 1
        first = {shard: self._best[shard] for shard in self._announced if shard in self._best}
        able = self.world.reaches(self, BROKER)
        self._cut_since_ms = None if able else self._cut_since_ms or self.world.now_ms
        if self._cut_since_ms is not None and self.world.now_ms - self._cut_since_ms < 1_000:
            able = True  # noticed after a second
        able = able and self._attendance.hears(self._now_s)
        return BeatLine(
            self.beat_id,
            number=self._number,
            standing=self._standing,
            order=self._order,
            shards=SHARDS,
            own=frozenset(self.own) | self._announced,
            able=frozenset({BROKER} if able else ()),
            marks={BROKER: first | self.own},
            left={} if "left" in self.world.settings.without else {BROKER: dict(self._left)},
            active=self.world.settings.active,
            damped=self._damping.damped(self._now_s),
            offset_ms=self._offset_ms,
        )

    def _text(self) -> str:
        line = self._line()
        text = f"{line.beat_id} {line.number}"
        self.world.said[text] = line
        return text

    def _wish_all(self, within_ms: int) -> None:
        for name in self._rolls:
            self._wish(name, within_ms)

    def _wish(self, name: str, within_ms: int) -> None:
        at_ms = self.world.now_ms + within_ms
        if at_ms < self._look_ms[name] or self._look_ms[name] <= self.world.now_ms:
            self._look_ms[name] = at_ms
            self.world.at(within_ms, self, self._look, name, at_ms)

    def _look(self, name: str, wished_ms: int) -> None:
        if self._look_ms[name] != wished_ms or self._looking[name]:
            return  # another look came before
        self._looking[name] = True
        latency_ms = self.world.random.randrange(1, 8)
        if self.world.now_ms < self.slow_until_ms:
            latency_ms = self.world.random.choice((300, 900, 2_600))
        began_ms = self.world.now_ms
        if latency_ms > WAIT_MS or not self.world.reaches(self, name):
            self.world.at(WAIT_MS, self, self._failed, name, began_ms)
            self.world.at(latency_ms // 2, self, self._write_late, name)  # the store may still take the line
        else:
            self.world.at(latency_ms // 2, self, self._exchange, name, began_ms, latency_ms)

    def _write_late(self, name: str) -> None:
        with suppress(RollDown):
            self._rolls[name].beat(self._text())

    def _exchange(self, name: str, began_ms: int, latency_ms: int) -> None:
        text = self._text()
        try:
            heard = self._rolls[name].beat(text)
        except RollDown:
            self.world.at(WAIT_MS, self, self._failed, name, began_ms)
            return
        lines = []
        for peer in heard.peers:
            line = self.world.said[peer.text].not_ahead_of(heard.now_ms - round(peer.age_s * 1000))
            lines.append(HeardLine(line, peer.counter, peer.age_s))
        offset_ms = self._wall_ms - heard.now_ms
        look = Look(name, self.world.said[text], lines, heard.order, heard.now_ms, began_ms / 1000, 0.0, offset_ms)
        self.world.at(latency_ms - latency_ms // 2, self, self._heard, look, began_ms)

    def _failed(self, name: str, began_ms: int) -> None:
        self._looking[name] = False
        self._wish(name, max(0, began_ms + HEARTBEAT_MS - self.world.now_ms))

    def _heard(self, look: Look, began_ms: int) -> None:
        self._looking[look.roll] = False
        self._look_ms[look.roll] = self.world.now_ms
        look = look._replace(ended_s=self._now_s)
        self._order = self._order or look.order
        if look.roll == self.world.settings.rolls[0]:
            self._offset_ms = look.offset_ms
        self._attendance.note(look)
        self._learn(look)
        if self._standing is Standing.READY:
            self._decide(look)
        if self.world.random.random() < 0.1:
            forgettable = self._attendance.forgettable(self._line(), self._now_s)
            if forgettable and self.world.reaches(self, look.roll):
                self._rolls[look.roll].forget(forgettable)
        rest_s = self._attendance.next_look_s(self._now_s, announced=bool(self._announced))
        for name in self._rolls:
            if not self._looking[name]:
                self._wish(name, max(1, min(round(rest_s * 1000), began_ms + HEARTBEAT_MS - self.world.now_ms)))

    def _learn(self, look: Look) -> None:
        """Take in the marks of others; what another line has need not stay among those that were left."""
        for heard in look.heard:
            for marks in (heard.line.marks, heard.line.left):
                for shard, mark in marks.get(BROKER, {}).items():
                    self._best[shard] = max(mark, self._best.get(shard, 0))
                    if mark >= self._left.get(shard, mark + 1):
                        del self._left[shard]

    def _decide(self, look: Look) -> None:
        woken = self._was_paused and look.began_s * 1000 >= (self._woken_ms or 0)
        me = replace(self._line(), own=frozenset(self.own))
        situation = Situation(me, self._announced, self._frozen, woken)
        actions = decide(situation, self._attendance.roster(self._now_s), self._now_s)
        if woken:
            self._was_paused, self._woken_ms = False, None
        elif actions.overtaken:
            self._damping.strike(self._now_s)
        self._act(actions)

    def _act(self, actions: Actions) -> None:
        if "announce" in self.world.settings.without:
            actions = actions._replace(announce=frozenset(), take=actions.take | actions.announce)
        for shard in actions.let_go:
            self._let_go(shard)
        self.advance()
        for shard in actions.freeze:
            self._freeze(shard)
        for shard in actions.thaw:
            del self._frozen[shard], self._frozen_mark[shard]
        for shard in actions.take:
            self.own[shard] = self._best.get(shard, EPOCH_MS)
            self._left.pop(shard, None)
        fresh = actions.announce - self._announced
        self._announced = actions.announce
        if actions.let_go or fresh:
            self._wish_all(1)


def drawn(seed: int) -> World:
    """Return the world of a seed: 1 to 4 beats, one or two rolls, up to four kinds of fault."""
    choose = random.Random(seed * 31 + 5)
    rolls = choose.choice((("database", "redis"), ("database", "redis"), ("database",), ("redis",)))
    absent = {"database", "redis"} - {*rolls}
    faults = [one for one in choose.sample(FAULTS, choose.randint(1, 4)) if not absent & {*one.split()}]
    beats, active = choose.randint(1, 4), choose.choice((16, 16, 1, 2))
    return World(seed, Settings(beats=beats, rolls=rolls, faults=faults, active=active))
