"""``celery -A proj inspect wheelbeat_claims``: hook, claim store and counters of each worker.

``celery inspect`` accepts only commands registered in its own process. This module is therefore imported with the
commands of the ``celery`` program and with the worker side, however that is installed.
"""

from __future__ import annotations

from typing import Any

from celery.worker.control import inspect_command


@inspect_command(name="wheelbeat_claims")  # type: ignore[untyped-decorator]  # celery has no types
def report_claims(state: Any) -> dict[str, Any]:
    """Hook, claim store and counters of copies and overlaps."""
    from celery_wheelbeat.worker.hooks.install import installed_side  # noqa: PLC0415 - only workers

    side = installed_side(state.app)
    return {"hook": "off"} if side is None else dict(side.report())
