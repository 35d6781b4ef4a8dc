"""Registry of message forms: form → envelope, reason for the celery lane, or refusal.

Jobs with the same pattern (``messages.patterns``), overlap policy and claim headers share a form. The publisher answers
each form once, and again after any event that could change the answer. At most ``FORMS_MAX`` forms exist; jobs beyond
them take the celery lane. Forms that no job uses any more are dropped with their routes.
"""

from __future__ import annotations

from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from kombu.utils.json import loads

from celery_wheelbeat.dispatch.lane_rules import FORMS_MAX, KIND_SHIFT, TOO_MANY_FORMS
from celery_wheelbeat.dispatch.messages.envelope import Envelope
from celery_wheelbeat.dispatch.messages.patterns import Form, pattern_of
from celery_wheelbeat.errors import reason_of
from celery_wheelbeat.jobs.definitions import Overlap, Route

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.dispatch.messages.envelope import Answer
    from celery_wheelbeat.jobs.routes import RouteTable
    from celery_wheelbeat.schedules.kinds import Int64s, UInt32s

    HeadersOf = Callable[[int | None, Any, Overlap], Mapping[str, Any]]
    """(interval in ms or None, option ``expires``, overlap policy) → headers that the workers need.

    For headers that contain the job key, the value ends right before the key; the key is filled in per job.
    """

CODES_MAX = 100_000
"""Most cached (pattern, overlap policy, interval) → form entries; the cache is cleared when full."""
INTERVAL_BITS = 42
"""Enough for ``intervals.INTERVAL_MAX_MS``; a kind packed above the interval must fit into 63 bits."""
_INTERVAL_MAX = (1 << INTERVAL_BITS) - 1
_OVERLAPS = (1 << KIND_SHIFT) - 1
_UNSEEN, _TOO_MANY, _FIRST = 0, 1, 2
"""Pattern numbers: a route that was never due, a route for which there was no room, and the first real pattern."""
_loads: Callable[[str], Any] = loads


class Pending(Enum):
    """State of a form without an answer."""

    UNASKED = "unasked"
    ASKED = "asked"


class Declaring(NamedTuple):
    """State of jobs whose form has an envelope, and whose queue is being declared."""

    question: int


class Placed(NamedTuple):
    """The places of messages that share an envelope."""

    keys: Sequence[bytes]
    at: Int64s
    """Position → index in ``keys``; meaningless for positions of other groups."""


class Group(NamedTuple):
    """Positions of the jobs that share a form."""

    form: Form
    answer: Answer | Pending | Declaring
    positions: NDArray[np.intp]
    placed: Placed | None = None
    """None: all messages go to the key of the envelope."""


class _Pattern:
    """Counts and latest answers over all forms of one pattern."""

    def __init__(self, form: Form, number: int) -> None:
        self.form = form
        self.number = number
        self.routes = 0
        """Number of routes with this pattern."""
        self.envelopes = 0
        self.reasons = 0
        """Number of forms with an envelope, and with a reason."""
        self.slow_reason: str | None = None
        """Reason that applies to the whole pattern. Kept while its forms are asked about again."""
        self.last: dict[int, Answer] = {}
        """Overlap policy → latest answer. Kept while a form is asked about again."""

    @property
    def is_slow(self) -> bool:
        return self.reasons > 0 and self.envelopes == 0


class _KnownForm:
    """A form and its answer."""

    def __init__(self, form: Form, pattern: _Pattern, overlap: int) -> None:
        self.form = form
        self.pattern = pattern
        self.overlap = overlap
        self.answer: Answer | Pending = Pending.UNASKED


class EnvelopeRegistry:
    """The registry. ``learn`` stores the publisher's answers; ``groups`` looks up the jobs of a block."""

    def __init__(
        self,
        routes: RouteTable,
        headers_of: HeadersOf,
        *,
        is_plain: Callable[[str], bool] = lambda _queue: False,
        most: int = FORMS_MAX,
    ) -> None:
        """``is_plain``: see ``patterns.pattern_of``; ``most``: limit of patterns, and of forms."""
        self.version = 0
        """Increases whenever an answer is stored or removed."""
        self.any_slow = False
        """Whether ``slow`` returns True for any route."""
        self._routes = routes
        self._headers_of = headers_of
        self._is_plain = is_plain
        self._most = most
        self._pattern_of = np.zeros(0, np.int64)
        """Route index → pattern number."""
        self._patterns: dict[int, _Pattern] = {}
        self._numbers: dict[Form, int] = {}
        """Pattern → its number."""
        self._free = list(range(_FIRST + most - 1, _FIRST - 1, -1))
        self._known: dict[Form, _KnownForm] = {}
        self._by_code: dict[int, _KnownForm] = {}
        """Packed (pattern number, overlap policy, interval) → form."""
        self._slow = np.zeros(_FIRST + most, np.bool_)
        """Pattern number → at least one form has a reason, and none has an envelope."""
        self._without = _KnownForm(Form(Route("")), _Pattern(Form(Route("")), _TOO_MANY), 0)
        """Placeholder for every form beyond the limit."""
        self._without.answer = self._without.pattern.slow_reason = TOO_MANY_FORMS
        self._is_full = False
        """Whether some pattern or form was turned away by the limit."""

    def groups(self, kind: Int64s, interval: Int64s) -> Iterator[Group]:
        """Yield the jobs of a block grouped by form. ``kind``: of ``lane_choice.kinds_of``; ``interval`` ≤ 0: none."""
        if not len(kind):
            return
        code = (self._patterns_of(kind >> KIND_SHIFT) << KIND_SHIFT | kind & _OVERLAPS) << INTERVAL_BITS
        code |= np.clip(interval, 0, _INTERVAL_MAX)
        if (code == code[0]).all():
            known = self._found(int(code[0]))
            yield Group(known.form, known.answer, np.arange(len(code)))
            return
        distinct, inverse = np.unique(code, return_inverse=True)
        found = [self._found(one) for one in distinct.tolist()]
        numbers = {known: number for number, known in enumerate(dict.fromkeys(found))}
        of_each = np.array([numbers[known] for known in found], np.int64)[inverse]
        order = np.argsort(of_each, kind="stable")
        bounds = np.searchsorted(of_each[order], np.arange(len(numbers) + 1)).tolist()
        for known, (start, stop) in zip(numbers, pairwise(bounds), strict=True):
            yield Group(known.form, known.answer, order[start:stop])

    def slow(self, route: UInt32s) -> NDArray[np.bool_]:
        """Return which routes take the celery lane with every form: their pattern has reasons and no envelope."""
        self._cover_routes()
        return self._slow[self._pattern_of[route]]

    def asked(self, form: Form) -> None:
        """Record that the publisher was asked about ``form``."""
        known = self._known.get(form)
        if known is not None:
            self._set(known, Pending.ASKED)

    def ask_again(self, form: Form) -> None:
        """Set a form back to unasked, unless the publisher is working on it."""
        known = self._known.get(form)
        if known is not None and known.answer is not Pending.ASKED:
            self._set(known, Pending.UNASKED)

    def learn(self, form: Form, answer: Answer) -> None:
        """Store the publisher's answer; ignored if the form was dropped meanwhile."""
        known = self._known.get(form)
        if known is not None:
            self._set(known, answer)

    def forget(self) -> None:
        """Set every form back to unasked."""
        for known in self._known.values():
            self._set(known, Pending.UNASKED)

    def forget_forms(self) -> None:
        """Drop every form: an input of the headers (the namespace) has changed."""
        self.forget()
        self._known.clear()
        self._by_code.clear()

    def forget_reasons(self) -> None:
        """Set forms with a reason back to unasked, and retry those beyond the limit; refusals stay."""
        for known in self._known.values():
            if isinstance(known.answer, str):
                self._set(known, Pending.UNASKED)
        self._try_room()

    def forget_routes(self, indices: Int64s) -> None:
        """Drop patterns and forms that only these routes used; no job has the routes any more."""
        indices = indices[indices < len(self._pattern_of)]
        numbers, counts = np.unique(self._pattern_of[indices], return_counts=True)
        self._pattern_of[indices] = _UNSEEN
        gone = set()
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            pattern = self._patterns.get(number)
            if pattern is not None:
                pattern.routes -= count
                if not pattern.routes:
                    gone.add(number)
        if gone:
            self._drop(gone)

    def __contains__(self, form: Form) -> bool:
        return form in self._known

    def answers(self) -> Sequence[tuple[Form, Answer]]:
        """Return the forms that have an answer, with it."""
        return [(form, known.answer) for form, known in self._known.items() if not isinstance(known.answer, Pending)]

    def task_of(self, route_index: int) -> str:
        """Return the task of a route."""
        return self._routes[route_index].task

    def tally(self, kind: Int64s, jobs: Int64s) -> Iterator[tuple[Answer | None, int]]:
        """Yield (answer, number of jobs) for kinds that have ``jobs[i]`` jobs each.

        The latest answer counts while a form is asked about again; None: the kind has no answer yet.
        """
        self._cover_routes()
        codes = self._pattern_of[kind >> KIND_SHIFT] << KIND_SHIFT | kind & _OVERLAPS
        together = np.bincount(codes, jobs).astype(np.int64)
        for code in np.flatnonzero(together).tolist():
            pattern = self._pattern(code >> KIND_SHIFT)
            if pattern is None:
                yield None, int(together[code])
                continue
            last = pattern.last.get(code & _OVERLAPS)
            yield last if isinstance(last, str) else pattern.slow_reason or last, int(together[code])

    def _pattern(self, number: int) -> _Pattern | None:
        return self._without.pattern if number == _TOO_MANY else self._patterns.get(number)

    def _cover_routes(self) -> None:
        more = len(self._routes) - len(self._pattern_of)
        if more > 0:
            room = np.zeros(more + len(self._pattern_of) // 8, np.int64)
            self._pattern_of = np.concatenate((self._pattern_of, room))

    def _patterns_of(self, routes: Int64s) -> Int64s:
        """Return the number of the pattern of each route."""
        try:
            numbers = self._pattern_of[routes]
        except IndexError:  # a route was interned since
            self._cover_routes()
            numbers = self._pattern_of[routes]
        if not numbers.all():
            for index in np.unique(routes[numbers == _UNSEEN]).tolist():
                self._pattern_of[index] = self._number(index)
            numbers = self._pattern_of[routes]
        return numbers

    def _number(self, index: int) -> int:
        form = pattern_of(self._routes[index], self._is_plain)
        number = self._numbers.get(form)
        if number is None:
            if not self._free:
                self._is_full = self._slow[_TOO_MANY] = self.any_slow = True
                return _TOO_MANY
            number = self._numbers[form] = self._free.pop()
            self._patterns[number] = _Pattern(form, number)
        self._patterns[number].routes += 1
        return number

    def _found(self, code: int) -> _KnownForm:
        known = self._by_code.get(code)
        if known is None:
            if len(self._by_code) >= CODES_MAX:
                self._by_code.clear()
            known = self._by_code[code] = self._find(code)
        return known

    def _find(self, code: int) -> _KnownForm:
        kind, interval_ms = code >> INTERVAL_BITS, code & _INTERVAL_MAX
        pattern = self._patterns.get(kind >> KIND_SHIFT)
        if pattern is None:
            return self._without
        try:
            expires = pattern.form.expires_s or _loads(pattern.form.route.options).get("expires")
            headers = tuple(self._headers_of(interval_ms or None, expires, Overlap(kind & _OVERLAPS)).items())
        except Exception as error:  # concerns one form; the celery lane reports it for each run
            return self._unmade(pattern, kind & _OVERLAPS, f"its headers cannot be made: {reason_of(error)}")
        form = pattern.form._replace(headers=headers)
        if form not in self._known:
            if len(self._known) >= self._most:
                self._is_full = True
                return self._without
            self._known[form] = _KnownForm(form, pattern, kind & _OVERLAPS)
        return self._known[form]

    @staticmethod
    def _unmade(pattern: _Pattern, overlap: int, reason: str) -> _KnownForm:
        known = _KnownForm(pattern.form, pattern, overlap)
        known.answer = pattern.last[overlap] = reason
        return known

    def _set(self, known: _KnownForm, answer: Answer | Pending) -> None:
        pattern, before = known.pattern, known.answer
        pattern.reasons += isinstance(answer, str) - isinstance(before, str)
        pattern.envelopes += isinstance(answer, Envelope) - isinstance(before, Envelope)
        known.answer = answer
        if not isinstance(answer, Pending):
            pattern.last[known.overlap] = answer
            pattern.slow_reason = answer if isinstance(answer, str) and pattern.is_slow else None
        if self._slow[pattern.number] != pattern.is_slow:
            self._slow[pattern.number] = pattern.is_slow
            self.any_slow = bool(self._slow.any())
        self.version += not (isinstance(before, Pending) and isinstance(answer, Pending))

    def _drop(self, gone: set[int]) -> None:
        self._known = {form: known for form, known in self._known.items() if known.pattern.number not in gone}
        self._by_code.clear()
        for number in gone:
            del self._numbers[self._patterns.pop(number).form]
            self._free.append(number)
            self._slow[number] = False
        self.any_slow = bool(self._slow.any())
        self.version += 1
        self._try_room()

    def _try_room(self) -> None:
        """Let patterns and forms beyond the limit compete for room again."""
        if not self._is_full:
            return
        self._is_full = False
        self._pattern_of[self._pattern_of == _TOO_MANY] = _UNSEEN
        self._by_code = {code: known for code, known in self._by_code.items() if known is not self._without}
        self._slow[_TOO_MANY] = False
        self.any_slow = bool(self._slow.any())
        self.version += 1
