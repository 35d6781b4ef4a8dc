"""Registry of job-specific queues: which are declared, which are being declared, and which cannot be.

Each queue is asked about once, a few with each question, because a question delays batches by the time it takes. Runs
wait for the answer while few queues are open; with many, runs of further queues take the celery lane, which declares
queues as it sends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_wheelbeat.dispatch.fast_lane.envelope_registry import Declaring

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

QUEUES_MAX = 250_000
"""Most remembered queues; all are forgotten when full."""
AT_ONCE = 8
"""Queues of one question: a declaration takes up to a millisecond on Redis, and several on RabbitMQ."""
OPEN_MAX = 1_000
"""Most queues that are being declared."""
MANY_OPEN = "its queue is new, and many other new queues are being declared"


class QueueRegistry:
    """The registry. ``declare(question, queues)`` asks the publisher, which answers with ``learn``."""

    def __init__(self, declare: Callable[[Declaring, Sequence[str]], None], *, lasting: bool) -> None:
        """``lasting``: declared queues are kept after a reconnect, since none would be missed in silence."""
        self._declare = declare
        self._lasting = lasting
        self._reasons: dict[str, str] = {}
        """Queue → why its runs take the celery lane; empty if it is declared."""
        self._asked: dict[str, Declaring] = {}
        """Queue → the open question."""
        self._questions = 0

    def find(self, queues: Sequence[str]) -> Mapping[str, str | Declaring]:
        """Return the reason of each queue, empty for a declared one, or its question. Asks about unknown ones."""
        reasons, asked = self._reasons, self._asked
        unknown = [queue for queue in queues if queue not in reasons and queue not in asked]
        room = max(0, OPEN_MAX - len(asked))
        for start in range(0, min(len(unknown), room), AT_ONCE):
            some = unknown[start : min(start + AT_ONCE, room)]
            self._questions += 1
            question = Declaring(self._questions)
            asked |= dict.fromkeys(some, question)
            self._declare(question, some)
        return {queue: reasons[queue] if queue in reasons else asked.get(queue, MANY_OPEN) for queue in queues}

    def learn(self, question: Declaring, reasons: Mapping[str, str]) -> None:
        """Store an answer; ignored for queues that were forgotten meanwhile."""
        if len(self._reasons) >= QUEUES_MAX:
            self._reasons.clear()
        for queue, reason in reasons.items():
            if self._asked.get(queue) == question:
                del self._asked[queue]
                self._reasons[queue] = reason

    def reconnected(self) -> None:
        """Forget open questions, whose answers are lost, and declared queues unless they last."""
        self._asked.clear()
        if not self._lasting:
            self._reasons.clear()

    def forget(self) -> None:
        """Forget every queue."""
        self._asked.clear()
        self._reasons.clear()

    def forget_reasons(self) -> None:
        """Forget the queues that could not be declared."""
        self._reasons = {queue: reason for queue, reason in self._reasons.items() if not reason}
