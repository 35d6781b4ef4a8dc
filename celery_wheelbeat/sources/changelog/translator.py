"""Compile rows to changes, and keep the fingerprints of all rows handed over.

Invariant: each row that leaves is recorded by its fingerprint; each row that does not compile is quarantined with its
reason and leaves as deleted. One such row never stops the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from celery_wheelbeat.jobs.definitions import ChangeBatch, DefinitionBatch
from celery_wheelbeat.sources.changelog.fingerprints import Differences, Fingerprints, fingerprint_of
from celery_wheelbeat.sources.changelog.quarantine import Quarantine

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from celery_wheelbeat.errors import InvalidMonitor
    from celery_wheelbeat.jobs.compile import Compiled
    from celery_wheelbeat.jobs.compile_columns import Shapes
    from celery_wheelbeat.jobs.rows import MonitorRow
    from celery_wheelbeat.schedules.kinds import Int64s, UInt32s
    from celery_wheelbeat.sources.changelog.bulk_load import ColumnBlock, Taken

MANY_ROWS = 100
"""Minimum number of rows that are compiled as columns."""
NO_IDS = np.empty(0, np.int64)


class Translated(NamedTuple):
    """Compiled rows for the engine."""

    changes: ChangeBatch
    refused: Mapping[int, InvalidMonitor]


class _Complete(NamedTuple):
    """A block, completely compiled."""

    batch: DefinitionBatch
    ids: Int64s
    """Of all rows, refused ones included; ascending."""
    prints: UInt32s
    refused: Mapping[int, InvalidMonitor]


class Translator:
    """Compiles monitors; knows which were handed over and which are quarantined."""

    def __init__(
        self,
        compile_rows: Callable[[Sequence[MonitorRow]], Compiled],
        shapes: Shapes | None = None,
        taken_names: Collection[str] = (),
    ) -> None:
        """``shapes`` compiles whole columns; ``taken_names``: names that monitors must not have, a live collection."""
        self.shapes = shapes
        self.taken_names = taken_names
        self._compile_rows = compile_rows
        self._fingerprints = Fingerprints()
        self.quarantine = Quarantine()

    def __len__(self) -> int:
        return len(self._fingerprints)

    def ids(self) -> Int64s:
        """Return the ids of all monitors that were handed over, ascending."""
        return self._fingerprints.ids()

    def translate(self, rows: Sequence[MonitorRow], missing: Sequence[int] = ()) -> Translated:
        """Compile ``rows``; the ``missing`` ids become deletions."""
        compiled = self._compile(rows)
        self.quarantine.refuse(compiled.refused, compiled.hashes)
        self.quarantine.lift([*compiled.batch.ids.tolist(), *missing])
        self._fingerprints.record(rows)
        self._fingerprints.forget(missing)
        deleted = np.array(sorted({*missing, *compiled.refused}), np.int64)
        return Translated(ChangeBatch(compiled.batch, deleted), compiled.refused)

    def translate_block(self, taken: Taken) -> tuple[Translated, list[int]]:
        """Complete a block of columns; also returns the ids that its range held before and no longer holds."""
        complete = self._complete(taken.block)
        gone = self._fingerprints.record_block(taken.after_id, taken.up_to_id, complete.ids, complete.prints)
        deleted = np.array(sorted(complete.refused), np.int64)
        return Translated(ChangeBatch(complete.batch, deleted), complete.refused), gone

    def translate_changed(self, block: ColumnBlock, asked: Int64s) -> Translated:
        """Complete the columns of changed monitors; the ids in ``asked`` that were not read become deletions."""
        complete = self._complete(block)
        missing = np.setdiff1d(asked, complete.ids)
        self.quarantine.lift(missing.tolist())
        self._fingerprints.record_prints(complete.ids, complete.prints)
        self._fingerprints.forget(missing)
        deleted = np.union1d(missing, np.array(sorted(complete.refused), np.int64))
        return Translated(ChangeBatch(complete.batch, deleted), complete.refused)

    def differences(self, after_id: int, rows: Sequence[MonitorRow], *, last: bool) -> Differences:
        """Compare a block of the table with the rows handed over."""
        return self._fingerprints.differences(after_id, rows, last=last)

    def match(self, row: MonitorRow) -> bool:
        """Return whether the row equals the one handed over."""
        return self._fingerprints.match(row)

    def all_read(self) -> None:
        """End a pass over the table: lift quarantined monitors that the table no longer has."""
        self.quarantine.keep_only([job_id for job_id in self.quarantine.ids() if job_id in self._fingerprints])

    def _complete(self, block: ColumnBlock) -> _Complete:
        """Compile the rows of a block that are not part of its columns."""
        compiled = self._compile(block.rows)
        self.quarantine.refuse(compiled.refused, compiled.hashes)
        self.quarantine.lift(compiled.batch.ids.tolist())
        if not block.rows:
            return _Complete(block.batch, block.batch.ids, block.prints, compiled.refused)
        ids = np.concatenate((block.batch.ids, np.array([row.id for row in block.rows], np.int64)))
        prints = np.concatenate((block.prints, np.array([fingerprint_of(row) for row in block.rows], np.uint32)))
        order = np.argsort(ids)
        batch = DefinitionBatch.merged([block.batch, compiled.batch])
        return _Complete(batch, ids[order], prints[order], compiled.refused)

    def _compile(self, rows: Sequence[MonitorRow]) -> Compiled:
        if self.shapes is None or len(rows) < MANY_ROWS:
            return self._compile_rows(rows)
        by_id = {row.id: row for row in rows}
        rows = [by_id[job_id] for job_id in sorted(by_id)]
        columns = self.shapes.columns_of(rows, self.taken_names)
        self.shapes.learn({number: by_id[job_id] for number, job_id in self.shapes.unknown(columns).items()})
        split = self.shapes.compile(columns, NO_IDS)
        rest = self._compile_rows([row for row, plain in zip(rows, split.plain.tolist(), strict=True) if not plain])
        return rest._replace(batch=DefinitionBatch.merged([split.batch, rest.batch]))
