"""Answers: which forms the sender is asked for, and the runs that wait until it has answered.

Only runs of forms without an answer wait; everything else goes on. Everything is asked for again after a reconnect, and
when somebody has changed what Celery would do. Owned by the scheduling thread; sends and judges nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import datetime

    from celery_wheelbeat.dispatch.backlog import Backlog
    from celery_wheelbeat.dispatch.fast_lane.batches import Verdict
    from celery_wheelbeat.dispatch.fast_lane.envelope_registry import Forms
    from celery_wheelbeat.dispatch.fast_lane.publisher import Sender
    from celery_wheelbeat.dispatch.messages.envelope_maker import Arguments
    from celery_wheelbeat.dispatch.messages.patterns import Form

SETTINGS_EVERY_S = 1.0
REASONS_KEPT_S = 300.0
"""Some reasons pass (a queue that could not be declared): after this long a form is asked for again."""
WAITING_MAX = 50_000
"""Runs that wait for answers. With more nothing is handed over until an answer comes, which takes milliseconds."""


class Edges(NamedTuple):
    """What the fast lane asks the process around it."""

    now: Callable[[], datetime]
    """``app.now``."""
    guard: Callable[[], object]
    """Changes when envelopes may have become wrong; cheap."""
    settings_token: Callable[[], object]
    """The same, slow: asked once a second."""
    admits_lines: Callable[[int], bool]
    """Whether so many runs get a line each in the log."""


class Answers:
    """See the module."""

    def __init__(self, backlog: Backlog, sender: Sender, forms: Forms, edges: Edges) -> None:
        self.epoch = 0
        """Number of the connection that the envelopes in use belong to."""
        self.waiting = 0
        """Runs that wait."""
        self._backlog = backlog
        self._sender = sender
        self._forms = forms
        self._edges = edges
        self._parked: dict[Form, list[int]] = {}
        """Tokens of the runs that wait, by form."""
        self._round = 0
        """How often everything was asked for again: an answer to an earlier question is out of date."""
        self._guard: object = None
        self._settings: object = None
        self._settings_due_s = 0.0
        self._reasons_due_s = 0.0
        self._refused_due = False
        """Whether the forms that were refused are to be asked for again."""

    @property
    def are_due(self) -> bool:
        """Whether no more runs may wait before an answer has come."""
        return self.waiting >= WAITING_MAX

    def look(self) -> None:
        """Ask for every envelope again after a reconnect, or when somebody changed what Celery would do."""
        self.epoch = self._sender.epoch
        token = (self._edges.guard(), self.epoch)
        if token != self._guard:
            self._guard = token
            self._round += 1
            self._refused_due = True
            self._forms.forget()
            for tokens in self._parked.values():
                self._backlog.give_back(tokens)
            self._parked.clear()
            self.waiting = 0

    def look_around(self, now_s: float) -> None:
        """Do what need not be done for every block: look at the settings and at old reasons."""
        if now_s >= self._settings_due_s:
            self._settings_due_s = now_s + SETTINGS_EVERY_S
            settings = self._edges.settings_token()
            if settings != self._settings:
                self._settings, self._guard = settings, None
        self.look()
        if now_s >= self._reasons_due_s:
            self._reasons_due_s = now_s + REASONS_KEPT_S
            self._forms.forget_reasons()
            self._refused_due = True

    def take_refused_due(self) -> bool:
        """Say, once, that the forms that were refused are to be asked for again: nobody else asks for them."""
        due, self._refused_due = self._refused_due, False
        return due

    def ask(self, form: Form, candidates: Sequence[Arguments]) -> None:
        """Ask the sender about ``form``; ``candidates``: arguments of some of its jobs."""
        self._forms.asked(form)
        self._sender.ask(form, candidates, self._round)

    def wait(self, form: Form, tokens: Collection[int]) -> None:
        """Let runs wait for the answer about their form."""
        self._parked.setdefault(form, []).extend(tokens)
        self.waiting += len(tokens)

    def take_in(self, verdict: Verdict) -> bool:
        """Follow an answer, and let the runs go on that have waited for it; returns whether it is still of use."""
        if verdict.epoch != self._sender.epoch or verdict.asked_in != self._round:
            return False  # has been asked for again, or will be
        self._forms.learn(verdict.form, verdict.answer)
        tokens = self._parked.pop(verdict.form, [])
        self.waiting -= len(tokens)
        self._backlog.give_back(tokens)
        return True
