"""Monitors whose definition cannot be run, as the table ``wheelbeat_quarantine`` should have them.

A definition that does not compile is quarantined with its hash and reason, and lifted when one compiles or the
monitor is gone. What the publisher gave back is recorded by the scheduling thread, which also lifts it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from celery_wheelbeat.jobs.rows import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from celery_wheelbeat.errors import InvalidMonitor

KEY_PREFIX = "monitor:"


class QuarantineChanges(NamedTuple):
    """What has to be written: job key → (definition hash, reason), and the keys that are fine again."""

    added: dict[str, tuple[str, str]]
    lifted: set[str]


class Quarantine:
    """Verdicts by monitor id. Owned by the I/O thread."""

    def __init__(self) -> None:
        self._verdicts: dict[int, tuple[str, str]] = {}
        self._unwritten = QuarantineChanges({}, set())

    def __len__(self) -> int:
        return len(self._verdicts)

    def ids(self) -> list[int]:
        """Return the monitors that are quarantined."""
        return list(self._verdicts)

    def adopt(self, recorded: Mapping[str, tuple[str, str]]) -> None:
        """Take over what the table holds at the start; keys of entries are left to their source."""
        for key, verdict in recorded.items():
            if key.startswith(KEY_PREFIX):
                self._verdicts[int(key.removeprefix(KEY_PREFIX))] = verdict

    def refuse(self, refused: Mapping[int, InvalidMonitor], hashes: Mapping[int, str]) -> None:
        """Quarantine definitions that do not compile."""
        for job_id, problem in refused.items():
            verdict = (hashes[job_id], str(problem))
            if self._verdicts.get(job_id) != verdict:
                self._verdicts[job_id] = verdict
                self._unwritten.lifted.discard(key_of(job_id))
                self._unwritten.added[key_of(job_id)] = verdict

    def lift(self, ids: Iterable[int]) -> None:
        """Lift those of ``ids`` that are quarantined: they compiled, or are gone."""
        for job_id in self._verdicts.keys() & set(ids) if self._verdicts else ():
            del self._verdicts[job_id]
            self._unwritten.added.pop(key_of(job_id), None)
            self._unwritten.lifted.add(key_of(job_id))

    def keep_only(self, ids: Iterable[int]) -> None:
        """Lift every monitor that is not among ``ids``; for the end of a whole read."""
        if self._verdicts:
            self.lift(self._verdicts.keys() - set(ids))

    def take_unwritten(self) -> QuarantineChanges:
        """Return what has to be written, once."""
        taken, self._unwritten = self._unwritten, QuarantineChanges({}, set())
        return taken
