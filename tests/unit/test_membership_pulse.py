"""After a pause nothing is sent before a look, or for two seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from services import wait_until

from celery_wheelbeat.membership.pulse import HOLD_S, PAUSED_S, Pulse
from celery_wheelbeat.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 60.0


class Machine:
    """A boot clock that moves when a test says so; the thread's own clock is the system's."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def boot_s(self) -> float:
        return self.now_s


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def pulse(machine: Machine) -> Iterator[Pulse]:
    pulse = Pulse(SystemClock(), machine.boot_s)
    pulse.start()
    yield pulse
    pulse.close(PATIENCE_S)


def test_a_process_that_runs_may_send(pulse: Pulse) -> None:
    assert pulse.may_send()
    assert not pulse.woken


def test_after_a_pause_nothing_is_sent_before_a_look_that_began_later(pulse: Pulse, machine: Machine) -> None:
    before_s = SystemClock().monotonic_s()
    machine.now_s += PAUSED_S + 0.5
    assert not pulse.may_send()
    assert pulse.woken
    pulse.looked(before_s)
    assert not pulse.may_send(), "that look began before the pause"
    pulse.looked(SystemClock().monotonic_s())
    assert pulse.may_send()
    assert not pulse.woken


def test_the_pause_is_noticed_although_the_stamp_is_renewed_first(pulse: Pulse, machine: Machine) -> None:
    machine.now_s += PAUSED_S + 0.5
    wait_until(lambda: pulse.woken, "the thread to notice", PATIENCE_S)
    assert not pulse.may_send()


def test_a_roll_that_is_down_holds_nobody_for_longer_than_two_seconds(pulse: Pulse, machine: Machine) -> None:
    machine.now_s += 600
    assert not pulse.may_send()
    for _ in range(4):  # each less than a pause, or it would be another one
        machine.now_s += HOLD_S / 4 + 0.01
        wait_until(lambda: pulse._stamp_s == machine.now_s, "the next stamp", PATIENCE_S)
    assert pulse.may_send()
    assert pulse.woken, "the decision is still to come"


def test_a_pulse_that_does_not_run_holds_nobody() -> None:
    machine = Machine()
    pulse = Pulse(SystemClock(), machine.boot_s)
    machine.now_s += 600
    assert pulse.may_send()
