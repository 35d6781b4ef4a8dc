"""Follow the table of monitors: load, change log, resync and reconcile, one bounded step at a time.

The caller passes the time. A step either returns what it read, or raises and leaves the state unchanged; the caller
then retries it. Load, resync and reconcile share one routine: key blocks, each read in one snapshot together with a
poll. A difference between block and memory is therefore never an edit whose log row has not been read yet.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from celery_wheelbeat.errors import CursorLost
from celery_wheelbeat.jobs.definitions import ChangeBatch
from celery_wheelbeat.sources.changelog.bulk_load import BLOCK_ROWS, BulkLoad
from celery_wheelbeat.sources.changelog.table_pass import Purpose, TablePass
from celery_wheelbeat.sources.messages import Changed, Loaded, Sized

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_wheelbeat.jobs.compile_columns import Shapes
    from celery_wheelbeat.jobs.rows import MonitorRow
    from celery_wheelbeat.schedules.kinds import Int64s
    from celery_wheelbeat.sources import MonitorSource, Poll, RowBlock, Snapshot
    from celery_wheelbeat.sources.changelog.bulk_load import ColumnReader
    from celery_wheelbeat.sources.changelog.fingerprints import Differences
    from celery_wheelbeat.sources.changelog.translator import Translator
    from celery_wheelbeat.sources.messages import SourceMessage

logger = logging.getLogger(__name__)

NO_IDS: Int64s = np.empty(0, np.int64)
TAKE_S = 0.5
"""Longest wait of one load step for its next block."""
SLICE_ROWS = 2_000
"""Changed monitors per step: a million edits at once do not delay a tick."""
MANY_ROWS = 10_000
"""With at least this many changed monitors pending, they are read as columns, if the database supports it."""


@dataclass(slots=True)
class Findings:
    """Counters of the follower. Only the I/O thread writes them."""

    polls: int = 0
    loaded_rows: int = 0
    """Monitors read by the initial load so far."""
    expected_rows: int = 0
    """Monitors that the initial load should read; an estimate of the database."""
    changes: int = 0
    resyncs: Counter[str] = field(default_factory=Counter)
    reconcile_rounds: int = 0
    drift_found: int = 0
    """Monitors that differed from the table although the log has a row for their change; the only good value is 0."""
    reconciled_untriggered: int = 0
    """Monitors that changed without a log row (triggers disabled, a cascade that fires none)."""
    oldest_transaction_s: float = 0.0


class _ColumnPath(NamedTuple):
    """What reading monitors as columns needs."""

    open_reader: Callable[[], ColumnReader]
    shapes: Shapes


class Follower:
    """Load, follow and reconcile one table of monitors."""

    def __init__(
        self,
        source: MonitorSource,
        definitions: Translator,
        *,
        reconcile_period_s: float,
        open_reader: Callable[[], ColumnReader] | None = None,
    ) -> None:
        """With ``open_reader``, the load reads whole columns on threads of its own, ahead of what it hands over."""
        self.findings = Findings()
        self.loaded = False
        """Whether the whole table has been handed over at least once."""
        self._source = source
        self._definitions = definitions
        shapes = definitions.shapes
        self._columns = None if open_reader is None or shapes is None else _ColumnPath(open_reader, shapes)
        self._bulk: BulkLoad | None = None
        self._reader: ColumnReader | None = None
        self._sized: list[SourceMessage] = []
        self._began_again = False
        self._slice_is_next = True
        self._period_s = reconcile_period_s
        self._cursor: Any = None
        self._walk = TablePass(Purpose.LOAD, due_s=0.0)
        self._pending: Int64s = NO_IDS
        self._block_read = False
        self._known_since_s = 0.0  # the pass over the table covers all log rows before this

    @property
    def behind(self) -> int:
        """Number of changed monitors that are not handed over yet."""
        return len(self._pending)

    @property
    def purpose(self) -> Purpose:
        """Purpose of the current pass over the table."""
        return self._walk.purpose

    def step(self, now_s: float) -> tuple[list[SourceMessage], bool]:
        """Do one bounded piece of work; returns the messages and whether more work is waiting.

        ``now_s`` is monotonic. Raises ``SourceError`` if the database does not answer. A lost cursor starts a resync,
        or restarts the load.
        """
        try:
            if self._cursor is None:
                snapshot = self._begin(Purpose.LOAD, now_s)
                self._sized = [Sized(snapshot.count_estimate, snapshot.text_bytes)]
            messages = self._sized + self._next(now_s)
            self._sized = []
        except CursorLost as lost:
            self._begin(Purpose.RESYNC if self.loaded else Purpose.LOAD, now_s)
            self.findings.resyncs[lost.reason] += 1
            logger.warning("changelog.resync: %s; the whole table is read again", lost)
            return [], True
        return messages, bool(len(self._pending)) or self._walk.purpose is not Purpose.RECONCILE

    def reread(self, ids: Sequence[int] | None) -> None:
        """Fetch these monitors again in the next steps, changed or not; None = all that were handed over."""
        wanted = self._definitions.ids() if ids is None else np.array(ids, np.int64)
        self._pending = np.union1d(self._pending, wanted)

    def rest(self, begun_s: float, ended_s: float) -> None:
        """Record when the last step began and ended; after a block, the reconcile rests in proportion."""
        if self._block_read:
            self._block_read = False
            self._walk.pace(begun_s, ended_s, period_s=self._period_s, monitors=len(self._definitions))

    def close(self) -> None:
        """Stop the readers of an unfinished load and of changed columns."""
        bulk, self._bulk = self._bulk, None
        if bulk is not None:
            bulk.close()
        self._close_reader()

    def _next(self, now_s: float) -> list[SourceMessage]:
        ready = self._pending[self._walk.has_passed(self._pending)]
        ahead = self._reads_ahead
        if len(ready) and (self._slice_is_next or ahead is None):
            self._slice_is_next = False
            return self._hand_over_slice(ready)
        self._slice_is_next = True
        if now_s >= self._walk.due_s:
            return self._read_block(now_s) if ahead is None else self._take_block(ahead, now_s)
        self._take_in(self._source.poll(self._cursor))
        return self._hand_over_slice(self._pending) if len(self._pending) else []

    @property
    def _reads_ahead(self) -> _ColumnPath | None:
        """How the current pass reads columns ahead of what it hands over; None if it does not."""
        return self._columns if self._walk.purpose is Purpose.LOAD else None

    def _begin(self, purpose: Purpose, now_s: float) -> Snapshot:
        self.close()
        self._began_again = self._cursor is not None
        snapshot = self._source.snapshot()
        self._cursor = snapshot.cursor
        self._walk = TablePass(purpose, due_s=now_s)
        self._known_since_s = now_s
        self._pending = NO_IDS  # the pass reads them
        if purpose is Purpose.LOAD:
            self.findings.loaded_rows, self.findings.expected_rows = 0, snapshot.count_estimate
        return snapshot

    def _take_in(self, poll: Poll) -> None:
        """Add the polled ids to the pending ones and move the cursor.

        Ids that the pass has not reached are left out, because the pass will read them. A load that reads ahead may
        have read those rows before the change, so it keeps all ids.
        """
        self.findings.polls += 1
        self.findings.oldest_transaction_s = poll.oldest_transaction_s
        if len(poll.ids):
            ids = poll.ids if self._reads_ahead is not None else poll.ids[self._walk.has_passed(poll.ids)]
            self._pending = np.union1d(self._pending, ids)
        self._cursor = poll.cursor

    def _hand_over_slice(self, ready: Int64s) -> list[SourceMessage]:
        """Hand over the first of ``ready``, the lowest pending ids."""
        if self._columns is not None and len(ready) >= MANY_ROWS:
            return self._hand_over_columns(self._columns, ready[:BLOCK_ROWS])
        self._close_reader()
        ids = ready[:SLICE_ROWS]
        rows = self._source.fetch(ids.tolist())
        missing = np.setdiff1d(ids, [row.id for row in rows])
        self._pending = self._pending[len(ids) :]
        self.findings.changes += len(ids)
        return [Changed(*self._definitions.translate(rows, missing.tolist()))]

    def _hand_over_columns(self, columns: _ColumnPath, ids: Int64s) -> list[SourceMessage]:
        """Read the lowest pending ids as columns: a tenth of the work of rows, for the engine too."""
        self._reader = self._reader or columns.open_reader()
        block = self._reader.read_ids(ids, columns.shapes, self._excluded(self._reader))
        self._pending = self._pending[len(ids) :]
        self.findings.changes += len(ids)
        return [Changed(*self._definitions.translate_changed(block, ids))]

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _take_block(self, columns: _ColumnPath, now_s: float) -> list[SourceMessage]:
        """Take the next block of a load that reads ahead; after an error the readers restart at the pass's position."""
        try:
            if self._bulk is None:
                self._bulk = self._open_bulk(columns)
            self._take_in(self._source.poll(self._cursor))
            taken = self._bulk.take(TAKE_S)
            if taken is None:
                return []
            (changes, refused), gone = self._definitions.translate_block(taken)
        except BaseException:
            self.close()
            raise
        self.findings.loaded_rows += len(changes.upserts) + len(refused)
        self._walk.after_id = taken.up_to_id
        if taken.last:
            self.close()
            self._end_walk(now_s)
        messages: list[SourceMessage] = [Loaded(changes.upserts, refused, taken.last)]
        if self._began_again and (gone or refused):
            deleted = np.union1d(np.array(gone, np.int64), changes.deleted_ids)
            messages.insert(0, Changed(ChangeBatch(self._definitions.translate([]).changes.upserts, deleted), {}))
        return messages

    def _open_bulk(self, columns: _ColumnPath) -> BulkLoad:
        reader = columns.open_reader()
        try:
            cuts = reader.cuts(self._walk.after_id, BLOCK_ROWS) or [self._walk.after_id]
            excluded = self._excluded(reader)
        finally:
            reader.close()
        return BulkLoad(*columns, after_id=self._walk.after_id, cuts=cuts, excluded=excluded)

    def _excluded(self, reader: ColumnReader) -> Int64s:
        """Return the monitors to compile row by row: those with a taken name, and the quarantined ones."""
        taken = reader.named(list(self._definitions.taken_names))
        return np.union1d(taken, np.array(self._definitions.quarantine.ids(), np.int64))

    def _read_block(self, now_s: float) -> list[SourceMessage]:
        walk = self._walk
        block = self._source.block(walk.after_id, walk.rows, self._cursor)
        differences = self._definitions.differences(walk.after_id, block.rows, last=block.last)
        if walk.purpose is Purpose.LOAD:
            self.findings.loaded_rows += len(block.rows)
        if walk.purpose is Purpose.RECONCILE:
            messages = self._reconcile(block, differences, now_s)
        else:
            self._take_in(block.poll)
            messages = self._hand_over_block(block, differences)
        self._block_read = True
        if block.rows:
            walk.after_id = block.rows[-1].id
        if block.last:
            self._end_walk(now_s)
        return messages

    def _hand_over_block(self, block: RowBlock, differences: Differences) -> list[SourceMessage]:
        """Hand over the rows that differ from what the engine has; in a load, every row."""
        wanted = set(differences.upserts)
        changes, refused = self._definitions.translate(
            [row for row in block.rows if row.id in wanted], differences.deleted
        )
        if self._walk.purpose is Purpose.RESYNC:
            return [Changed(changes, refused)] if wanted or differences.deleted else []
        messages: list[SourceMessage] = [Loaded(changes.upserts, refused, block.last)]
        if differences.deleted:  # only in a restarted load
            gone = np.array(differences.deleted, np.int64)
            messages.insert(0, Changed(ChangeBatch(self._definitions.translate([]).changes.upserts, gone), {}))
        return messages

    def _reconcile(self, block: RowBlock, differences: Differences, now_s: float) -> list[SourceMessage]:
        """Read differing monitors without a log row in this poll once more; count and heal those that still differ."""
        suspects = np.setdiff1d([*differences.upserts, *differences.deleted], block.poll.ids).astype(np.int64)
        if not len(suspects):
            self._take_in(block.poll)
            return []
        again = self._source.poll(block.poll.cursor)
        suspects = np.setdiff1d(suspects, again.ids)
        rows = self._source.fetch(suspects.tolist())
        wrong = [row for row in rows if not self._definitions.match(row)]
        missing = np.setdiff1d(suspects, [row.id for row in rows]).tolist()
        within_s = min(2 * self._period_s, now_s - self._known_since_s)
        logged = self._source.logged([*(row.id for row in wrong), *missing], within_s)
        self._take_in(block.poll)
        self._take_in(again)
        return self._heal(wrong, missing, logged)

    def _heal(self, wrong: Sequence[MonitorRow], missing: list[int], logged: set[int]) -> list[SourceMessage]:
        found = [*(row.id for row in wrong), *missing]
        if not found:
            return []
        self.findings.drift_found += len(logged)
        self.findings.reconciled_untriggered += len(found) - len(logged)
        if logged:
            logger.error(
                "changelog.drift: monitors %s were wrong although the change log had their changes", sorted(logged)[:20]
            )
        if len(found) > len(logged):
            unlogged = sorted(set(found) - logged)[:20]
            logger.warning("changelog.untriggered: monitors %s changed without a row in the change log", unlogged)
        return [Changed(*self._definitions.translate(wrong, missing))]

    def _end_walk(self, now_s: float) -> None:
        if self._walk.purpose is Purpose.RECONCILE:
            self.findings.reconcile_rounds += 1
        self.loaded = True
        self._definitions.all_read()
        self._walk = TablePass(Purpose.RECONCILE, due_s=now_s)
