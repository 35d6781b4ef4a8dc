"""What a beat does after a look, for each state of a shard."""

from __future__ import annotations

import pytest

from celery_wheelbeat.membership.attendance import Roster
from celery_wheelbeat.membership.decision import Actions, Damping, Situation, decide, entries_outside
from celery_wheelbeat.membership.line import BeatLine, Standing
from celery_wheelbeat.membership.shares import assign

ALL = frozenset(range(256))
BROKER = frozenset({"broker"})
MINE = frozenset(shard for shard, beat in assign(["a", "b"], 256).items() if beat == "a")
THEIRS = ALL - MINE


def line(beat_id: str, own: frozenset[int] = frozenset(), **fields: object) -> BeatLine:
    said = {"standing": Standing.READY, "order": ord(beat_id), "able": BROKER} | fields
    return BeatLine(beat_id, own=own, **said)


def decided(
    me: BeatLine,
    *live: BeatLine,
    gone: tuple[BeatLine, ...] = (),
    shown: tuple[frozenset[int], ...] = (frozenset(),),
    now_s: float = 100.0,
    **held: object,
) -> Actions:
    roster = Roster(
        {line.beat_id: line for line in live},
        {line.beat_id: line for line in gone},
        {str(number): line("a", own) for number, own in enumerate(shown)},
    )
    return decide(Situation(me, **held), roster, now_s)


def test_alone_a_beat_announces_everything_and_then_takes_it() -> None:
    assert decided(line("a")) == Actions(announce=ALL, unowned=ALL)
    assert decided(line("a"), announced=ALL, shown=(ALL,)) == Actions(take=ALL, unowned=ALL)
    assert decided(line("a", ALL)) == Actions()


def test_nothing_is_taken_before_every_roll_that_can_be_read_shows_the_announcement() -> None:
    some = ALL - {7}
    assert decided(line("a"), announced=ALL, shown=(ALL, some)) == Actions(
        announce=frozenset({7}), take=some, unowned=ALL
    )


def test_without_a_roll_nothing_changes() -> None:
    held = {"announced": THEIRS, "frozen": {1: 0.0}, "woken": True}
    assert decided(line("a", MINE), shown=(), **held) == Actions(announce=THEIRS, unowned=THEIRS)


@pytest.mark.parametrize("standing", [Standing.JOINING, Standing.LEAVING])
def test_a_beat_that_is_not_ready_takes_nothing(standing: Standing) -> None:
    assert decided(line("a", standing=standing), announced=ALL, shown=(ALL,)).take == set()


def test_a_beat_that_joins_gets_its_half_when_the_other_has_let_go() -> None:
    """The old one freezes the half; the new one announces a shard when no line has it any more."""
    assert decided(line("a", ALL), line("b")).freeze == THEIRS
    assert decided(line("b"), line("a", ALL)) == Actions()
    assert decided(line("b"), line("a", ALL - {min(THEIRS)})).announce == {min(THEIRS)}


def test_a_frozen_shard_is_let_go_after_its_time_and_thawed_if_it_is_ours_again() -> None:
    frozen = dict.fromkeys(THEIRS, 99.0)
    assert decided(line("a", ALL), line("b"), frozen=frozen) == Actions()
    assert decided(line("a", ALL), line("b"), frozen=frozen, now_s=100.6) == Actions(let_go=THEIRS)
    assert decided(line("a", ALL), frozen=frozen, now_s=100.6) == Actions(thaw=THEIRS)


def test_a_beat_without_its_broker_lets_go_if_another_has_one() -> None:
    unable = {"able": frozenset()}
    assert decided(line("a", MINE, **unable), line("b", THEIRS)).let_go == MINE
    assert decided(line("a", MINE, **unable), line("b", THEIRS, **unable)) == Actions()


def test_the_share_of_a_beat_that_is_gone_is_announced_taken_and_its_connection_ended() -> None:
    dead = (line("b", THEIRS), line("c", standing=Standing.LEFT))
    assert decided(line("a", MINE), gone=dead) == Actions(announce=THEIRS, unowned=THEIRS)
    taken = decided(line("a", MINE), gone=dead, announced=THEIRS, shown=(ALL,))
    assert (taken.take, taken.fence) == (THEIRS, {"b"})


def test_a_beat_that_left_needs_no_fence() -> None:
    left = (line("b", THEIRS, standing=Standing.LEFT),)
    assert decided(line("a", MINE), gone=left, announced=THEIRS, shown=(ALL,)).fence == set()


def test_an_announcement_is_withdrawn_when_another_beat_has_the_shard() -> None:
    dead = (line("c", THEIRS),)
    actions = decided(line("a", MINE), line("b", THEIRS), gone=dead, announced=THEIRS, shown=(ALL,))
    assert actions.announce == actions.take == set()


def test_of_two_owners_the_one_that_the_assignment_does_not_name_lets_go() -> None:
    assert decided(line("a", ALL), line("b", ALL)) == Actions(let_go=THEIRS, overtaken=ALL)
    assert decided(line("b", ALL), line("a", ALL)) == Actions(let_go=MINE, overtaken=ALL)


def test_a_beat_that_wakes_lets_go_of_all_that_others_have() -> None:
    assert decided(line("a", ALL), line("b", ALL), woken=True).let_go == ALL
    assert decided(line("a", MINE), line("b", THEIRS), woken=True) == Actions()
    unable = line("b", ALL, able=frozenset())
    assert decided(line("a", ALL, able=frozenset()), unable, woken=True).let_go == ALL


def test_a_standby_follows_everything_and_takes_everything() -> None:
    active, standby = line("a", ALL, active=1), line("b", active=1)
    assert decided(active, standby) == decided(standby, active) == Actions()
    assert decided(standby, gone=(active,)).announce == ALL


def test_a_beat_with_another_number_of_shards_gets_no_share() -> None:
    assert decided(line("b", shards=128), line("a", ALL)) == Actions()
    assert decided(line("b", frozenset({1}), shards=128), line("a", ALL - {1})).freeze == {1}


def test_seniority_is_needed_to_count() -> None:
    """Before a roll has given one, beats would disagree about who is the most senior."""
    assert decided(line("a", order=0)).announce == set()


def test_an_entry_is_sent_by_the_owner_of_its_shard_or_by_the_most_senior_that_knows_it() -> None:
    mine, theirs = min(MINE), min(THEIRS)
    me = line("b", MINE, entries=frozenset({"x", "y"}))
    entries = {"x": mine, "y": theirs}
    assert entries_outside(entries, me, [line("c", THEIRS, entries=frozenset({"y"}))]) == set()
    other_code = line("c", THEIRS, entries=frozenset({"z"}))
    assert entries_outside(entries, me, [other_code]) == {"y"}
    senior = line("a", entries=frozenset({"y"}))
    assert entries_outside(entries, me, [other_code, senior]) == set()
    assert entries_outside({"y": theirs, "z": theirs}, senior, [other_code, me]) == {"y"}


def test_a_senior_that_cannot_send_sends_no_entry() -> None:
    entries = {"y": min(THEIRS)}
    other_code = line("c", THEIRS)
    unable = line("a", able=frozenset(), entries=frozenset({"y"}))
    me = line("b", MINE, entries=frozenset({"y"}))
    assert entries_outside(entries, me, [other_code, unable]) == {"y"}
    assert entries_outside(entries, unable, [other_code, me]) == set()


def test_an_entry_of_a_shard_without_owner_waits_for_the_beat_that_takes_it() -> None:
    assert entries_outside({"y": 1}, line("a", entries=frozenset({"y"})), []) == set()


def test_beats_with_too_many_entries_share_them_if_they_know_the_same() -> None:
    entries = {"y": min(THEIRS)}
    me = line("a", MINE, entries=None, digest="one")
    assert entries_outside(entries, me, [line("b", THEIRS, entries=None, digest="one")]) == set()
    assert entries_outside(entries, me, [line("b", THEIRS, entries=None, digest="two")]) == {"y"}


def test_a_beat_that_is_taken_over_while_alive_takes_no_part_for_a_while() -> None:
    damping = Damping()
    assert not damping.damped(0)
    ends = []
    now_s = 0.0
    for _ in range(7):
        damping.strike(now_s)
        damping.strike(now_s + 1)
        until_s = next(now_s + wait for wait in range(1_000) if not damping.damped(now_s + wait))
        ends.append(until_s - now_s)
        now_s = until_s
    assert ends == [30, 60, 120, 240, 480, 600, 600]
    damping.strike(now_s + 601)
    assert not damping.damped(now_s + 601 + 30)
