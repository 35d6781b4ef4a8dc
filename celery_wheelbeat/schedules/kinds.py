"""The kinds of schedules, the types of their columns, and the interface of polled schedules."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
UInt32s = NDArray[np.uint32]
Positions = NDArray[np.integer[Any]] | NDArray[np.bool_] | slice
"""An index into a column."""

ALWAYS_MS = -(2**62)
"""``start_ms`` of a job without a start."""
NEVER_MS = 2**62
"""``end_ms`` of a job without an end; also: no fire time."""


class Kind:
    """Kind of schedule of a job: values of ``DefinitionBatch.kind``.

    Plain ints, not enum members: numpy looks up attributes on the class of its operand and swallows any exception
    raised meanwhile, including the SystemExit of a signal handler.
    """

    INTERVAL: Final = 0
    CRON: Final = 1
    ONCE: Final = 2
    POLLED: Final = 3
    """Asked by the poll lane: solar events, custom Celery schedules, ``nowfun``."""


class Polled(Protocol):
    """A schedule of the poll lane. It may be slow and may raise; it serves one job."""

    def ask(self, now_ms: int) -> Asked:
        """Return the fire time due at ``now_ms``, if any, and when to ask again."""


class Asked(NamedTuple):
    """The answer of a polled schedule."""

    fire_ms: int | None
    """The due fire time, or None."""
    ask_again_ms: int
    """The instant at which to ask again; NEVER_MS ends the job."""
