"""One beat among several, on rolls of a test: what it takes, follows, freezes, lets go and says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.engine.definitions import Job, batch_of, changes_of

from celery_wheelbeat.beat.standing.holdings import Holdings
from celery_wheelbeat.beat.standing.member import ALONE_S, Member
from celery_wheelbeat.beat.standing.rolls import Rolls
from celery_wheelbeat.dispatch import PublisherHealth
from celery_wheelbeat.dispatch.backlog import Backlog
from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.engine.sharing.shard_marks import ShardMarks
from celery_wheelbeat.jobs.definitions import Route
from celery_wheelbeat.membership.attendance import HeardLine, Look
from celery_wheelbeat.membership.line import BeatLine, Standing
from celery_wheelbeat.membership.shares import assign
from celery_wheelbeat.runtime.mailbox import Mailbox
from celery_wheelbeat.schedules.cron import CronTable
from celery_wheelbeat.schedules.kinds import NEVER_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_wheelbeat.dispatch.pending import PendingRuns

NOW_MS = 1_700_000_000_000
SHARDS = 4
ALL = frozenset(range(SHARDS))


@dataclass
class Hands:
    """A clock that a test moves."""

    now_s: float = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return NOW_MS + round(1000 * (self.now_s - 100))


@dataclass
class OneBacklog:
    """A dispatcher that is one backlog, of which the test confirms what it likes."""

    backlog: Backlog
    connected: bool = True
    patience_s: float = 0.0
    destination: str = "broker"

    def health(self) -> PublisherHealth:
        return PublisherHealth(self.connected, 0, 0.0)

    def oldest_by_shard(self, shards: int) -> np.ndarray:
        oldest_ms = np.full(shards, NEVER_MS)
        self.backlog.oldest_by_shard(oldest_ms)
        return oldest_ms

    def take_out(self, where: np.ndarray) -> PendingRuns:
        return self.backlog.take_out(where)

    def have_patience(self, least_s: float) -> None:
        self.patience_s = least_s


@dataclass
class OneKeeper:
    """A keeper whose looks the test makes."""

    name: str = "roll"
    said: list[BeatLine] = field(default_factory=list)
    fenced: list[str] = field(default_factory=list)
    last: BeatLine | None = None

    def start(self, _heartbeat_s: float) -> None: ...

    def say(self, line: BeatLine, _within_s: float) -> None:
        self.said.append(line)

    def fence(self, beat_id: str) -> None:
        self.fenced.append(beat_id)

    def forget(self, beat_ids: Any) -> None: ...

    def stop(self, last: BeatLine, _timeout_s: float) -> None:
        self.last = last

    def join(self, _timeout_s: float) -> None: ...


class StillPulse:
    """A pulse whose process the test pauses."""

    woken = False

    def start(self) -> None: ...

    def may_send(self) -> bool:
        return not self.woken

    def looked(self, _began_s: float) -> None:
        self.woken = False

    def close(self, _timeout_s: float) -> None: ...


class Post:
    """A member with its engine, and the other beats as a list of lines."""

    def __init__(self, *, backlog_max: int = 1_000_000, **options: Any) -> None:
        self.hands, self.keeper, self.pulse = Hands(), OneKeeper(), StillPulse()
        config = EngineConfig(shards=SHARDS, window_ms=60_000, backlog_max=backlog_max)
        self.engine = Engine(config, CronTable(), Ledger())
        self.engine.routes.intern(Route("probe"))
        self.engine.start(NOW_MS)
        self.dispatcher = OneBacklog(
            Backlog(self.engine.ledger, limit=1_000, keep_all=lambda ids: np.ones(len(ids), np.bool_))
        )
        self.reports: Mailbox[Any] = Mailbox()
        rolls = Rolls(lambda _namespace: [self.keeper], self.reports, self.pulse, 1.0, 16, **options)
        holdings = Holdings(self.engine, self.dispatcher)
        self.member = Member("me", rolls, holdings, self.dispatcher, self.hands)
        self.others: dict[str, BeatLine] = {}
        self.silent: set[str] = set()
        self.counter = 0
        self.loaded = True

    def begin(self, mark_ms: int | None = None) -> None:
        """Begin, with a job that fires each second in each shard."""
        jobs = [Job(job_id, interval_ms=1_000, offset_ms=0) for job_id in range(SHARDS)]
        self.engine.apply(changes_of(self.engine.crons, *jobs))
        self.member.begin("site", None if mark_ms is None else ShardMarks.uniform(self.member.holdings.shards, mark_ms))

    def other(self, beat_id: str, *own: int, mark_ms: int = NOW_MS, **values: Any) -> None:
        """Let another beat say a line."""
        line = BeatLine(
            beat_id,
            shards=SHARDS,
            own=frozenset(own),
            order=2,
            able=frozenset({"broker"}),
            standing=Standing.READY,
            marks={"broker": dict.fromkeys(own, mark_ms)},
        )
        number = self.others[beat_id].number + 1 if beat_id in self.others else 0
        self.others[beat_id] = replace(line, number=number, **values)

    def look(self, seconds: float = 1.0) -> None:
        """Let time pass and look at the roll once."""
        self.hands.now_s += seconds
        self.counter += 1
        heard = [
            HeardLine(line, 0 if beat_id in self.silent else self.counter, None)
            for beat_id, line in self.others.items()
        ]
        self.reports.put(Look("roll", self.keeper.said[-1], heard, 1, None, self.hands.now_s - 0.01, self.hands.now_s))
        self.turn()

    def turn(self) -> None:
        """One tick."""
        due = self.member.turn(loaded=self.loaded)
        for batch in [*due, *self.engine.advance(self.hands.wall_ms())]:
            self.dispatcher.backlog.offer(batch)
        self.member.move_marks(NEVER_MS, loaded=self.loaded)

    def send(self) -> list[tuple[int, int]]:
        """Send everything that waits; returns job and second of each run."""
        lease = self.dispatcher.backlog.take(1_000)
        runs = self.dispatcher.backlog.confirm([lease.token])
        return sorted(zip(runs.ids.tolist(), ((runs.fire_ms - NOW_MS) // 1000).tolist(), strict=True))

    @property
    def own(self) -> frozenset[int]:
        return self.member.holdings.own

    @property
    def line(self) -> BeatLine:
        return self.keeper.said[-1]


@pytest.fixture
def post() -> Post:
    return Post()


def jobs_of(runs: Sequence[tuple[int, int]]) -> set[int]:
    """The jobs of runs; a job has the number of its shard."""
    return {job_id for job_id, _ in runs}


def test_alone_it_announces_everything_and_takes_it_with_the_next_look(post: Post):
    post.begin()
    assert post.member.waits
    post.look(0.1)
    assert post.line.own == ALL
    assert post.own == frozenset()
    assert post.member.waits
    post.look(0.1)
    assert post.own == ALL
    assert not post.member.waits
    post.look(1.0)
    assert jobs_of(post.send()) == ALL


def test_beside_another_beat_it_follows_until_it_is_loaded_and_then_takes_what_that_one_lets_go(post: Post):
    post.loaded = False
    post.other("her", *ALL)
    post.begin()
    post.look()
    assert post.line.standing is Standing.JOINING
    assert not post.member.waits
    post.loaded = True
    post.look()
    assert post.line.standing is Standing.READY
    assert post.own == frozenset()
    mine = frozenset(shard for shard, beat_id in assign(["me", "her"], SHARDS).items() if beat_id == "me")
    post.other("her", *(ALL - mine), left={"broker": dict.fromkeys(mine, NOW_MS + 1_000)})
    post.look(0.2)
    assert post.line.own == mine
    post.look(0.2)
    assert post.own == mine
    assert all(second > 1 for _, second in post.send())


def held_beside_her(post: Post) -> None:
    """Bring this beat and another one to half of the shards each."""
    post.begin(NOW_MS)
    post.look(0.1)
    post.look(0.1)
    post.other("her")
    post.look()
    post.send()
    for _ in range(3):
        post.look()
        post.send()
    post.other("her", *(ALL - post.own), mark_ms=int(post.member.holdings.marks_ms.max()))
    post.look()
    assert len(post.own) == 2


def test_what_it_lets_go_is_drained_and_its_mark_is_said_until_the_other_one_has_it(post: Post):
    post.begin(NOW_MS)
    post.look(0.1)
    post.look(0.1)
    post.look(1.0)
    post.other("her")
    post.look(0.5)  # two shards freeze: what waits of them is still to be sent
    assert len(post.member.holdings.frozen) == 2
    assert post.own == ALL
    assert jobs_of(post.send()) == ALL
    post.look(0.5)
    assert len(post.own) == 2
    gone = ALL - post.own
    assert post.line.left["broker"] == dict.fromkeys(gone, NOW_MS + 1_000)
    post.look(1.0)
    assert jobs_of(post.send()) == post.own
    post.other("her", *gone, mark_ms=NOW_MS + 1_000)
    post.look(0.5)
    assert post.line.left["broker"] == {}


def test_a_beat_that_is_silent_for_three_seconds_is_taken_over_from_its_mark_and_fenced(post: Post):
    held_beside_her(post)
    hers = ALL - post.own
    mark_s = (post.hands.wall_ms() - NOW_MS) // 1000
    post.other("her", *hers, mark_ms=NOW_MS + 1000 * mark_s)
    post.look()
    post.send()
    post.silent.add("her")
    post.look(0.5)
    assert jobs_of(post.send()) <= post.own | hers
    for _ in range(5):
        post.look(1.0)
    assert post.own == ALL
    assert post.keeper.fenced == ["her"]
    runs = [run for run in post.send() if run[0] in hers]
    now_s = (post.hands.wall_ms() - NOW_MS) // 1000
    assert {second for _, second in runs} == set(range(mark_s + 1, now_s + 1))
    assert post.member.tally.takes["of a beat that is gone"] == 2
    assert post.engine.ledger.difference(post.dispatcher.backlog.pending) == 0


def test_after_a_pause_it_lets_go_what_another_beat_has_taken_and_gives_its_runs_away(post: Post):
    post.begin(NOW_MS)
    post.look(0.1)
    post.look(0.1)
    post.pulse.woken = True
    post.hands.now_s += 10
    post.turn()
    assert not post.member.may_send()
    assert post.dispatcher.backlog.waiting > 0
    post.other("her", *ALL, mark_ms=NOW_MS + 9_000)
    post.look(0.1)
    assert post.own == frozenset()
    assert post.dispatcher.backlog.waiting == 0
    assert post.engine.ledger.handed_on == 40
    assert post.member.may_send()
    assert post.member.tally.taken_while_alive == SHARDS
    assert post.engine.ledger.difference(0) == 0


def test_without_its_broker_it_lets_go_at_once_if_another_beat_can_send(post: Post):
    held_beside_her(post)
    mine = post.own
    assert post.dispatcher.patience_s == 5.0
    post.dispatcher.connected = False
    post.turn()
    post.look(1.0)
    assert post.own == frozenset()
    assert post.line.left["broker"].keys() >= mine


def test_an_entry_that_its_owner_does_not_know_is_sent_by_the_most_senior_beat_that_does(post: Post):
    """Nothing is lost when that beat is gone: the next one goes on from the mark of the entry."""
    held_beside_her(post)
    (entry, _) = sorted(ALL - post.own)
    hers = {"entries": frozenset({"other"}), "marks": {"broker": dict.fromkeys(ALL - post.own, NOW_MS + 10**9)}}
    post.member.know({"mine": entry})
    third = {"order": 0, "entries": frozenset({"mine"}), "damped": True}
    post.other("her", *(ALL - post.own), **hers)
    post.other("third", **third, odd={"mine": NOW_MS + 9_000})
    post.look()
    assert entry not in jobs_of(post.send())
    first_s = (post.hands.wall_ms() - NOW_MS) // 1000
    post.other("third", **third, odd={"mine": NOW_MS + 1000 * first_s})
    post.silent.add("third")
    runs = []
    for _ in range(5):
        post.look()
        runs += post.send()
    last_s = (post.hands.wall_ms() - NOW_MS) // 1000
    assert [second for job_id, second in runs if job_id == entry] == list(range(first_s + 1, last_s + 1))
    post.look()
    assert post.line.odd == {"mine": NOW_MS + 1000 * (last_s + 1) - 1}  # before the run that waits
    post.send()
    post.other("her", *(ALL - post.own), **{**hers, "entries": frozenset({"mine"})})
    post.look()
    post.send()
    post.look()
    assert entry not in jobs_of(post.send())
    assert post.engine.ledger.difference(0) == 0


def test_leaving_gives_up_every_shard_with_a_mark_before_what_was_not_sent(post: Post):
    post.begin(NOW_MS)
    post.look(0.1)
    post.look(0.1)
    post.look(1.0)
    post.member.leave()
    assert post.line.standing is Standing.LEAVING
    lease = post.dispatcher.backlog.take(2)
    sent = post.dispatcher.backlog.confirm([lease.token])
    post.member.say_last(1.0, settled=True)
    last = post.keeper.last
    assert last is not None
    assert (last.standing, last.own) == (Standing.LEFT, frozenset())
    unsent = ALL - set(sent.ids.tolist())
    assert {shard for shard, mark_ms in last.left["broker"].items() if mark_ms < NOW_MS + 1_000} == unsent


def test_a_beat_that_no_roll_answers_goes_on_alone_after_a_while(post: Post):
    post.begin(NOW_MS)
    post.turn()
    assert post.member.waits
    post.hands.now_s += ALONE_S
    post.turn()
    assert post.member.state == "alone"
    assert jobs_of(post.send()) == ALL
    post.other("her", *ALL, mark_ms=post.hands.wall_ms())
    post.look()
    assert post.own == frozenset()


def test_a_beat_that_hears_nothing_says_that_it_is_not_able_and_keeps_what_it_has(post: Post):
    held_beside_her(post)
    own = post.own
    post.hands.now_s += 3.1
    post.turn()
    assert (post.line.able, post.own) == (frozenset(), own)
    post.look(0.1)
    post.look()
    assert (post.line.able, post.own) == ({"broker"}, own)


@pytest.mark.parametrize(("stops", "may"), [(True, False), (False, True)])
def test_cut_off_from_every_roll_it_goes_on_or_stops(stops: bool, may: bool):
    post = Post(stops_when_cut_off=stops)
    held_beside_her(post)
    post.hands.now_s += 2.6
    post.turn()
    assert post.member.may_send() is may
    post.look(0.1)
    assert post.member.may_send()


def test_what_it_follows_is_bounded_before_it_has_begun():
    """Without a namespace, it says nothing and takes nothing for as long as the database is away."""
    post = Post(backlog_max=10)
    post.engine.apply(changes_of(post.engine.crons, Job(1, interval_ms=1_000, offset_ms=0)))
    for _ in range(30):
        post.hands.now_s += 1
        post.turn()
        assert len(post.engine.share.followed) <= 11


def test_a_clock_set_back_lowers_the_marks_of_what_it_sends_outside_of_its_share(post: Post):
    """Others would lower them to the present instead, and forget what is not sent yet."""
    post.begin(NOW_MS)
    post.member.holdings.odd_marks = {"hash": NOW_MS}
    post.member.holdings.step_back(NOW_MS - 60_000)
    assert post.member.holdings.odd_marks == {"hash": NOW_MS - 60_000}


def test_what_it_lets_go_at_its_end_has_no_mark_beyond_a_step_forward_that_has_not_held(post: Post):
    """A start under the right clock would ignore a stored mark that lies ahead."""
    post.begin(NOW_MS)
    post.look(0.1)
    post.look(0.1)
    post.look(60.0)
    post.send()
    post.member.leave()
    post.member.move_marks(NOW_MS + 1_000, loaded=True)
    post.member.say_last(1.0, settled=True)
    assert post.keeper.last is not None
    assert set(post.keeper.last.left["broker"].values()) == {NOW_MS + 1_000}


def test_what_it_lets_go_before_everything_is_loaded_keeps_its_mark(post: Post):
    """What has not been loaded has missed what came after the mark."""
    post.loaded = False
    post.begin(NOW_MS)
    post.look(0.1)
    post.look(0.1)
    assert post.own == ALL
    post.look(60.0)
    post.send()
    post.member.leave()
    post.member.move_marks(NEVER_MS, loaded=False)
    post.member.say_last(1.0, settled=True)
    assert post.keeper.last is not None
    assert post.keeper.last.left["broker"] == dict.fromkeys(ALL, NOW_MS)


def test_what_is_loaded_while_its_shard_is_frozen_is_sent_from_the_mark_on(post: Post):
    mark_ms = NOW_MS - 20_000
    post.loaded = False
    post.begin(mark_ms)
    post.look(0.1)
    post.look(0.1)
    post.look(1.0)
    post.other("her")
    post.look(0.5)
    (shard, _) = sorted(post.member.holdings.frozen)
    late = batch_of([Job(shard + SHARDS, interval_ms=1_000, offset_ms=0)], post.engine.crons)
    for batch in post.engine.load(late, {"broker": ShardMarks.uniform(SHARDS, mark_ms)}):
        post.dispatcher.backlog.offer(batch)
    post.other("her", standing=Standing.LEFT)
    post.look(0.3)
    assert not post.member.holdings.frozen
    seconds = {second for job_id, second in post.send() if job_id == shard + SHARDS}
    assert seconds >= set(range(-19, -14)), "those of the first five seconds, whatever the policy"
