"""Canary: compares the envelopes in use with Celery's current rendering, one a second, in turn.

A difference is counted and logged, and moves the form to the celery lane; it never stops a run. The publisher does the
rendering.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from celery_wheelbeat.dispatch.messages.envelope import Envelope
from celery_wheelbeat.dispatch.messages.envelope_maker import MOVED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from celery_wheelbeat.dispatch.fast_lane.batches import Comparison
    from celery_wheelbeat.dispatch.fast_lane.envelope_registry import EnvelopeRegistry
    from celery_wheelbeat.dispatch.fast_lane.publisher import FastPublisher
    from celery_wheelbeat.dispatch.fast_lane.rendering import JobMessages
    from celery_wheelbeat.dispatch.messages.envelope_maker import Arguments
    from celery_wheelbeat.dispatch.messages.patterns import Form
    from celery_wheelbeat.engine.shards import JobColumns

logger = logging.getLogger("celery.beat")

EVERY_S = 1.0


class Canary:
    """Asks the publisher for comparisons and applies the answers."""

    def __init__(self, publisher: FastPublisher, forms: EnvelopeRegistry, messages: JobMessages) -> None:
        self.differences = 0
        """Number of comparisons in which an envelope differed from Celery; must be 0."""
        self.due_s = 0.0
        """Monotonic time of the next comparison."""
        self._publisher = publisher
        self._forms = forms
        self._messages = messages
        self.seen: dict[Form, Arguments] = {}
        """Forms sent since their last comparison → arguments of one of their jobs."""

    def remember(self, form: Form, jobs: JobColumns, positions: NDArray[np.intp]) -> None:
        """Record that messages of ``form`` are sent; the first job at ``positions`` is used for the comparison."""
        self.seen.update((form, arguments) for arguments in self._messages.arguments(form, jobs, positions[:1]))

    def compare_due(self, now_s: float) -> None:
        """Ask for the next comparison if it is due."""
        if now_s < self.due_s:
            return
        self.due_s = now_s + EVERY_S
        answers = dict(self._forms.answers())
        for form in list(self.seen):
            arguments = self.seen.pop(form)
            answer = answers.get(form)
            if isinstance(answer, Envelope) and self._publisher.capacity():
                self._publisher.compare(answer, form, arguments)
                return

    def apply(self, comparison: Comparison) -> None:
        """Apply a comparison: a difference moves the form to the celery lane."""
        if comparison.difference == MOVED:
            self._forms.ask_again(comparison.form)
        elif comparison.difference and comparison.epoch == self._publisher.epoch:
            self.differences += 1
            reason = f"its message differs from Celery's: {comparison.difference}"
            self._forms.learn(comparison.form, reason)
            logger.error("beat: %s takes the celery lane: %s", comparison.form.task, reason)
