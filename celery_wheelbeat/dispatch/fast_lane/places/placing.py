"""Splits the jobs of a form by the place of their messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from celery_wheelbeat.dispatch.fast_lane.envelope_registry import Placed
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

    key: bytes | str
    """Key of its messages, or the reason for the celery lane."""
    queue: str
    """Job-specific queue; empty if there is none."""


class Placing:
    """See the module."""

    def __init__(self, routes: RouteTable, queues: QueueRegistry) -> None:
        self._routes = routes
        self._queues = queues
        self._placed: WeakKeyDictionary[Envelope, dict[Route, _RoutePlace]] = WeakKeyDictionary()
        """Envelope → places by route."""

    def split(self, group: Group, jobs: JobColumns) -> Iterator[Group]:
        """Yield the jobs of a group that can be sent, with their places, and the others by what keeps them back."""
        envelope = group.answer
        has_queues = QUEUE in group.form.options
        if not isinstance(envelope, Envelope) or not (envelope.places is not None or has_queues):
            yield group
            return
        distinct, inverse = np.unique(jobs.route[group.positions], return_inverse=True)
        places = [self._place_of(index, group.form, envelope) for index in distinct.tolist()]
        states = self._queues.find([place.queue for place in places if place.queue]) if has_queues else {}
        found: list[bytes | str | Declaring] = [states.get(place.queue) or place.key for place in places]
        keys = list(dict.fromkeys(key for key in found if isinstance(key, bytes)))
        answers = list(dict.fromkeys(answer for answer in found if not isinstance(answer, bytes)))
        numbers = {one: number for number, one in enumerate((*keys, *answers))}
        of_each = np.array([numbers[one] for one in found], np.int64)[inverse]
        if keys:
            at = np.zeros(int(group.positions.max()) + 1, np.int64)
            at[group.positions] = of_each
            placed = None if keys == [envelope.key] else Placed(keys, at)
            yield group._replace(positions=group.positions[of_each < len(keys)], placed=placed)
        for answer in answers:
            yield group._replace(answer=answer, positions=group.positions[of_each == numbers[answer]])

    def _place_of(self, index: int, form: Form, envelope: Envelope) -> _RoutePlace:
        by_route = self._placed.setdefault(envelope, {})
        route = self._routes[index]
        found = by_route.get(route)
        if found is None:
            if len(by_route) >= PLACES_MAX:
                by_route.clear()
            found = by_route[route] = self._find(route, form, envelope)
        return found

    @staticmethod
    def _find(route: Route, form: Form, envelope: Envelope) -> _RoutePlace:
        try:
            own = own_of(route, form)
            key = envelope.key_of(own)
        except Exception as error:  # concerns one job
            return _RoutePlace(reason_of(error), "")
        return _RoutePlace(key, str(own.options.get(QUEUE, "")) if isinstance(key, bytes) else "")
