"""The worker side: one of several copies of a run executes, and runs that must not overlap do not.

``install(app)`` in the module that makes the Celery app is all that is needed. Claims are never made by a scheduler,
and a message that does not come from one passes through at the cost of one look-up.
"""

from __future__ import annotations

from typing import Any


def install(app: Any) -> None:
    """Let the workers of ``app`` drop copies of runs and prevent overlap; may be called again. No I/O here.

    ``wheelbeat_worker = False`` switches it off. Settings and task options are checked when a worker starts.
    """
    from celery_wheelbeat.worker.hooks.install import install_side  # noqa: PLC0415 - a beat imports this package for its headers

    install_side(app)
