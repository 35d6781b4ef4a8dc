"""The engine over days and restarts on a clock that the test moves: every due run is a message, none is lost.

Stands for a beat between its two databases: definitions go in as rows or entries, messages come out. What a beat keeps
over a restart (the mark, and since when each entry has its schedule) is kept here as well.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from celery import Celery
from celery.beat import ScheduleEntry

from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.jobs.compile import compile_rows
from celery_wheelbeat.jobs.definitions import ChangeBatch, Offer
from celery_wheelbeat.jobs.rows import MonitorRow
from celery_wheelbeat.schedules.cron import CronTable
from celery_wheelbeat.schedules.fire_times import ms_of
from celery_wheelbeat.sources.beat_schedule.celery_zones import timezone_of
from celery_wheelbeat.sources.beat_schedule.entries import Entries

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from celery_wheelbeat.jobs.definitions import DueBatch, EntryMark

STEP_MS = 240_000
"""How far the clock moves at once: below the stall limit, so every slot is replayed."""


def ms(text: str) -> int:
    """Read an instant like ``2024-06-01T12:00Z``."""
    return ms_of(datetime.fromisoformat(text))


def row(name: str = "a", **columns: Any) -> MonitorRow:
    """A monitor on its bare grid, known for ever; ``columns`` replace what it says. Its id comes from the name."""
    plain: dict[str, Any] = dict.fromkeys(MonitorRow._fields)
    plain |= {"id": sum(map(ord, name)), "name": name, "task": "t", "args": "[]", "kwargs": "{}", "timezone": "UTC"}
    plain |= {"day_rule": "and", "one_off": False, "expires_next": False, "enabled": True, "misfire": "auto"}
    plain |= {"overlap": "allow", "effective_from_ms": 0, "jitter_s": 0}
    return MonitorRow(**(plain | columns))


class Message(NamedTuple):
    """One run that a beat hands to the broker."""

    name: str
    fire_ms: int
    at_ms: int
    """When it was handed over, up to ``STEP_MS`` late."""
    offer: Offer


class Clockwork:
    """See the module. ``sent`` collects the messages of all lives."""

    def __init__(
        self,
        now: str,
        rows: Iterable[MonitorRow] = (),
        entries: Mapping[str, Any] | None = None,
        *,
        timezone: str = "UTC",
        mark: str | None = None,
    ) -> None:
        self.sent: list[Message] = []
        self.now_ms = ms(now)
        self._mark_ms = None if mark is None else ms(mark)
        self._rows = {one.id: one for one in rows}
        self._stored: dict[str, EntryMark] = {}
        self._start(entries or {}, timezone)

    def _start(self, given: Mapping[str, Any], timezone: str) -> None:
        app = Celery("clockwork", broker="memory://", set_as_current=False)
        app.conf.timezone = timezone
        self.ledger, self.crons = Ledger(), CronTable()
        self.engine = Engine(EngineConfig(shards=1), self.crons, self.ledger)
        self.engine.start(self.now_ms)
        entries = Entries(timezone_of(app), self.crons, self._stored)
        named = {name: ScheduleEntry(name=name, task="t", schedule=when, app=app) for name, when in given.items()}
        changes = entries.changes(named, self.now_ms)
        assert entries.refused == {}
        self._stored = entries.marks()
        marks = {"broker": self._mark_ms}
        self._take(self.engine.load(changes.upserts, marks))
        self._take(self.engine.load(self._compiled(self._rows.values()), marks))

    def _compiled(self, rows: Iterable[MonitorRow]) -> Any:
        compiled = compile_rows(list(rows), crons=self.crons)
        assert compiled.refused == {}
        return compiled.batch

    def _take(self, due: Iterable[DueBatch]) -> None:
        for batch in due:
            views = self.engine.lookup(batch.ids)
            for view, fire_ms in zip(views, batch.fire_ms.tolist(), strict=True):
                assert view is not None
                self.sent.append(Message(view.name, fire_ms, self.now_ms, batch.offer))
                if batch.offer is not Offer.REOFFERED:
                    self.ledger.confirm(1)

    def run(self, until: str | int) -> Clockwork:
        """Let time pass, in steps that are replayed whole."""
        until_ms = ms(until) if isinstance(until, str) else until
        while self.now_ms < until_ms:
            self.jump(min(until_ms, self.now_ms + STEP_MS))
        return self

    def jump(self, to: str | int, cause: str = "stall") -> Clockwork:
        """Move the clock at once."""
        self.now_ms = ms(to) if isinstance(to, str) else to
        while True:
            self._take(self.engine.advance(self.now_ms, cause=cause))
            if self.engine.caught_up(self.now_ms):
                break
        assert self.ledger.difference(0) == 0
        return self

    def edit(self, *rows: MonitorRow) -> None:
        """Bring changed rows into force, now; a row given twice changed twice."""
        self._rows.update((one.id, one) for one in rows)
        self.engine.apply(ChangeBatch(self._compiled(rows), np.empty(0, np.int64)))

    def restart(
        self, at: str | int | None = None, entries: Mapping[str, Any] | None = None, timezone: str = "UTC"
    ) -> None:
        """End the process now and start another one at ``at``."""
        self._mark_ms = self.engine.cursor_ms
        self.now_ms = self.now_ms if at is None else ms(at) if isinstance(at, str) else at
        self._start(entries or {}, timezone)

    def fires(self, name: str = "a") -> list[str]:
        """Fire times of the messages of one job, as text; what is offered again after a restart counts once."""
        return [_text(fire_ms) for fire_ms in dict.fromkeys(one.fire_ms for one in self.sent if one.name == name)]


def _text(instant_ms: int) -> str:
    text = np.datetime_as_string(np.datetime64(instant_ms, "ms"))
    return text.removesuffix(".000").removesuffix(":00") + "Z"
