"""Construct and wire what makes a beat one of several; None without rolls."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any, Final

from celery_wheelbeat.beat.standing.holdings import Holdings
from celery_wheelbeat.beat.standing.member import Member, Rolls
from celery_wheelbeat.dispatch.broker import close_connection, driver_type, open_connection
from celery_wheelbeat.errors import InvalidSetting
from celery_wheelbeat.membership.keeper import Keeper
from celery_wheelbeat.membership.pulse import Pulse
from celery_wheelbeat.membership.rolls.folder_roll import FolderRoll
from celery_wheelbeat.membership.rolls.on_demand import RollOnDemand
from celery_wheelbeat.membership.rolls.sql_roll import SqlRoll
from celery_wheelbeat.runtime.clock import SystemClock
from celery_wheelbeat.runtime.mailbox import Mailbox

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.dispatch.dispatcher import Dispatcher
    from celery_wheelbeat.engine.engine import Engine
    from celery_wheelbeat.engine.sharing.followed import Followed
    from celery_wheelbeat.membership import Roll
    from celery_wheelbeat.membership.attendance import Look, Unheard
    from celery_wheelbeat.runtime.clock import Clock
    from celery_wheelbeat.schedules.kinds import Int64s
    from celery_wheelbeat.settings import Settings
    from celery_wheelbeat.sources import MonitorDatabase

    RollOf = Callable[[str], Roll]
    """Namespace → roll."""

logger = logging.getLogger("celery.beat")

WAIT_S: Final = 1.0
"""Bound of one exchange with a roll."""


class SendGuard:
    """The identity of this process, and whether it may write to the broker now."""

    def __init__(self) -> None:
        self.beat_id = str(uuid.uuid4())
        self.ask: Callable[[], bool] = lambda: True

    def may_send(self) -> bool:
        """Return whether a sender may write; called from any thread."""
        return self.ask()


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
    clock: Clock,
    wake: Callable[[], None],
    engine: Engine,
    dispatcher: Dispatcher,
) -> Member | None:
    """Construct the member of a beat that has rolls."""
    rolls = rolls_of(app, settings, database, guard.beat_id)
    if not rolls:
        return None
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


def rolls_of(app: Any, settings: Settings, database: MonitorDatabase | None, beat_id: str) -> dict[str, RollOf]:
    """Return the rolls that the settings name; raises ``InvalidSetting`` for one that the app does not have."""
    found: dict[str, RollOf] = {}
    for name in settings.rolls:
        if name in ("auto", "database"):
            if database is not None and database.parameters is not None:
                found["database"] = _in_database(database, beat_id)
            elif name == "database":
                raise InvalidSetting("wheelbeat_rolls names 'database', but this app has no database of monitors")
        if name in ("auto", "broker"):
            if driver_type(app) == "redis":
                found["broker"] = _in_broker(app, beat_id)
            elif name == "broker":
                raise InvalidSetting(
                    f"wheelbeat_rolls names 'broker', but {driver_type(app)} cannot be a roll: expected Redis"
                )
        if name not in ("auto", "database", "broker"):
            found[name] = _in_folder(name, beat_id)
    return found


def _in_database(database: MonitorDatabase, beat_id: str) -> RollOf:
    parameters = database.parameters
    assert parameters is not None  # noqa: S101 - checked by the caller

    def roll_of(namespace: str) -> Roll:
        return SqlRoll(database.vendor, parameters, namespace, beat_id, WAIT_S)

    return roll_of


def _in_broker(app: Any, beat_id: str) -> RollOf:
    def roll_of(namespace: str) -> Roll:
        return RollOnDemand(lambda: _redis_roll(app, namespace, beat_id))

    return roll_of


def _redis_roll(app: Any, namespace: str, beat_id: str) -> Roll:
    from celery_wheelbeat.membership.rolls.redis_roll import RedisRoll  # noqa: PLC0415 - an optional extra

    connection = open_connection(app)
    try:
        channel = connection.default_channel  # connects, and knows how the app reaches its server
        return RedisRoll(channel.pool, namespace, beat_id, WAIT_S, channel.global_keyprefix)
    finally:
        close_connection(connection, broken=True)


def _in_folder(path: str, beat_id: str) -> RollOf:
    def roll_of(namespace: str) -> Roll:
        return FolderRoll(path, namespace, beat_id)

    return roll_of
