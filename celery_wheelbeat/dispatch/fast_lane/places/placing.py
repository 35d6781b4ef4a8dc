"""Splits the jobs of a form by the place of their messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from celery_wheelbeat.dispatch.messages.envelope import Envelope
from celery_wheelbeat.dispatch.messages.patterns import QUEUE, own_of
from celery_wheelbeat.errors import reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_wheelbeat.dispatch.fast_lane.envelope_registry import Declaring, Group
    from celery_wheelbeat.dispatch.fast_lane.places.queue_registry import QueueRegistry
    from celery_wheelbeat.dispatch.messages.patterns import Form
    from celery_wheelbeat.engine.shards import JobColumns
    from celery_wheelbeat.jobs.definitions import Route
    from celery_wheelbeat.jobs.routes import RouteTable

PLACES_MAX = 250_000
"""Most routes of an envelope whose place is cached; the cache is cleared when full."""


class _RoutePlace(NamedTuple):
    """The place of a route."""

    answer: Envelope | str
    """The envelope for this place, or the reason for the celery lane."""
    queue: str
    """Job-specific queue; empty if there is none."""


class Placing:
    """See the module."""

    def __init__(self, routes: RouteTable, queues: QueueRegistry) -> None:
        self._routes = routes
        self._queues = queues
        self._placed: WeakKeyDictionary[Envelope, tuple[dict[Route, _RoutePlace], dict[bytes, Envelope]]] = (
            WeakKeyDictionary()
        )
        """Envelope → places by route, and its copies by place."""

    def split(self, group: Group, jobs: JobColumns) -> Iterator[Group]:
        """Yield the jobs of a group by the place of their messages; the answer of an unclear place is a reason."""
        envelope = group.answer
        has_queues = QUEUE in group.form.options
        if not isinstance(envelope, Envelope) or not (envelope.places is not None or has_queues):
            yield group
            return
        distinct, inverse = np.unique(jobs.route[group.positions], return_inverse=True)
        places = [self._place_of(index, group.form, envelope) for index in distinct.tolist()]
        states = self._queues.find([place.queue for place in places if place.queue]) if has_queues else {}
        answers: list[Envelope | str | Declaring] = [states.get(place.queue) or place.answer for place in places]
        numbers = {answer: number for number, answer in enumerate(dict.fromkeys(answers))}
        of_each = np.array([numbers[answer] for answer in answers], np.int64)[inverse]
        order = np.argsort(of_each, kind="stable")
        bounds = np.searchsorted(of_each[order], np.arange(len(numbers) + 1)).tolist()
        for answer, number in numbers.items():
            chosen = order[bounds[number] : bounds[number + 1]]
            yield group._replace(answer=answer, positions=group.positions[chosen])

    def _place_of(self, index: int, form: Form, envelope: Envelope) -> _RoutePlace:
        by_route, by_key = self._placed.setdefault(envelope, ({}, {}))
        route = self._routes[index]
        found = by_route.get(route)
        if found is None:
            if len(by_route) >= PLACES_MAX:
                by_route.clear()
                by_key.clear()
            found = by_route[route] = self._find(route, form, envelope, by_key)
        return found

    @staticmethod
    def _find(route: Route, form: Form, envelope: Envelope, by_key: dict[bytes, Envelope]) -> _RoutePlace:
        try:
            own = own_of(route, form)
            key = envelope.key_of(own)
        except Exception as error:  # concerns one job
            return _RoutePlace(reason_of(error), "")
        if isinstance(key, str):
            return _RoutePlace(key, "")
        if key not in by_key:
            by_key[key] = envelope if key == envelope.key else envelope.towards(key)
        return _RoutePlace(by_key[key], str(own.options.get(QUEUE, "")))
