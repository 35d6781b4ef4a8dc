"""Questions to the sender about forms, and the runs that wait for the answers.

Only runs of forms without an answer wait. Every form is asked about again after a reconnect, and when settings, hooks
or patches could have changed Celery's message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import datetime

    from celery_wheelbeat.dispatch.backlog import Backlog
    from celery_wheelbeat.dispatch.fast_lane.batches import FormVerdict
    from celery_wheelbeat.dispatch.fast_lane.envelope_registry import EnvelopeRegistry
    from celery_wheelbeat.dispatch.fast_lane.publisher import FastPublisher
    from celery_wheelbeat.dispatch.messages.envelope_maker import Arguments
    from celery_wheelbeat.dispatch.messages.patterns import Form

SETTINGS_EVERY_S = 1.0
REASONS_KEPT_S = 300.0
"""Some reasons are temporary (a queue that could not be declared): a form is asked about again after this time."""
WAITING_MAX = 50_000
"""Most runs that wait for answers; beyond it nothing is submitted until an answer comes, which takes milliseconds."""


QUESTIONS_MAX = 32
"""Most open questions with which a run still waits for the answer to its own. With more, runs take the celery lane
until the answer is there: an answer takes some milliseconds, so runs wait a fraction of a second at most."""


class Edges(NamedTuple):
    """The calls with which the fast lane reaches the process around it."""

    now: Callable[[], datetime]
    """``app.now``."""
    guard: Callable[[], object]
    """Returns a value that changes when envelopes may be out of date; cheap."""
    settings_token: Callable[[], object]
    """The same for settings; slow, called once a second."""
    admits_lines: Callable[[int], bool]
    """n → whether n runs may be logged with a line each."""


class Answers:
    """Asks the sender, parks runs, and releases them when the answer comes."""

    def __init__(self, backlog: Backlog, sender: FastPublisher, forms: EnvelopeRegistry, edges: Edges) -> None:
        self.epoch = 0
        """Number of the connection to which the envelopes in use belong."""
        self.waiting = 0
        """Number of parked runs."""
        self._backlog = backlog
        self._sender = sender
        self._forms = forms
        self._edges = edges
        self._parked: dict[Form, list[int]] = {}
        """Form → tokens of the runs that wait for it."""
        self._open: set[Form] = set()
        """Forms about which the sender is asked."""
        self._round = 0
        """Increases when all forms are reset; answers to questions of an earlier round are ignored."""
        self._guard: object = None
        self._settings: object = None
        self._settings_due_s = 0.0
        self._reasons_due_s = 0.0
        self._refused_due = False
        """Whether the refused forms have to be asked about again."""

    @property
    def are_due(self) -> bool:
        """Whether the limit of parked runs is reached."""
        return self.waiting >= WAITING_MAX

    def may_wait(self, form: Form) -> bool:
        """Return whether runs wait for the answer about ``form``.

        Only an answer shows whether the broker knows a named exchange, so the celery lane is no alternative for those.
        """
        return len(self._open) <= QUESTIONS_MAX or form in self._parked or '"exchange"' in form.route.options

    def look(self) -> None:
        """Reset all forms and requeue parked runs after a reconnect or a change of Celery's publish path."""
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
            self._open.clear()
            self.waiting = 0

    def look_around(self, now_s: float) -> None:
        """Check the settings once a second, and forget reasons that are ``REASONS_KEPT_S`` old; then ``look``."""
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
        """Return, once, whether the refused forms have to be asked about again; no run triggers it."""
        due, self._refused_due = self._refused_due, False
        return due

    def ask(self, form: Form, candidates: Sequence[Arguments]) -> None:
        """Ask the sender about ``form``; ``candidates``: arguments of some of its jobs."""
        self._open.add(form)
        self._forms.asked(form)
        self._sender.ask(form, candidates, self._round)

    def wait(self, form: Form, tokens: Collection[int]) -> None:
        """Park runs until ``form`` has an answer."""
        self._parked.setdefault(form, []).extend(tokens)
        self.waiting += len(tokens)

    def take_in(self, verdict: FormVerdict) -> bool:
        """Store an answer and requeue the runs that waited for it; returns whether the answer is current."""
        if verdict.epoch != self._sender.epoch or verdict.asked_in != self._round:
            return False  # out of date: asked again, or about to be
        self._open.discard(verdict.form)
        self._forms.learn(verdict.form, verdict.answer)
        tokens = self._parked.pop(verdict.form, [])
        self.waiting -= len(tokens)
        self._backlog.give_back(tokens)
        return True
