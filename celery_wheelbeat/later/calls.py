"""The calls of an application: store a task to be sent once, cancel it, move it, look for it.

Every call is part of the transaction that is open on the given connection: a run is sent only if that transaction
commits. Without ``connection`` or ``using``, the connection of Django is taken, or one is opened for the call.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from celery import current_app
from kombu.utils import json as kombu_json

from celery_wheelbeat.errors import InvalidRequest, KeyInUse
from celery_wheelbeat.jobs.rows import Limits
from celery_wheelbeat.later.connections import caller_of
from celery_wheelbeat.later.opening import application_connection
from celery_wheelbeat.later.run import LaterRun, later_run
from celery_wheelbeat.later.writers import Cancelled, Found, LaterWriter, writer_of
from celery_wheelbeat.runtime.clock import SystemClock
from celery_wheelbeat.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Conflict = Literal["keep", "replace", "earliest", "error"]
"""What happens if a run with the same key is still to come."""

_EPOCH = datetime.fromtimestamp(0, UTC)
_CONFLICTS = ("keep", "replace", "earliest", "error")


def apply_at(
    signature: Any,
    at: datetime,
    *,
    key: str | None = None,
    on_conflict: Conflict = "keep",
    spread: float = 0.0,
    using: str | None = None,
    connection: Any = None,
) -> str:
    """Store ``signature`` to be sent once, at ``at``, and return its task id.

    ``at``: an aware datetime; what lies in the past is sent at once. A run is never sent early, and up to
    ``wheelbeat_tick`` late.
    ``key``: at most one run with this key is to come. ``on_conflict`` decides between it and this one: ``keep`` it,
    ``replace`` it, keep the ``earliest``, or raise ``KeyInUse`` (``error``). The id of the one that stays is returned.
    ``spread``: seconds within which the run is moved later, so that many runs of one instant do not come at once.
    ``using``: alias of a Django database; ``connection``: a connection of psycopg, sqlite3, Django or SQLAlchemy.

    Raises ``InvalidRequest`` for what cannot be stored or sent; errors of the database are those of its driver.
    """
    if on_conflict not in _CONFLICTS:
        raise InvalidRequest(f"on_conflict: {on_conflict!r}: expected one of {', '.join(_CONFLICTS)}")
    run = _run_of(signature, _ms_of(at), key=key, spread=spread)
    with _writer(using, connection, _app_of(signature)) as writer:
        return _insert(writer, run, on_conflict)


def apply_many(
    task: Any,
    rows: Iterable[tuple[Sequence[Any], dict[str, Any], datetime]],
    *,
    spread: float = 0.0,
    using: str | None = None,
    connection: Any = None,
) -> list[str]:
    """Store one run of ``task`` for each (args, kwargs, at) of ``rows``, and return their task ids in order.

    PostgreSQL gets them by COPY. All are checked before the first one is written.
    """
    limits = _limits(task)
    runs = [
        _run_of({"task": task.name, "args": args, "kwargs": kwargs}, _ms_of(at), key=None, spread=spread, limits=limits)
        for args, kwargs, at in rows
    ]
    with _writer(using, connection, _app_of(task)) as writer:
        writer.insert(runs)
    return [run.id for run in runs]


def now(signature: Any, *, using: str | None = None, connection: Any = None) -> str:
    """Store ``signature`` to be sent as soon as the caller's transaction has committed, and return its task id.

    If the transaction rolls back, or the process dies before it commits, nothing is sent.
    """
    run = _run_of(signature, SystemClock().wall_ms(), key=None, spread=0.0)
    with _writer(using, connection, _app_of(signature)) as writer:
        writer.insert([run])
    return run.id


def cancel(
    *,
    id: str | None = None,  # noqa: A002 - the word of the field
    key: str | None = None,
    using: str | None = None,
    connection: Any = None,
) -> Cancelled:
    """Cancel the run with this task id or key. It is in force if it commits two seconds before the run is due."""
    with _writer(using, connection) as writer:
        found = _find(writer, id, key, lock=True)
        if found is None:
            return Cancelled.UNKNOWN
        if found.too_late or not writer.cancel(found.run.id):
            return Cancelled.TOO_LATE
        return Cancelled.CANCELLED


def move(
    at: datetime,
    *,
    id: str | None = None,  # noqa: A002 - the word of the field
    key: str | None = None,
    using: str | None = None,
    connection: Any = None,
) -> str | None:
    """Move the run with this task id or key to ``at``; returns its new id, or None if it is too late or unknown.

    The id changes, because an id names the second of its run.
    """
    at_ms = _ms_of(at)
    with _writer(using, connection) as writer:
        found = _find(writer, id, key, lock=True)
        if found is None or found.too_late or not writer.cancel(found.run.id):
            return None
        moved = found.run.moved(at_ms)
        writer.insert([moved])
        return moved.id


def pending(
    *,
    id: str | None = None,  # noqa: A002 - the word of the field
    key: str | None = None,
    using: str | None = None,
    connection: Any = None,
) -> LaterRun | None:
    """Return the run with this task id or key that can still be cancelled or moved; None if there is none."""
    with _writer(using, connection) as writer:
        found = _find(writer, id, key, lock=False)
        return None if found is None or found.too_late else found.run


def count(from_: datetime, to: datetime, *, using: str | None = None, connection: Any = None) -> int:
    """Return the number of runs that are due from ``from_`` to ``to`` (exclusive), to the second."""
    with _writer(using, connection) as writer:
        return writer.count(_ms_of(from_) // 1000, -(-_ms_of(to) // 1000))


def _insert(writer: LaterWriter, run: LaterRun, on_conflict: Conflict) -> str:
    found = None if run.key is None else writer.of_key(run.key, lock=True)
    if found is not None and not found.too_late:
        if on_conflict == "error":
            raise KeyInUse(
                f"key {run.key!r}: {found.run.task} is to run at {found.run.at.isoformat()} ({found.run.id})"
            )
        if on_conflict == "keep" or (on_conflict == "earliest" and found.run.at_ms <= run.at_ms):
            return found.run.id
        writer.cancel(found.run.id)
    writer.insert([run])
    return run.id


def _find(writer: LaterWriter, run_id: str | None, key: str | None, *, lock: bool) -> Found | None:
    if (run_id is None) == (key is None):
        raise InvalidRequest("expected either id= or key=")
    return writer.of_key(key, lock=lock) if key is not None else writer.of_id(str(run_id), lock=lock)


def _run_of(signature: Any, at_ms: int, *, key: str | None, spread: float, limits: Limits | None = None) -> LaterRun:
    given = limits or _limits(signature)
    return later_run(signature, at_ms, now_ms=SystemClock().wall_ms(), key=key, spread_s=spread, limits=given)


def _limits(of: Any) -> Limits:
    """Return the limits in the settings of the app to which a task or signature belongs."""
    return Limits.of(Settings.from_conf(_app_of(of).conf), kombu_json.loads)


def _app_of(of: Any) -> Any:
    """Return the app to which a task or signature belongs."""
    return getattr(of, "app", None) or current_app


def _ms_of(at: Any) -> int:
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise InvalidRequest(f"at: {at!r:.80}: expected an aware datetime, such as timezone.now() + timedelta(days=3)")
    return -((_EPOCH - at) // timedelta(milliseconds=1))  # up: a run is never sent early


@contextmanager
def _writer(using: str | None, connection: Any, app: Any = None) -> Iterator[LaterWriter]:
    if connection is not None:
        caller = caller_of(connection)
        if caller.vendor != "redis" and Settings.from_conf((app or current_app).conf).later_url is not None:
            raise InvalidRequest("connection: wheelbeat_later_url is set, so one-off runs do not lie in a database")
        yield writer_of(caller)
        return
    with application_connection(using, app) as opened:
        yield writer_of(caller_of(opened))
