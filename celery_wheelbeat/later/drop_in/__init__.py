"""Tasks with an eta or countdown become one-off runs, without a change of the application's code.

Job. ``install(app)`` wraps ``Celery.send_task``, through which ``apply_async``, ``retry``, signatures, chains, groups
and chords send, and ``Control.revoke``; other apps are not affected. With ``wheelbeat_later_from``, a task that is due
in at least so many seconds is stored, and the beat sends it. The caller gets the same result object, with the same id.

Threads and owners. The wrap runs in the thread or greenlet of the caller, on the connection that ``later.opening``
lends it. ``Counts`` is shared by the threads of a process.

Never. Loses a task: what the store does not carry, and everything while it does not answer, goes to Celery as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_wheelbeat.later.drop_in.sending import DropIn
from celery_wheelbeat.later.drop_in.wraps import drop_in_of, wrap_celery

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DropIn", "counts", "drop_in_of", "install", "install_into_every_app"]


def install(app: Any) -> None:
    """Let ``app`` store tasks with an eta or countdown, if ``wheelbeat_later_from`` is set; may be called again.

    The settings are not read here, and no I/O is done.
    """
    wrap_celery(app)


def install_into_every_app() -> None:
    """Install into every app of this process, also into those that do not exist yet."""
    wrap_celery(None)


def counts(app: Any) -> Mapping[str, int]:
    """Return what this process did with tasks that were due late enough: ``stored``, or the reason why not → number."""
    drop_in = drop_in_of(app)
    return {} if drop_in is None else drop_in.counts.totals()
