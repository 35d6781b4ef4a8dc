"""Construct and wire what makes a beat one of several; None without rolls."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any, Final

from celery_wheelbeat.beat.standing.holdings import Holdings
from celery_wheelbeat.beat.standing.member import Member
from celery_wheelbeat.beat.standing.rolls import Rolls
from celery_wheelbeat.dispatch.broker import driver_type, open_connection
from celery_wheelbeat.membership.keeper import Keeper
from celery_wheelbeat.membership.pulse import Pulse
from celery_wheelbeat.membership.rolls.opening import Surroundings, roll_makers
from celery_wheelbeat.runtime.clock import SystemClock
from celery_wheelbeat.runtime.mailbox import Mailbox

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.dispatch.dispatcher import Dispatcher
    from celery_wheelbeat.engine.engine import Engine
    from celery_wheelbeat.engine.sharing.followed import Followed
    from celery_wheelbeat.membership.attendance import Look, Unheard
    from celery_wheelbeat.runtime.clock import Clock
    from celery_wheelbeat.schedules.kinds import Int64s
    from celery_wheelbeat.settings import Settings
    from celery_wheelbeat.sources import MonitorDatabase

logger = logging.getLogger("celery.beat")

FOLDER_SUFFIX: Final = ".wheelbeat.d"
"""Of the folder in which beats without a database and a broker for it say that they are here."""


class SendGuard:
    """The identity of this process, and whether it may write to the broker now."""

    def __init__(self, *, shares_work: bool) -> None:
        self.beat_id = str(uuid.uuid4())
        self.shares_work = shares_work
        """Whether this process may be one of several that send."""
        self.ask: Callable[[], bool] = lambda: True

    def may_send(self) -> bool:
        """Return whether a sender may write; called from any thread."""
        return self.ask()

    @property
    def question(self) -> Callable[[], bool] | None:
        """What senders ask before each write; None if no other beat can share the work."""
        return self.may_send if self.shares_work else None


class DueRuns:
    """The runs that are due and not settled, here or by the beats that this one follows."""

    def __init__(self, dispatcher: Dispatcher, followed: Followed) -> None:
        self._dispatcher = dispatcher
        self._followed = followed

    def holds(self, ids: Int64s) -> NDArray[Any]:
        """Return which of the jobs have such a run."""
        return self._dispatcher.holds(ids) | self._followed.holds(ids)

    def drop(self, ids: Int64s, reason: str) -> int:
        """Skip the waiting runs of ``ids``."""
        return self._dispatcher.drop(ids, reason)


def assemble_member(
    app: Any,
    settings: Settings,
    guard: SendGuard,
    database: MonitorDatabase | None,
    *,
    path: str,
    clock: Clock,
    wake: Callable[[], None],
    engine: Engine,
    dispatcher: Dispatcher,
) -> Member | None:
    """Construct the member of a beat that has rolls.

    ``path``: of Celery's schedule file. Raises ``InvalidSetting`` for a roll that the app does not have.
    """
    if not settings.rolls:
        return None
    around = Surroundings(
        guard.beat_id,
        clock.wall_ms(),
        settings.heartbeat,
        f"{path}{FOLDER_SUFFIX}",
        driver_type(app),
        lambda: open_connection(app),
        None if database is None else database.vendor,
        None if database is None else database.parameters,
    )
    rolls = roll_makers(settings.rolls, around)
    reports: Mailbox[Look | Unheard] = Mailbox()

    def open_keepers(namespace: str) -> Sequence[Keeper]:
        return [Keeper(name, roll_of(namespace), reports, wake, clock) for name, roll_of in rolls.items()]

    pulse = Pulse(clock, SystemClock().boot_s)
    member = Member(
        guard.beat_id,
        Rolls(open_keepers, reports, pulse, settings.heartbeat, settings.active, settings.cut_off == "stop"),
        Holdings(engine, dispatcher),
        dispatcher,
        clock,
    )
    guard.ask = member.may_send
    return member
