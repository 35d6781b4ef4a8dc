"""``celery beat -S wheelbeat``: Celery's scheduler interface in front of one ``Beat``.

The composition root, and the only module that knows ``celery.beat``. Neither the constructor nor a property does I/O or
starts a thread: all of that happens at the first tick, in the process that ticks.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from celery import signals
from celery.beat import ScheduleEntry, Scheduler

from celery_wheelbeat import __version__
from celery_wheelbeat.beat import loading as memory
from celery_wheelbeat.beat.assembly import assemble
from celery_wheelbeat.beat.end_signals import EndSignals
from celery_wheelbeat.beat.schedule_view import ScheduleView
from celery_wheelbeat.dispatch.messages import attempt
from celery_wheelbeat.settings import Settings
from celery_wheelbeat.settings.in_command import plain_refusal
from celery_wheelbeat.sources.beat_schedule.entries import given_schedule, problem_of
from celery_wheelbeat.sources.databases.open import database_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from celery_wheelbeat.beat.beat import Beat
    from celery_wheelbeat.beat.supervision import Supervision

logger = logging.getLogger("celery.beat")

FLUSH_S = 1.5
"""How long ``close`` lets the publisher send the runs it has accepted; the I/O thread then gets ``STORE_S``."""
STORE_S = 1.0
_OF_SCHEDULER = (
    "is_due", "reserve", "populate_heap", "schedules_equal", "adjust", "producer", "connection",
)  # fmt: skip
"""Methods that Celery's own ``tick`` calls and this scheduler does not."""
_OF_ENTRY = ("is_due", "_next_instance", "next", "__next__")


class WheelScheduler(Scheduler):
    """Drop-in scheduler; see ``docs/explanation/architecture.md``."""

    max_interval = 5
    data: dict[str, Any]

    def __init__(self, *args: Any, schedule_filename: str | None = None, lazy: bool = False, **kwargs: Any) -> None:
        self.schedule_filename = schedule_filename
        self._conf_seen: dict[str, Any] = {}
        self._beat: Beat | None = None
        self._supervision: Supervision | None = None
        self._embedded = False
        self._settles = False
        """Whether the memory of the process is still to be settled, at the end of the load."""
        self._in_tick = False
        self._in_turn = False
        self._closing = False
        self._end_signals = EndSignals()
        super().__init__(*args, lazy=True, **kwargs)
        with plain_refusal():
            self.settings = Settings.from_conf(self.app.conf)
        self._view = ScheduleView(dict(self.data))
        self.data = self._view.data
        if not lazy:
            self.setup_schedule()

    # What Celery's service calls.

    def tick(self, *_args: Any, **_kwargs: Any) -> float:
        """Run one tick, then sleep until the next work or a wake, at most 1 s; returns 0.

        While one of wheelbeat's threads is wedged, a standalone beat keeps ticking in this call and does not return, so
        ``celery inspect ping`` gets no answer. Raises ``SystemExit`` after ``close`` was requested, because the
        exception of the signal handler may have been lost.
        """
        self._in_tick = True
        try:
            while not self._ending:
                beat, supervision = self._running()
                wait_s = self._turn(beat, supervision)
                beat.wake.wait(min(wait_s, self.max_interval))
                if self._embedded or not supervision.wedged:
                    break
        finally:
            self._in_tick = False
        if self._ending:
            raise SystemExit
        return 0.0

    @property
    def _ending(self) -> bool:
        return self._closing or self._end_signals.taken

    def _turn(self, beat: Beat, supervision: Supervision) -> float:
        self._in_turn = True
        reading = beat.read_clock()
        beat.apply_changes(reading)
        due = beat.advance(reading)
        beat.submit_due(due)
        beat.collect_outcomes()
        beat.move_mark(reading)
        supervision.update(reading)
        self._in_turn = False
        if (ended_by := beat.dispatcher.ended_by) is not None:
            raise ended_by  # raised by user code during a send, in the lane's thread
        if self._settles and beat.startup.state == "running":
            self._settles = False
            memory.settle()
        if self.should_sync():
            self._do_sync()
        return beat.wait_s(reading)

    def close(self) -> None:
        """Stop permanently, within 3 s. A call during ``tick``, by a signal handler, only sets a flag."""
        self._closing = True
        if self._in_tick:
            return
        self._end_signals.hold()
        try:
            beat, supervision, self._beat, self._supervision = self._beat, self._supervision, None, None
            if beat is not None and supervision is not None and beat.pid == os.getpid():
                self._stop(beat, supervision)
            super().close()
        finally:
            self._end_signals.release()

    def _stop(self, beat: Beat, supervision: Supervision) -> None:
        # If a signal interrupted the tick, the mark of the last complete tick stays.
        beat.stop_sending(FLUSH_S, settle=not self._in_turn)
        supervision.close(beat.clock.wall_ms())
        beat.close(STORE_S)

    @property
    def info(self) -> str:
        """Lines of the banner."""
        with plain_refusal():
            database = database_of(self.app, self.settings)
        source = "beat_schedule only" if database is None else f"beat_schedule and monitors in {database.vendor}"
        return f"    . wheelbeat -> {__version__}, tick {self.settings.tick:g}s\n    . source -> {source}"

    def sync(self) -> None:
        """Do nothing: the I/O thread stores status and marks."""

    # The schedule.

    def get_schedule(self) -> ScheduleView:
        """Return the view over entries and monitors."""
        return self._view

    def set_schedule(self, schedule: Mapping[str, Any]) -> None:
        """Replace the entries by ``schedule``; a dict is used as it is, not copied, as in Celery."""
        data = schedule.data if isinstance(schedule, ScheduleView) else schedule
        self._view.replace(data if isinstance(data, dict) else dict(data))
        self.data = self._view.data

    schedule = property(get_schedule, set_schedule)

    def setup_schedule(self) -> None:
        """Read ``beat_schedule``, then add the default entries, in the order of ``PersistentScheduler``."""
        self.merge_inplace(self.app.conf.beat_schedule)
        self.install_default_entries(self.schedule)

    def merge_inplace(self, b: Mapping[str, Any]) -> None:
        """Update the entries from configuration to ``b``; unchanged ones keep their objects."""
        given = {name: _copy_of(entry) for name, entry in b.items()}
        seen, self._conf_seen = self._conf_seen, given
        for name in seen.keys() - given.keys():
            self.schedule.refuse(name, None)
        changed = {name: entry for name, entry in given.items() if name not in seen or not _same(seen[name], entry)}
        self.update_from_dict(changed)

    def update_from_dict(self, dict_: Mapping[str, Any]) -> None:
        """Add or replace entries; a broken one is left out, and the next tick reports it."""
        for name, given in dict_.items():
            try:
                self.schedule[name] = self._maybe_entry(name, given)
            except Exception as error:
                self.schedule.refuse(name, problem_of(given_schedule(given), error))

    def reserve(self, entry: Any) -> Any:
        """Return the following entry; nothing is stored per run."""
        return next(entry)

    # Sending one run: called by the lane, in its thread.

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        """Send one message with the run's identity; the outcome is recorded for the lane."""
        current = attempt.current()
        if current is None:
            return super().apply_async(entry, producer=producer, advance=advance, **kwargs)
        with current.message():
            return super().apply_async(current.stamp(entry), producer=producer, advance=False, **kwargs)

    def should_sync(self) -> bool:
        """Return Celery's answer, but False during a send."""
        return attempt.current() is None and bool(super().should_sync())

    # Starting.

    def _running(self) -> tuple[Beat, Supervision]:
        beat, supervision = self._beat, self._supervision
        if beat is None or supervision is None or beat.pid != os.getpid():
            self.merge_inplace(self.app.conf.beat_schedule)  # a receiver of beat_init may have changed it
            with plain_refusal():
                beat, supervision = self._beat, self._supervision = assemble(self, self.settings)
            self._embedded = self._embedded or threading.current_thread() is not threading.main_thread()
            self._settles = not self._embedded
            if not self._embedded:  # a worker's process is not the beat's to tune
                memory.prepare()
            self._name_unused_overrides()
            beat.start()
            supervision.start()
        return beat, supervision

    def _name_unused_overrides(self) -> None:
        unused = unused_overrides(type(self), self.Entry, WheelScheduler)
        if unused:
            logger.warning(
                "beat: Never called by this scheduler: %s. Fire times are computed; "
                "override apply_entry to keep a run from being sent",
                ", ".join(unused),
            )


# The constructor must not connect these: ``connect`` holds a lock, and the handler of SIGTERM, which constructs another
# scheduler where it interrupts the constructor, would wait for that lock for ever.


@signals.beat_init.connect
def _guard_the_end(sender: Any, **_kwargs: Any) -> None:
    """Replace the signal handlers that Celery has installed for its service."""
    if isinstance(sender.scheduler, WheelScheduler):
        sender.scheduler._end_signals.install()


@signals.beat_embedded_init.connect
def _note_embedded(sender: Any, **_kwargs: Any) -> None:
    """Mark the scheduler as embedded in a worker (``-B``)."""
    if isinstance(sender.scheduler, WheelScheduler):
        sender.scheduler._embedded = True


def _copy_of(entry: Any) -> Any:
    """Copy an entry, because its owner may change it in place; a value that cannot be an entry is returned as it is."""
    try:
        return dict(entry)
    except (TypeError, ValueError):
        return entry


def _same(before: Any, after: Any) -> bool:
    """Compare two entries; ``__eq__`` of their schedules and arguments may raise."""
    try:
        return bool(before == after)
    except Exception:
        return False


def unused_overrides(scheduler: type, entry: type, ours: type) -> list[str]:
    """Return the overrides without effect in a scheduler class (a subclass of ``ours``) and in its entry class."""
    found = [*_overridden(scheduler, ours, _OF_SCHEDULER), *_overridden(entry, ScheduleEntry, _OF_ENTRY)]
    return list(dict.fromkeys(found))


def _overridden(cls: type, base: type, names: tuple[str, ...]) -> Iterator[str]:
    known = {*base.__mro__, *Scheduler.__mro__}
    for name in names:
        owner = next((one for one in cls.__mro__ if name in vars(one)), None)
        if owner is not None and owner not in known:
            yield f"{owner.__name__}.{name}"
