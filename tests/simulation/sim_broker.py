"""A simulated broker and the publisher in front of it: down, slow, refusing, and silent about what it accepted."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from celery_wheelbeat.dispatch import Confirmed, Failed, FailureKind, PublisherHealth, Run

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from simulation.sim_clock import SimClock


class Message(NamedTuple):
    """What the broker accepted."""

    run_id: str
    job_id: int
    fire_ms: int
    version: int | None
    """Version of the monitor it was rendered from; None for entries."""
    life: int
    """Number of the process that sent it."""


class SimBroker:
    """The broker outlives the beats. ``poisoned`` jobs can never be sent, ``unroutable`` ones have no queue.

    Of a job that is ``full`` the queue takes nothing for now.
    """

    def __init__(self) -> None:
        self.up = True
        self.slow = False
        self.fault_rate = 0.0
        self.poisoned: set[int] = set()
        self.unroutable: set[int] = set()
        self.full: set[int] = set()
        self.messages: list[Message] = []

    def accept(self, run: Run, life: int) -> None:
        """Take a message."""
        version = run.entry.args[0] if run.job_id >= 0 else None
        self.messages.append(Message(run.run_id, run.job_id, run.fire_ms, version, life))


class SimPublisher:
    """See ``celery_wheelbeat.dispatch.Publisher``. ``step`` is a turn of its thread."""

    destination = "broker"
    ended_by = None

    def __init__(
        self,
        broker: SimBroker,
        clock: SimClock,
        rng: random.Random,
        *,
        life: int,
        window: int,
        reach: Callable[[str], None],
        disturb: Callable[[], None],
    ) -> None:
        self.connected = False
        self._broker = broker
        self._clock = clock
        self._rng = rng
        self._life = life
        self._window = window
        self._reach = reach
        self._disturb = disturb
        self._queue: deque[Run] = deque()
        self._outcomes: list[Confirmed | Failed] = []
        self._unsettled: dict[int, Run] = {}

    def start(self) -> None:
        """There is no thread: the world calls ``step``."""

    def capacity(self) -> int:
        return max(0, self._window - len(self._unsettled)) if self.connected else 0

    def submit(self, runs: Sequence[Run]) -> None:
        self._reach("submit")
        self._queue.extend(runs)
        self._unsettled.update((run.token, run) for run in runs)
        self._reach("submitted")

    def poll(self) -> Sequence[Confirmed | Failed]:
        self._reach("outcomes")
        outcomes, self._outcomes = self._outcomes, []
        for outcome in outcomes:
            self._unsettled.pop(outcome.token, None)
        return outcomes

    def health(self) -> PublisherHealth:
        return PublisherHealth(self.connected, len(self._unsettled), self._clock.monotonic_s())

    def close(self, timeout_s: float) -> None:
        self._reach("close")
        while self._queue and self.connected:
            self._send(self._queue.popleft())
        for run in self._queue:
            self._outcomes.append(Failed(run.token, FailureKind.NOT_SENT, "not connected"))
        self._queue.clear()

    def step(self) -> bool:
        """Connect, or send some of what was submitted; says whether there are outcomes."""
        self.connected = self._broker.up
        before = len(self._outcomes)
        if not self.connected:
            self._fail_all()
        for _ in range(self._rng.randint(1, 40) if self._broker.slow else 5_000):
            if not self._queue or not self.connected:
                break
            self._send(self._queue.popleft())
        if self._queue:
            self._disturb()
        return len(self._outcomes) > before

    def crash(self) -> None:
        """Lose the process: what was on the wire arrives or does not."""
        for run in self._queue:
            if self._broker.up and self._rng.random() < 0.5:
                self._broker.accept(run, self._life)

    def _fail_all(self) -> None:
        self._outcomes += [Failed(run.token, FailureKind.NOT_SENT, "not connected") for run in self._queue]
        self._queue.clear()

    def _send(self, run: Run) -> None:
        broker = self._broker
        if run.job_id in broker.poisoned:
            self._outcomes.append(Failed(run.token, FailureKind.POISON, "too large"))
        elif run.job_id in broker.unroutable:
            self._outcomes.append(Failed(run.token, FailureKind.UNROUTABLE, "no queue"))
        elif run.job_id in broker.full:
            self._disturb()
            self._outcomes.append(Failed(run.token, FailureKind.REFUSED, "queue is full"))
        elif self._rng.random() < broker.fault_rate:
            self._disturb()
            self._fail(run)
        else:
            broker.accept(run, self._life)
            self._outcomes.append(Confirmed(run.token, self._clock.wall_ms()))

    def _fail(self, run: Run) -> None:
        kind = self._rng.choice([FailureKind.NOT_SENT, FailureKind.UNCERTAIN, FailureKind.UNCERTAIN, FailureKind.ERROR])
        if kind is FailureKind.UNCERTAIN and self._rng.random() < 0.5:
            self._broker.accept(run, self._life)
        self._outcomes.append(Failed(run.token, kind, "fault"))
        if kind is not FailureKind.ERROR:
            self.connected = False
            self._fail_all()
