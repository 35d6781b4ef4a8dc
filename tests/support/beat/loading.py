"""A beat from the database of monitors to the wheel, driven step by step."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from celery_wheelbeat.engine import EngineConfig
from celery_wheelbeat.engine.engine import Engine
from celery_wheelbeat.engine.ledger import Ledger
from celery_wheelbeat.jobs.compile import compile_rows
from celery_wheelbeat.jobs.compile_columns import Shapes
from celery_wheelbeat.schedules.cron import CronTable
from celery_wheelbeat.schedules.solar import SolarSchedule
from celery_wheelbeat.sources.changelog.follower import Follower
from celery_wheelbeat.sources.changelog.translator import Translator
from celery_wheelbeat.sources.messages import Changed, Loaded

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_wheelbeat.sources.messages import SourceMessage
    from support.changelog.places import Place

START_MS = 1_900_000_000_000
DEADLINE_S = 120.0
ENTRY = "an entry of beat_schedule"


class LoadingBeat:
    """The parts between the table and the wheel, of a beat that has an entry called ``ENTRY``."""

    def __init__(self, place: Place) -> None:
        crons = CronTable()
        compile_all = partial(compile_rows, crons=crons, solar=SolarSchedule)
        database = place.open()
        self.source = database.source
        self.definitions = Translator(
            partial(compile_all, entry_names=(ENTRY,)), Shapes(compile_all), taken_names=[ENTRY]
        )
        self.follower = Follower(
            database.source, self.definitions, reconcile_period_s=3_600, open_reader=database.open_reader
        )
        self.engine = Engine(EngineConfig(shards=16), crons, Ledger())
        self.engine.start(START_MS)
        self.loaded_rows: list[int] = []
        self.deadline_s = DEADLINE_S

    def step(self) -> list[SourceMessage]:
        """One step of the I/O thread, and what the scheduling thread makes of it."""
        news, _ = self.follower.step(time.monotonic())
        for one in news:
            if isinstance(one, Loaded):
                self.loaded_rows.append(len(one.batch))
                self.engine.load(one.batch, {})
            elif isinstance(one, Changed):
                self.engine.apply(one.changes)
        return news

    def until(self, condition: Callable[[], bool], between: Callable[[], None] = lambda: None) -> None:
        """Step until ``condition``, with ``between`` after each step."""
        deadline = time.monotonic() + self.deadline_s
        while not condition():
            assert time.monotonic() < deadline, "the load did not come to its end"
            self.step()
            between()

    def load(self, between: Callable[[], None] = lambda: None) -> None:
        """Load everything and every edit made meanwhile."""
        self.until(lambda: self.follower.loaded, between)
        self.until(lambda: not self.step() and not self.follower.behind)

    def close(self) -> None:
        self.follower.close()
        self.source.close()
