"""Canary: compares envelopes in use with what Celery renders at the moment, one a second, each in its turn.

The component that distrusts the fast lane. A difference is counted, logged, and sends the form down the celery lane;
it never stops a run. Owned by the scheduling thread; the sender does the rendering.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from celery_wheelbeat.dispatch.messages.envelope import Envelope

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from celery_wheelbeat.dispatch.fast_lane.batches import Comparison
    from celery_wheelbeat.dispatch.fast_lane.envelope_registry import Forms
    from celery_wheelbeat.dispatch.fast_lane.publisher import Sender
    from celery_wheelbeat.dispatch.fast_lane.rendering import JobMessages
    from celery_wheelbeat.dispatch.messages.envelope_maker import Arguments
    from celery_wheelbeat.dispatch.messages.patterns import Form
    from celery_wheelbeat.engine.shards import JobColumns

logger = logging.getLogger("celery.beat")

EVERY_S = 1.0


class Canary:
    """See the module."""

    def __init__(self, sender: Sender, forms: Forms, messages: JobMessages) -> None:
        self.differences = 0
        """Messages that Celery renders otherwise than their envelope; the only good value is 0."""
        self.due_s = 0.0
        """When the next comparison may be asked for, monotonic."""
        self._sender = sender
        self._forms = forms
        self._messages = messages
        self._seen: dict[Form, Arguments] = {}
        """Forms that were sent since they were last compared, with the arguments of one of their jobs."""

    def remember(self, form: Form, jobs: JobColumns, positions: NDArray[np.intp]) -> None:
        """Note that messages of ``form`` are sent; of its jobs, at ``positions``, the first is compared."""
        if form not in self._seen:
            self._seen.update((form, arguments) for arguments in self._messages.arguments(form, jobs, positions[:1]))

    def look(self, now_s: float) -> None:
        """Ask for the next comparison if it is time."""
        if now_s < self.due_s:
            return
        self.due_s = now_s + EVERY_S
        answers = dict(self._forms.answers())
        for form in list(self._seen):
            arguments = self._seen.pop(form)
            answer = answers.get(form)
            if isinstance(answer, Envelope) and self._sender.capacity():
                self._sender.compare(answer, form, arguments)
                return

    def take_in(self, comparison: Comparison) -> None:
        """Follow a difference."""
        if comparison.difference and comparison.epoch == self._sender.epoch:
            self.differences += 1
            reason = f"its message differs from Celery's: {comparison.difference}"
            self._forms.learn(comparison.form, reason)
            logger.error("beat: %s goes down the celery lane: %s", comparison.form.task, reason)
