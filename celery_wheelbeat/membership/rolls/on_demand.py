"""A roll that is made by its first use, in the thread that uses it: making it connects, which may fail or take long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_wheelbeat.errors import RollDown, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from celery_wheelbeat.membership import Heard, Roll


class RollOnDemand:
    """``Roll`` that ``make`` returns; ``make`` is called again if it raises."""

    def __init__(self, make: Callable[[], Roll]) -> None:
        self._make = make
        self._roll: Roll | None = None

    def beat(self, text: str) -> Heard:
        """See ``Roll``."""
        return self._made().beat(text)

    def leave(self, text: str) -> None:
        """See ``Roll``."""
        self._made().leave(text)

    def fence(self, beat_id: str) -> bool:
        """See ``Roll``."""
        return self._made().fence(beat_id)

    def forget(self, beat_ids: Collection[str]) -> None:
        """See ``Roll``."""
        self._made().forget(beat_ids)

    def close(self) -> None:
        """See ``Roll``."""
        if self._roll is not None:
            self._roll.close()

    def _made(self) -> Roll:
        if self._roll is None:
            try:
                self._roll = self._make()
            except Exception as error:
                raise RollDown(f"roll: {reason_of(error)}") from error
        return self._roll
