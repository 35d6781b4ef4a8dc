"""Progress of a bulk change that may take several requests.

A pass ascends the primary keys up to the greatest one at its start, so monitors added later are not changed. Its state
travels through the browser, signed: the server stores nothing, and only a confirmed pass can be continued. A step is
bounded in time: it always completes its first chunk, and starts another only within STEP_S.
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
"""Roughly one step. Monitors that leave the filter during the step are still changed."""
SALT = "wheelbeat.walk.2"
VALID_S = 3600
REFUSED_SHOWN = 20


class BulkPass(NamedTuple):
    """Progress of one bulk change."""

    scope: str
    """Digest of the confirmed action, filter and selection."""
    user: str
    after: int
    """Greatest primary key processed."""
    until: int
    total: int
    """Number of monitors when the pass started."""
    seen: int = 0
    refused: int = 0
    entries: Entries = Entries()
    refusals: tuple[tuple[str, str], ...] = ()
    """Name and reason of the first REFUSED_SHOWN refused monitors."""
    given: str = ""
    """The typed values as a query string."""

    @property
    def changed(self) -> int:
        """Number of monitors changed so far."""
        return self.entries.changed

    @property
    def finished(self) -> bool:
        """Whether every monitor has been processed."""
        return self.after >= self.until

    def signed(self) -> str:
        """Return the pass as signed text for a hidden form field."""
        return signing.dumps(self, salt=SALT, compress=True)


def begin(scope: str, user: Any, monitors: Any, total: int, given: str) -> BulkPass:
    """Return a new pass over ``monitors``, a queryset of ``total`` rows."""
    ends = monitors.order_by().aggregate(first=Min("pk"), last=Max("pk"))
    if ends["first"] is None:
        return BulkPass(scope, str(user.pk), 0, 0, total, given=given)
    return BulkPass(scope, str(user.pk), ends["first"] - 1, ends["last"], total, given=given)


def read(text: str, scope: str, user: Any) -> BulkPass | None:
    """Return a pass from its signed text; None if it is forged, older than an hour, or of another scope or user."""
    try:
        *values, entries, refusals, given = signing.loads(text, salt=SALT, max_age=VALID_S)
    except signing.BadSignature:
        return None
    bulk_pass = BulkPass(*values, Entries(*entries), tuple(map(tuple, refusals)), given)
    return bulk_pass if (bulk_pass.scope, bulk_pass.user) == (scope, str(user.pk)) else None


def step(bulk_pass: BulkPass, monitors: Any, operation: Operation, user: Any) -> BulkPass:
    """Process some more chunks of ``monitors`` and return the pass after them."""
    started_s = monotonic()
    every = monitors.model._default_manager.using(monitors.db)
    for ids in chunks_of_ids(monitors.filter(pk__gt=bulk_pass.after, pk__lte=bulk_pass.until), ahead=CHUNKS_AHEAD):
        outcome, entries = _change(bulk_pass, every.all(), ids, operation, user)
        bulk_pass = bulk_pass._replace(
            after=ids[-1],
            seen=bulk_pass.seen + len(ids),
            refused=bulk_pass.refused + len(outcome.refused),
            entries=entries,
            refusals=(*bulk_pass.refusals, *outcome.refused.items())[:REFUSED_SHOWN],
        )
        if monotonic() - started_s >= STEP_S:
            return bulk_pass
    return bulk_pass._replace(after=bulk_pass.until)


def _change(
    bulk_pass: BulkPass, monitors: Any, ids: Sequence[int], operation: Operation, user: Any
) -> tuple[Outcome, Entries]:
    if bulk_pass.total > BULK_ROWS:
        return change_chunk_of_many(monitors, ids, operation, user, bulk_pass.entries)
    outcome = change_chunk(monitors, ids, operation, user)
    return outcome, bulk_pass.entries._replace(changed=bulk_pass.changed + len(outcome.changed))
