"""All errors that this package raises, in one tree.

A message names the object, the given value, the expected value and the remedy.
"""

from __future__ import annotations


class WheelbeatError(Exception):
    """Root of all errors of celery-wheelbeat."""


class InvalidSchedule(WheelbeatError, ValueError):
    """The schedule cannot be run exactly as written."""


class InvalidSetting(WheelbeatError, ValueError):
    """A ``wheelbeat_*`` setting is unknown or out of range, or the transport of the broker cannot be loaded."""


class InvalidMonitor(WheelbeatError, ValueError):
    """A monitor or entry cannot be run or sent. ``field``: the column; ``reason``: why.

    ``name``: the name of the monitor; empty if the caller did not need it.
    """

    def __init__(self, field: str, reason: str, name: str = "") -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason
        self.name = name


class TooManyJobs(WheelbeatError):
    """There are more monitors than this beat may hold, or has memory for; it does not start."""


class SourceError(WheelbeatError):
    """The database of the monitors did not answer, or its answer was invalid."""


class CursorLost(SourceError):
    """The change log no longer covers the cursor; the whole table must be read again.

    ``reason`` is one of ``pruned failover replaced truncated manual``.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the change log cannot be continued from the stored cursor: {reason}")
        self.reason = reason


class ClaimStoreDown(WheelbeatError):
    """The claim store did not answer within its time-out, or its answer was invalid."""


class RollDown(WheelbeatError):
    """A roll, where beats say that they are here, did not answer within its time-out, or its answer was invalid."""


class InvalidRequest(WheelbeatError, ValueError):
    """A request to run a job now, or a one-off run, is malformed or cannot be sent."""


class KeyInUse(WheelbeatError):
    """A one-off run with the same key is to come, and ``on_conflict="error"`` was asked for."""


class SendFailed(WheelbeatError):
    """A manual run could not be handed to the broker; the message holds Celery's reason."""


def reason_of(exc: BaseException) -> str:
    """Return type and message of ``exc`` in one line of at most 500 characters, even if ``str(exc)`` raises."""
    try:
        text = " ".join(str(exc).split()) or "no message"
    except Exception as broken:
        text = f"its text raises {type(broken).__name__}"
    return f"{type(exc).__name__}: {text}"[:500]
