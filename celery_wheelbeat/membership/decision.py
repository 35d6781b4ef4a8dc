"""What a beat does after a look: let shards go, freeze them, announce them, take them. And who sends an entry.

Pure functions of the lists and of what this beat holds. Two beats that have read the same lines agree. Where they have
read different ones, a shard may have two owners, until the one that the assignment does not name lets go, or none for
one or two looks; it is never without one for good.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from celery_wheelbeat.membership.line import Standing
from celery_wheelbeat.membership.shares import Candidate, assign, senders

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from celery_wheelbeat.membership.attendance import Roster
    from celery_wheelbeat.membership.line import BeatLine

FREEZE_S: Final = 1.5
"""A frozen shard is let go after this time, even if runs of it are on their way."""
DAMPED_S: Final = 30.0
DAMPED_MAX_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Situation:
    """What this beat holds."""

    me: BeatLine
    """Its line as it would be written now; ``own`` holds the shards that it sends, frozen ones included, and nothing
    announced."""
    announced: frozenset[int] = frozenset()
    """Shards that it has announced and not yet taken."""
    frozen: Mapping[int, float] = field(default_factory=dict)
    """Frozen shard → since when."""
    woken: bool = False
    """Whether it was paused or cut off since its last decision."""


class Actions(NamedTuple):
    """What to do now. Shards that are not named stay as they are."""

    let_go: frozenset[int] = frozenset()
    """Stop at once; what waits goes back to the kept runs."""
    freeze: frozenset[int] = frozenset()
    """Keep new runs; let go when nothing of the shard is on its way any more."""
    thaw: frozenset[int] = frozenset()
    """Frozen, and to be sent again."""
    announce: frozenset[int] = frozenset()
    """Everything that is announced and not taken from now on; other announcements are withdrawn."""
    take: frozenset[int] = frozenset()
    """Send from the greatest known mark on."""
    fence: frozenset[str] = frozenset()
    """Beats that are gone and had a shard that is taken now."""
    overtaken: frozenset[int] = frozenset()
    """Shards that another live beat sends, although this one has them: it was taken over while alive."""
    unowned: frozenset[int] = frozenset()
    """Shards that no live beat sends."""


def decide(situation: Situation, roster: Roster, now_s: float) -> Actions:
    """Return what to do after a look. Without a roll that can be read, nothing changes."""
    me = situation.me
    others = {shard: line.beat_id for line in roster.live.values() for shard in line.own}
    unowned = frozenset(range(me.shards)) - others.keys() - me.own
    if not roster.shown:
        return Actions(announce=situation.announced, unowned=unowned)
    overtaken = frozenset(me.own & others.keys())
    target = assign(senders([_candidate(line) for line in (me, *roster.live.values())]), me.shards)
    if not target:  # nobody can send, so nothing moves
        return Actions(
            let_go=overtaken if situation.woken else frozenset(),
            announce=situation.announced - others.keys(),
            overtaken=overtaken,
            unowned=unowned,
        )
    mine = frozenset(shard for shard, beat_id in target.items() if beat_id == me.beat_id)
    let_go = overtaken if situation.woken else overtaken - mine
    others_turn = me.own - mine - let_go
    expired = frozenset(s for s, since_s in situation.frozen.items() if now_s - since_s > FREEZE_S)
    if not me.able:
        let_go |= others_turn
    else:
        let_go |= others_turn & expired
    wanted = mine - me.own - others.keys()
    if me.standing is not Standing.READY:
        wanted = frozenset()
    take = situation.announced & wanted
    for shown in roster.shown.values():
        take &= shown.own
    return Actions(
        let_go=let_go,
        freeze=others_turn - let_go - situation.frozen.keys(),
        thaw=(me.own & mine & situation.frozen.keys()) - let_go,
        announce=wanted - take,
        take=take,
        fence=frozenset(
            line.beat_id for line in roster.gone.values() if line.standing is not Standing.LEFT and line.own & take
        ),
        overtaken=overtaken,
        unowned=unowned,
    )


def _candidate(line: BeatLine) -> Candidate:
    return Candidate(
        order=line.order,
        beat_id=line.beat_id,
        ready=line.standing is Standing.READY and line.order > 0,
        able=bool(line.able),
        offset_ms=line.offset_ms,
        damped=line.damped,
        active=line.active,
        shards=line.shards,
    )


def entries_outside(entries: Mapping[str, int], me: BeatLine, live: Iterable[BeatLine]) -> frozenset[str]:
    """Return the entries that this beat sends although it does not have their shard.

    ``entries``: hash of each entry that it knows → its shard. An entry is sent by the owner of its shard if that beat
    knows it, else by the most senior live beat that does: a member may have other code, during a deploy or because two
    applications use one namespace.
    """
    lines = [me, *live]
    owners = {shard: line for line in lines for shard in line.own}
    outside = set()
    for entry, shard in entries.items():
        owner = owners.get(shard)
        if owner is None or owner.knows(entry, me.digest):
            continue  # without an owner, the beat that takes the shard is asked for first
        knowing = [line for line in lines if line.knows(entry, me.digest)]
        sending = [line for line in knowing if line.standing is Standing.READY and line.able] or knowing
        if min(sending, key=lambda line: (line.order, line.beat_id)) is me:
            outside.add(entry)
    return frozenset(outside)


class Damping:
    """A beat that was taken over while alive takes no part for 30 s, doubled each time up to 10 min."""

    def __init__(self) -> None:
        self._next_s = DAMPED_S
        self._until_s = float("-inf")

    def strike(self, now_s: float) -> None:
        """Note that the beat was taken over while alive; a strike while it is damped counts once."""
        if self.damped(now_s):
            return
        if now_s - self._until_s > DAMPED_MAX_S:
            self._next_s = DAMPED_S
        self._until_s = now_s + self._next_s
        self._next_s = min(DAMPED_MAX_S, 2 * self._next_s)

    def damped(self, now_s: float) -> bool:
        """Return whether the beat says that it is damped."""
        return now_s < self._until_s
