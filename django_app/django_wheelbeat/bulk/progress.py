"""A bulk change that may take several requests: how far it has come, and the next step of it.

A walk goes up the primary keys to the greatest one that there was when it began, so monitors that come later are left
alone. It travels through the browser, signed, so that nothing has to be kept on the server and nobody can continue
what was never confirmed. One step is bounded by time: the first chunk is always done, another one only within STEP_S.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from django.core import signing
from django.db.models import Max, Min

from django_wheelbeat.bulk.chunk import Entries, change_chunk, change_chunk_of_many
from django_wheelbeat.database.audit_triggers import BULK_ROWS
from django_wheelbeat.database.chunks import chunks_of_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_wheelbeat.bulk.operations import Operation, Outcome

STEP_S = 3.0
CHUNKS_AHEAD = 8
"""About what a step does: monitors that leave the filter within those seconds are still changed."""
SALT = "wheelbeat.walk.2"
VALID_S = 3600
REFUSED_SHOWN = 20


class Walk(NamedTuple):
    """Progress of one bulk change."""

    scope: str
    """Digest of the action, the filter and the selection that were confirmed."""
    user: str
    after: int
    """Greatest primary key that is done."""
    until: int
    total: int
    """Monitors to do when it began."""
    seen: int = 0
    refused: int = 0
    entries: Entries = Entries()
    refusals: tuple[tuple[str, str], ...] = ()
    """Name and reason of the first refused monitors."""
    given: str = ""
    """Query string of what was typed."""

    @property
    def changed(self) -> int:
        """How many monitors have been changed."""
        return self.entries.changed

    @property
    def finished(self) -> bool:
        """Whether nothing is left."""
        return self.after >= self.until

    def signed(self) -> str:
        """Return it as a text for a form."""
        return signing.dumps(self, salt=SALT, compress=True)


def begin(scope: str, user: Any, monitors: Any, total: int, given: str) -> Walk:
    """Return the walk over ``monitors``, a queryset of ``total`` rows, from its beginning."""
    ends = monitors.order_by().aggregate(first=Min("pk"), last=Max("pk"))
    if ends["first"] is None:
        return Walk(scope, str(user.pk), 0, 0, total, given=given)
    return Walk(scope, str(user.pk), ends["first"] - 1, ends["last"], total, given=given)


def read(text: str, scope: str, user: Any) -> Walk | None:
    """Read a walk that came back from a form; None for one of another scope or user, forged, or an hour old."""
    try:
        *values, entries, refusals, given = signing.loads(text, salt=SALT, max_age=VALID_S)
    except signing.BadSignature:
        return None
    walk = Walk(*values, Entries(*entries), tuple(map(tuple, refusals)), given)
    return walk if (walk.scope, walk.user) == (scope, str(user.pk)) else None


def step(walk: Walk, monitors: Any, operation: Operation, user: Any) -> Walk:
    """Do some more chunks of ``monitors`` and return the walk as it stands then."""
    started_s = monotonic()
    every = monitors.model._default_manager.using(monitors.db)
    for ids in chunks_of_ids(monitors.filter(pk__gt=walk.after, pk__lte=walk.until), ahead=CHUNKS_AHEAD):
        outcome, entries = _change(walk, every.all(), ids, operation, user)
        walk = walk._replace(
            after=ids[-1],
            seen=walk.seen + len(ids),
            refused=walk.refused + len(outcome.refused),
            entries=entries,
            refusals=(*walk.refusals, *outcome.refused.items())[:REFUSED_SHOWN],
        )
        if monotonic() - started_s >= STEP_S:
            return walk
    return walk._replace(after=walk.until)


def _change(walk: Walk, monitors: Any, ids: Sequence[int], operation: Operation, user: Any) -> tuple[Outcome, Entries]:
    if walk.total > BULK_ROWS:
        return change_chunk_of_many(monitors, ids, operation, user, walk.entries)
    outcome = change_chunk(monitors, ids, operation, user)
    return outcome, walk.entries._replace(changed=walk.changed + len(outcome.changed))
