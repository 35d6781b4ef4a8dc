"""A first start sends no run before its mark is stored.

Without a stored mark, the next process would be a first start as well: what came due in between would neither be sent
nor counted. A database that does not store the mark within ``RECORD_S`` delays the first runs by that time only; they
are then late, not lost.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from celery_wheelbeat.sources.messages import Receipt

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("celery.beat")

RECORD_S: Final = 5.0
"""How long a first start waits for its mark to be stored."""


class FirstMark:
    """Whether one beat still waits for its first mark."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self.receipt: Receipt | None = None
        """Settled by the I/O thread; None if nothing is waited for."""
        self._monotonic_s = monotonic_s
        self._until_s = 0.0

    def begin(self) -> None:
        """Wait for the mark of a first start."""
        self.receipt = Receipt()

    def ask(self) -> Receipt | None:
        """Return the receipt with which the mark is reported; ``RECORD_S`` begin with the first call."""
        if self.is_due and self.receipt is not None:
            self.receipt.asked = True
            self._until_s = self._monotonic_s() + RECORD_S
        return self.receipt

    @property
    def is_due(self) -> bool:
        """Whether the mark is to be reported now."""
        return self.receipt is not None and not self.receipt.asked

    def must_wait(self) -> bool:
        """Return whether runs wait for the mark. The wait ends for good once the mark is stored, or cannot be."""
        receipt = self.receipt
        if receipt is None:
            return False
        if receipt.stored is None and (not receipt.asked or self._monotonic_s() <= self._until_s):
            return True
        self.receipt = None
        if not receipt.stored:
            logger.warning(
                "beat: The mark of this first start is not stored yet. If the process is killed before it is, "
                "the next start does not know which runs were missed"
            )
        return False
