"""Forms: which envelope the messages of a job have, or why it has none.

Jobs with the same route, overlap policy and claim header share a form. Each form is asked for once, and again after
anything that could have changed the answer. Owned by the scheduling thread; the answers come from the sender.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from kombu.utils.json import loads

from celery_wheelbeat.jobs import Overlap
from celery_wheelbeat.lane_rules import KIND_SHIFT
from celery_wheelbeat.publishers.envelope_maker import Form

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.jobs import Int64s, UInt32s
    from celery_wheelbeat.publishers.envelope import Envelope
    from celery_wheelbeat.routes import RouteTable

    HeadersOf = Callable[[int | None, Any, Overlap], Mapping[str, Any]]
    """Interval in ms (None: no interval), the option ``expires``, the overlap policy → headers that the workers need.

    Of a header that names the job there is what stands before its key.
    """

_INTERVAL_BITS = 40
_loads: Callable[[str], Any] = loads


class Pending(Enum):
    """A form that has no answer."""

    UNASKED = "unasked"
    ASKED = "asked"


class Group(NamedTuple):
    """Positions whose jobs have one form."""

    form: Form
    answer: Envelope | str | Pending
    positions: NDArray[np.intp]


class Forms:
    """See the module."""

    def __init__(self, routes: RouteTable, headers_of: HeadersOf) -> None:
        self._routes = routes
        self._headers_of = headers_of
        self._forms: dict[int, Form] = {}
        """By kind and interval, packed."""
        self._answers: dict[Form, Envelope | str | Pending] = {}
        self.version = 0
        """Grows with every answer that comes or goes."""
        self.slow_routes: UInt32s = np.empty(0, np.uint32)
        """Indices of the routes of which no kind has an envelope, and one a reason."""
        self._numbers: dict[object, int] = {}
        """Identity of an envelope → number for the cache of bodies."""

    def groups(self, kind: Int64s, interval: Int64s) -> Iterator[Group]:
        """Yield the jobs of a block by form, for ``lane_rules.kinds``; ``interval`` ≤ 0 stands for jobs without one."""
        packed = kind << _INTERVAL_BITS | np.maximum(interval, 0)
        distinct, inverse = np.unique(packed, return_inverse=True)
        by_form: dict[Form, list[NDArray[np.intp]]] = {}
        for number, code in enumerate(distinct.tolist()):
            form = self._forms.get(code) or self._form(code)
            positions = np.flatnonzero(inverse == number)
            by_form.setdefault(form, []).append(positions)
        for form, parts in by_form.items():
            positions = parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))
            yield Group(form, self._answers.get(form, Pending.UNASKED), positions)

    def asked(self, form: Form) -> None:
        """Note that the sender was asked."""
        self._answers[form] = Pending.ASKED

    def learn(self, form: Form, answer: Envelope | str) -> None:
        """Note the sender's answer."""
        self._answers[form] = answer
        self._find_slow()

    def forget(self) -> None:
        """Ask for everything anew."""
        self._answers.clear()
        self._find_slow()

    def forget_forms(self) -> None:
        """Make everything anew: what the headers are made of has changed."""
        self._forms.clear()
        self.forget()

    def forget_reasons(self) -> None:
        """Ask anew for what had no envelope."""
        self._answers = {form: answer for form, answer in self._answers.items() if not isinstance(answer, str)}
        self._find_slow()

    def number_of(self, envelope: Envelope) -> int:
        """Return the number of an envelope; those that make the same messages have the same one."""
        return self._numbers.setdefault(envelope.identity(), len(self._numbers))

    def answers(self) -> Sequence[tuple[Form, Envelope | str]]:
        """Return the forms that have an answer."""
        return [(form, answer) for form, answer in self._answers.items() if not isinstance(answer, Pending)]

    def task_of(self, route_index: int) -> str:
        """Return the task of a route."""
        return self._routes[route_index].task

    def by_kind(self) -> Sequence[tuple[int, Envelope | str]]:
        """Return kind and answer of every form that has one."""
        answers = dict(self.answers())
        return [(code >> _INTERVAL_BITS, answers[form]) for code, form in self._forms.items() if form in answers]

    def _find_slow(self) -> None:
        self.version += 1
        by_kind = [(kind >> KIND_SHIFT, answer) for kind, answer in self.by_kind()]
        fast = {route for route, answer in by_kind if not isinstance(answer, str)}
        self.slow_routes = np.array(sorted({route for route, _ in by_kind} - fast), np.uint32)

    def _form(self, code: int) -> Form:
        kind, interval_ms = code >> _INTERVAL_BITS, code & ((1 << _INTERVAL_BITS) - 1)
        route, overlap = self._routes[kind >> KIND_SHIFT], Overlap(kind & ((1 << KIND_SHIFT) - 1))
        expires = _loads(route.options).get("expires")
        headers = tuple(self._headers_of(interval_ms or None, expires, overlap).items())
        self._forms[code] = form = Form(route, headers)
        return form
