"""Every error that this package raises, in one tree.

Messages name the thing, the value given, what was expected and what to do about it.
"""

from __future__ import annotations


class WheelbeatError(Exception):
    """Root of all errors of celery-wheelbeat."""


class InvalidSchedule(WheelbeatError, ValueError):
    """A schedule that cannot be run exactly as it is written."""


class InvalidSetting(WheelbeatError, ValueError):
    """A ``wheelbeat_*`` setting that is unknown or out of range, or a broker whose transport cannot be loaded."""


class InvalidMonitor(WheelbeatError, ValueError):
    """A monitor or entry that cannot be sent; ``field`` names the column, ``reason`` says why.

    ``name`` is that of the monitor, empty where nobody has asked for one.
    """

    def __init__(self, field: str, reason: str, name: str = "") -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason
        self.name = name


class TooManyJobs(WheelbeatError):
    """More monitors than this beat may or can hold: it does not start."""


class SourceError(WheelbeatError):
    """The database that holds the monitors did not answer, or answered what it must not."""


class CursorLost(SourceError):
    """The change log no longer covers our cursor: the whole table has to be read again.

    ``reason`` is one of ``pruned failover replaced truncated manual``.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the change log cannot be continued from the stored cursor: {reason}")
        self.reason = reason


class ClaimStoreDown(WheelbeatError):
    """The store of the claims did not answer within its time-out, or answered what it must not."""


class InvalidRequest(WheelbeatError, ValueError):
    """A request to run a job now that is none, or too old to be recognised as made before."""


class SendFailed(WheelbeatError):
    """A run by hand that could not be handed to the broker; the reason is Celery's own."""


def reason_of(exc: BaseException) -> str:
    """Say in one line what went wrong; foreign code may raise what cannot say it."""
    try:
        text = " ".join(str(exc).split()) or "no message"
    except Exception as broken:
        text = f"its text raises {type(broken).__name__}"
    return f"{type(exc).__name__}: {text}"[:500]
