"""Monitors that do not compile, for the table ``wheelbeat_quarantine``.

A definition that does not compile is quarantined with its hash and reason. It is lifted when the monitor compiles again
or is deleted. The scheduling thread quarantines and lifts monitors that the publisher has rejected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from celery_wheelbeat.jobs.rows import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from celery_wheelbeat.errors import InvalidMonitor

KEY_PREFIX = "monitor:"


class QuarantineChanges(NamedTuple):
    """Changes to write: job key → (definition hash, reason), and the lifted keys."""

    added: dict[str, tuple[str, str]]
    lifted: set[str]


class Quarantine:
    """Quarantined monitors by id."""

    def __init__(self) -> None:
        self._verdicts: dict[int, tuple[str, str]] = {}
        self._unwritten = QuarantineChanges({}, set())

    def __len__(self) -> int:
        return len(self._verdicts)

    def ids(self) -> list[int]:
        """Return the monitors that are quarantined."""
        return list(self._verdicts)

    def adopt(self, recorded: Mapping[str, tuple[str, str]]) -> None:
        """Take in the rows of the table at the start; keys of entries are ignored here."""
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
        """Lift the quarantined monitors among ``ids``: they compile or are deleted."""
        for job_id in self._verdicts.keys() & set(ids) if self._verdicts else ():
            del self._verdicts[job_id]
            self._unwritten.added.pop(key_of(job_id), None)
            self._unwritten.lifted.add(key_of(job_id))

    def keep_only(self, ids: Iterable[int]) -> None:
        """Lift every monitor that is not among ``ids``; for the end of a pass over the table."""
        if self._verdicts:
            self.lift(self._verdicts.keys() - set(ids))

    def take_unwritten(self) -> QuarantineChanges:
        """Return the changes to write and clear them."""
        taken, self._unwritten = self._unwritten, QuarantineChanges({}, set())
        return taken
