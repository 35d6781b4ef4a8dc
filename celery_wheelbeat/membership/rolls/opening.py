"""Which rolls a beat has, and how each is opened: by what the app has, or by the names in ``wheelbeat_rolls``.

Nothing connects here. Another store is added by a package with an entry point in the group ``celery_wheelbeat.rolls``:
the scheme of its URL → ``factory(url, namespace, beat_id, wait_s)``, which returns a ``membership.Roll``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from celery_wheelbeat.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_wheelbeat.membership import Roll

GROUP: Final = "celery_wheelbeat.rolls"
EXPECTED: Final = (
    "expected auto, database, broker, folder, the path of a folder, or a URL such as etcd://host:2379 or redis://host/0"
)
LONGEST_WAIT_S: Final = 5.0
BROKERS: Final = ("redis", "amqp")
"""kombu's driver types of the brokers that can be a roll."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a beat has."""

    beat_id: str
    started_ms: int
    heartbeat_s: float
    folder: str
    """Path of the folder that is used where none is named."""
    driver: str
    """kombu's name for the kind of broker: ``redis``, ``amqp``, ``sqs`` …"""
    open_broker: Callable[[], Any]
    """Returns a kombu ``Connection``, not connected."""
    vendor: str | None = None
    """``postgresql``, ``mysql`` or ``sqlite``; None without a database."""
    parameters: Callable[[], Mapping[str, Any]] | None = None
    """Returns the connection parameters of the database's driver."""

    @property
    def wait_s(self) -> float:
        """Bound of one exchange with a roll."""
        return min(self.heartbeat_s, LONGEST_WAIT_S)


def usual_rolls(vendor: str | None, driver: str) -> tuple[str, ...]:
    """Return the names of the rolls of an app that names none: its database and its broker, else a folder."""
    names = (("database",) if vendor else ()) + (("broker",) if driver in BROKERS else ())
    return names or ("folder",)


def roll_makers(names: Sequence[str], around: Surroundings) -> dict[str, Callable[[str], Roll]]:
    """Return name → function of the namespace that makes the roll, in the order of ``names``.

    A URL is named by its scheme, since it may hold a password. Raises ``InvalidSetting`` for a name that cannot be a
    roll here, and for a store that is named twice.
    """
    makers: dict[str, Callable[[str], Roll]] = {}
    every = [one for name in names for one in (usual_rolls(around.vendor, around.driver) if name == "auto" else [name])]
    for name in every:
        shown = name.partition("://")[0]
        if shown in makers:
            raise InvalidSetting(f"wheelbeat_rolls: {shown} is named twice; name each store once")
        makers[shown] = partial(_made, name, shown, around)
        makers[shown]("")  # rejects now what cannot be a roll
    return makers


def _made(name: str, scheme: str, around: Surroundings, namespace: str) -> Roll:
    if "://" in name:
        return _of_url(name, scheme, around, namespace)
    if name == "database" and around.vendor is not None and around.parameters is not None:
        from celery_wheelbeat.membership.rolls.sql_roll import SqlRoll  # noqa: PLC0415 - only what is used is loaded

        return SqlRoll(around.vendor, around.parameters, namespace, around.beat_id, around.wait_s)
    if name == "broker" and around.driver in BROKERS:
        return _of_broker(around, namespace)
    if name == "folder" or "/" in name:
        from celery_wheelbeat.membership.rolls.folder_roll import FolderRoll  # noqa: PLC0415 - same

        return FolderRoll(around.folder if name == "folder" else name, namespace, around.beat_id)
    reasons = {
        "database": "this app has no database of monitors",
        "broker": f"a broker of kind {around.driver} cannot be a roll",
    }
    raise InvalidSetting(f"wheelbeat_rolls: {name}: {reasons.get(name, EXPECTED)}")


def _of_broker(around: Surroundings, namespace: str) -> Roll:
    from celery_wheelbeat.membership.rolls import of_broker  # noqa: PLC0415 - same

    if around.driver == "redis":
        from celery_wheelbeat.membership.rolls.redis_roll import RedisRoll  # noqa: PLC0415 - same

        prefix = (around.open_broker().transport_options or {}).get("global_keyprefix", "")
        connect = partial(of_broker.redis_connection, around.open_broker, around.wait_s)
        return RedisRoll(connect, namespace, around.beat_id, prefix)
    from celery_wheelbeat.membership.rolls.amqp_roll import AmqpRoll  # noqa: PLC0415 - same

    return AmqpRoll(
        partial(of_broker.amqp_connection, around.open_broker, around.wait_s),
        namespace,
        around.beat_id,
        started_ms=around.started_ms,
        wait_s=around.wait_s,
        listen_s=1.5 * around.heartbeat_s,
    )


def _of_url(url: str, scheme: str, around: Surroundings, namespace: str) -> Roll:
    if scheme in ("etcd", "etcds"):
        from celery_wheelbeat.membership.rolls.etcd_roll import EtcdRoll  # noqa: PLC0415 - same

        return EtcdRoll(url, namespace, around.beat_id, around.wait_s)
    if scheme in ("redis", "rediss", "unix"):
        from redis import ConnectionPool  # noqa: PLC0415 - an optional extra

        from celery_wheelbeat.membership.rolls.redis_roll import RedisRoll, connector  # noqa: PLC0415 - same

        try:
            pool = ConnectionPool.from_url(url)
        except ValueError:
            raise InvalidSetting(
                f"wheelbeat_rolls: {scheme}://…: expected {scheme}://user:password@host:6379/0"
            ) from None
        return RedisRoll(connector(pool, around.wait_s), namespace, around.beat_id)
    for found in entry_points(group=GROUP, name=scheme):
        roll: Roll = found.load()(url, namespace, around.beat_id, around.wait_s)
        return roll
    raise InvalidSetting(f"wheelbeat_rolls: {scheme}://…: {EXPECTED}, or the scheme of a package for rolls")
