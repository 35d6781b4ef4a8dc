"""Follows the table of monitors: load, change log, resync and reconcile, one bounded step at a time.

No clock: whoever drives it says what time it is. Every step either hands over what it read or raises
and leaves the state as it was, so a step is simply tried again. A resync or reconcile is the load's routine: key
blocks, each read together with a poll in one snapshot, so that a difference between block and memory is no edit that
is still on its way.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from celery_wheelbeat.errors import CursorLost
from celery_wheelbeat.jobs.definitions import ChangeBatch
from celery_wheelbeat.sources.changelog.bulk_load import BLOCK_ROWS, Bulk
from celery_wheelbeat.sources.changelog.table_pass import Purpose, Walk
from celery_wheelbeat.sources.messages import Changed, Loaded, Sized

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_wheelbeat.jobs.compile_columns import Shapes
    from celery_wheelbeat.jobs.rows import MonitorRow
    from celery_wheelbeat.schedules.kinds import Int64s
    from celery_wheelbeat.sources import Block, MonitorSource, Poll, Snapshot
    from celery_wheelbeat.sources.changelog.bulk_load import ColumnReader
    from celery_wheelbeat.sources.changelog.fingerprints import Differences
    from celery_wheelbeat.sources.changelog.translator import Definitions
    from celery_wheelbeat.sources.messages import News

logger = logging.getLogger(__name__)

NO_IDS: Int64s = np.empty(0, np.int64)
TAKE_S = 0.5
"""How long one step of a load waits for its next block."""
SLICE_ROWS = 2_000
"""Changed monitors that one step fetches and hands over, so that a million edits never delay a tick."""
MANY_ROWS = 10_000
"""From so many changed monitors on they are read as columns, where the database can."""


@dataclass(slots=True)
class Findings:
    """What was counted. Written by the I/O thread only."""

    polls: int = 0
    loaded_rows: int = 0
    """Monitors that the initial load has read."""
    expected_rows: int = 0
    """Monitors that it was thought to read, as the database estimates."""
    changes: int = 0
    resyncs: Counter[str] = field(default_factory=Counter)
    reconcile_rounds: int = 0
    drift_found: int = 0
    """Monitors that the reconcile found wrong although the log had told of them; the only good value is 0."""
    reconciled_untriggered: int = 0
    """Monitors that changed without a row in the log (triggers disabled, a cascade that fires none)."""
    oldest_transaction_s: float = 0.0


class Follower:
    """See the module. Owned by the I/O thread."""

    def __init__(
        self,
        source: MonitorSource,
        definitions: Definitions,
        *,
        reconcile_period_s: float,
        open_reader: Callable[[], ColumnReader] | None = None,
    ) -> None:
        """``open_reader`` opens a reader of whole columns; with one, the load reads ahead of what it hands over."""
        self.findings = Findings()
        self.loaded = False
        """Whether the whole table has been handed over once."""
        self._source = source
        self._definitions = definitions
        self._open_reader = open_reader if definitions.shapes is not None else None
        self._bulk: Bulk | None = None
        self._reader: ColumnReader | None = None
        self._sized: list[News] = []
        self._began_again = False
        self._slice_is_next = True
        self._period_s = reconcile_period_s
        self._cursor: Any = None
        self._walk = Walk(Purpose.LOAD, due_s=0.0)
        self._pending: Int64s = NO_IDS
        self._block_read = False
        self._known_since_s = 0.0  # what the log told before was read with the whole table

    @property
    def behind(self) -> int:
        """How many changed monitors are known and not handed over yet."""
        return len(self._pending)

    @property
    def purpose(self) -> Purpose:
        """Why the table is being read at present."""
        return self._walk.purpose

    def step(self, now_s: float) -> tuple[list[News], bool]:
        """Do one bounded piece of work; returns the news and whether more is waiting already.

        ``now_s`` is monotonic. Raises ``SourceError`` where the database does not answer. A lost cursor begins a
        resync.
        """
        try:
            if self._cursor is None:
                snapshot = self._begin(Purpose.LOAD, now_s)
                self._sized = [Sized(snapshot.count_estimate, snapshot.text_bytes)]
            news = self._sized + self._next(now_s)
            self._sized = []
        except CursorLost as lost:
            self._begin(Purpose.RESYNC if self.loaded else Purpose.LOAD, now_s)
            self.findings.resyncs[lost.reason] += 1
            logger.warning("changelog.resync: %s; the whole table is read again", lost)
            return [], True
        return news, bool(len(self._pending)) or self._walk.purpose is not Purpose.RECONCILE

    def reread(self, ids: Sequence[int] | None) -> None:
        """Fetch these monitors again with the next steps, changed or not; None = all that were handed over."""
        wanted = self._definitions.ids() if ids is None else np.array(ids, np.int64)
        self._pending = np.union1d(self._pending, wanted)

    def rest(self, begun_s: float, ended_s: float) -> None:
        """Say how long the last step took: after a block the reconcile rests in proportion."""
        if self._block_read:
            self._block_read = False
            self._walk.pace(begun_s, ended_s, period_s=self._period_s, monitors=len(self._definitions))

    def close(self) -> None:
        """Stop the readers of a load that is not finished, and of many changes."""
        bulk, self._bulk = self._bulk, None
        if bulk is not None:
            bulk.close()
        self._close_reader()

    def _next(self, now_s: float) -> list[News]:
        ready = self._pending[self._walk.has_passed(self._pending)]
        if len(ready) and (self._slice_is_next or not self._reads_ahead):
            self._slice_is_next = False
            return self._hand_over_slice(ready)
        self._slice_is_next = True
        if now_s >= self._walk.due_s:
            return self._take_block(now_s) if self._reads_ahead else self._read_block(now_s)
        self._take_in(self._source.poll(self._cursor))
        return self._hand_over_slice(self._pending) if len(self._pending) else []

    @property
    def _reads_ahead(self) -> bool:
        return self._open_reader is not None and self._walk.purpose is Purpose.LOAD

    def _begin(self, purpose: Purpose, now_s: float) -> Snapshot:
        self.close()
        self._began_again = self._cursor is not None
        snapshot = self._source.snapshot()
        self._cursor = snapshot.cursor
        self._walk = Walk(purpose, due_s=now_s)
        self._known_since_s = now_s
        self._pending = NO_IDS  # the walk reads them
        if purpose is Purpose.LOAD:
            self.findings.loaded_rows, self.findings.expected_rows = 0, snapshot.count_estimate
        return snapshot

    def _take_in(self, poll: Poll) -> None:
        """Note what a poll found, except where the walk has still to go: there it reads by itself.

        A load that reads ahead may have read such a place before it changed: there everything is noted.
        """
        self.findings.polls += 1
        self.findings.oldest_transaction_s = poll.oldest_transaction_s
        if len(poll.ids):
            ids = poll.ids if self._reads_ahead else poll.ids[self._walk.has_passed(poll.ids)]
            self._pending = np.union1d(self._pending, ids)
        self._cursor = poll.cursor

    def _hand_over_slice(self, ready: Int64s) -> list[News]:
        """Hand over the first of ``ready``, which are the lowest of the pending ids."""
        if self._open_reader is not None and len(ready) >= MANY_ROWS:
            return self._hand_over_columns(self._open_reader, ready[:BLOCK_ROWS])
        self._close_reader()
        ids = ready[:SLICE_ROWS]
        rows = self._source.fetch(ids.tolist())
        missing = np.setdiff1d(ids, [row.id for row in rows])
        self._pending = self._pending[len(ids) :]
        self.findings.changes += len(ids)
        return [Changed(*self._definitions.translate(rows, missing.tolist()))]

    def _hand_over_columns(self, open_reader: Callable[[], ColumnReader], ids: Int64s) -> list[News]:
        """Read the lowest of very many pending ids as columns: a tenth of the work, for the engine too."""
        self._reader = self._reader or open_reader()
        block = self._reader.read_ids(ids, self._shapes, self._excluded(self._reader))
        self._pending = self._pending[len(ids) :]
        self.findings.changes += len(ids)
        return [Changed(*self._definitions.translate_changed(block, ids))]

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _take_block(self, now_s: float) -> list[News]:
        """Take the next block of a load that reads ahead; after an error it is begun anew where the walk stands."""
        try:
            if self._bulk is None:
                self._bulk = self._open_bulk()
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
        news: list[News] = [Loaded(changes.upserts, refused, taken.last)]
        if self._began_again and (gone or refused):
            deleted = np.union1d(np.array(gone, np.int64), changes.deleted_ids)
            news.insert(0, Changed(ChangeBatch(self._definitions.translate([]).changes.upserts, deleted), {}))
        return news

    def _open_bulk(self) -> Bulk:
        if self._open_reader is None:
            raise AssertionError("a load that reads ahead without a reader")
        reader = self._open_reader()
        try:
            cuts = reader.cuts(self._walk.after_id, BLOCK_ROWS) or [self._walk.after_id]
            excluded = self._excluded(reader)
        finally:
            reader.close()
        return Bulk(self._open_reader, self._shapes, after_id=self._walk.after_id, cuts=cuts, excluded=excluded)

    @property
    def _shapes(self) -> Shapes:
        if self._definitions.shapes is None:
            raise AssertionError("columns are read without anything to compile them")
        return self._definitions.shapes

    def _excluded(self, reader: ColumnReader) -> Int64s:
        """Return the monitors that must be looked at one by one: names that are taken, and what was refused before."""
        taken = reader.named(list(self._definitions.taken_names))
        return np.union1d(taken, np.array(self._definitions.quarantine.ids(), np.int64))

    def _read_block(self, now_s: float) -> list[News]:
        walk = self._walk
        block = self._source.block(walk.after_id, walk.rows, self._cursor)
        differences = self._definitions.differences(walk.after_id, block.rows, last=block.last)
        if walk.purpose is Purpose.LOAD:
            self.findings.loaded_rows += len(block.rows)
        if walk.purpose is Purpose.RECONCILE:
            news = self._reconcile(block, differences, now_s)
        else:
            self._take_in(block.poll)
            news = self._hand_over_block(block, differences)
        self._block_read = True
        if block.rows:
            walk.after_id = block.rows[-1].id
        if block.last:
            self._end_walk(now_s)
        return news

    def _hand_over_block(self, block: Block, differences: Differences) -> list[News]:
        """Hand over what differs from what the engine was told; at a load that is every row."""
        wanted = set(differences.upserts)
        changes, refused = self._definitions.translate(
            [row for row in block.rows if row.id in wanted], differences.deleted
        )
        if self._walk.purpose is Purpose.RESYNC:
            return [Changed(changes, refused)] if wanted or differences.deleted else []
        news: list[News] = [Loaded(changes.upserts, refused, block.last)]
        if differences.deleted:  # a load that had to begin again
            gone = np.array(differences.deleted, np.int64)
            news.insert(0, Changed(ChangeBatch(self._definitions.translate([]).changes.upserts, gone), {}))
        return news

    def _reconcile(self, block: Block, differences: Differences, now_s: float) -> list[News]:
        """Look again at what differs without a row in the log, and count what is wrong still."""
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
        told = self._source.logged([*(row.id for row in wrong), *missing], within_s)
        self._take_in(block.poll)
        self._take_in(again)
        return self._heal(wrong, missing, told)

    def _heal(self, wrong: Sequence[MonitorRow], missing: list[int], told: set[int]) -> list[News]:
        found = [*(row.id for row in wrong), *missing]
        if not found:
            return []
        self.findings.drift_found += len(told)
        self.findings.reconciled_untriggered += len(found) - len(told)
        if told:
            logger.error("changelog.drift: monitors %s were wrong although the log told of them", sorted(told)[:20])
        if len(found) > len(told):
            untold = sorted(set(found) - told)[:20]
            logger.warning("changelog.untriggered: monitors %s had changed without a row in the log", untold)
        return [Changed(*self._definitions.translate(wrong, missing))]

    def _end_walk(self, now_s: float) -> None:
        if self._walk.purpose is Purpose.RECONCILE:
            self.findings.reconcile_rounds += 1
        self.loaded = True
        self._definitions.all_read()
        self._walk = Walk(Purpose.RECONCILE, due_s=now_s)
