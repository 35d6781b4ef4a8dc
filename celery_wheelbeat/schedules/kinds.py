"""The kinds of schedules, and the values that all of them share."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
UInt32s = NDArray[np.uint32]
Positions = NDArray[np.integer[Any]] | NDArray[np.bool_] | slice
"""What picks elements of a column."""

ALWAYS_MS = -(2**62)
"""``start_ms`` of a job without a start."""
NEVER_MS = 2**62
"""``end_ms`` of a job without an end; a fire time that will not come."""


class Kind:
    """What computes the fire times of a job: values of ``DefinitionBatch.kind``.

    The values of columns are plain ints, never members of an enum: numpy looks attributes up in the class of its
    operand and clears whatever is raised in there, be it the SystemExit of a signal handler.
    """

    INTERVAL: Final = 0
    CRON: Final = 1
    ONCE: Final = 2
    POLLED: Final = 3
    """Asked in the poll lane: solar events, custom Celery schedules, ``nowfun``."""


class Polled(Protocol):
    """A schedule of the poll lane. It may be slow and it may raise; it is asked for one job at a time."""

    def ask(self, now_ms: int) -> Asked:
        """Say whether a run is due at ``now_ms`` and when to ask again."""


class Asked(NamedTuple):
    """The answer of a polled schedule."""

    fire_ms: int | None
    """The fire time that is due now, or None."""
    ask_again_ms: int
    """The next instant worth asking at; NEVER_MS ends the job."""
