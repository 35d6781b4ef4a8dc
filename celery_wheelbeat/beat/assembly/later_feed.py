"""The feed of one-off runs, from the store that the settings name. Nothing is started or connected here."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kombu.utils.json import loads

from celery_wheelbeat.jobs.rows import Limits
from celery_wheelbeat.jobs.send_options import MAX_TEXT
from celery_wheelbeat.later.ahead.meter import MEASURED, StoreMeter
from celery_wheelbeat.later.connections.redis import redis_client
from celery_wheelbeat.later.feed import LaterFeed
from celery_wheelbeat.later.opening import keys_of
from celery_wheelbeat.later.readers.mariadb import MariadbReader
from celery_wheelbeat.later.readers.postgres import PostgresReader
from celery_wheelbeat.later.readers.redis import RedisReader
from celery_wheelbeat.later.readers.sqlite import SqliteReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_wheelbeat.later.open_seconds import Resume
    from celery_wheelbeat.later.readers import LaterReader
    from celery_wheelbeat.runtime.clock import Clock
    from celery_wheelbeat.runtime.mailbox import Wake
    from celery_wheelbeat.settings import Settings
    from celery_wheelbeat.sources import MonitorDatabase

_READERS: Mapping[str, Callable[..., LaterReader]] = {
    "postgresql": PostgresReader,
    "mysql": MariadbReader,
    "sqlite": SqliteReader,
}


def later_feed(
    app: Any, database: MonitorDatabase | None, settings: Settings, clock: Clock, wake: Wake
) -> LaterFeed | None:
    """Return the feed; None if there is neither a Redis nor a database that keeps one-off runs."""
    limits = Limits.of(settings, loads)
    most_bytes = settings.max_payload_bytes + 2 * MAX_TEXT + 2_000
    open_reader: Callable[[Resume | None], LaterReader]
    meter = None
    if settings.later_url is not None:
        connect = partial(redis_client, "wheelbeat_later_url", settings.later_url)
        open_reader = partial(RedisReader, connect, keys_of(settings, app), most_bytes=most_bytes)
    elif database is None or database.connect is None or database.vendor not in _READERS:
        return None
    else:
        open_reader = partial(_READERS[database.vendor], database.connect, most_bytes=most_bytes)
        if database.vendor in MEASURED:
            meter = StoreMeter(database.connect)
    return LaterFeed(open_reader, clock, wake.ring, limits=limits, most_runs=settings.backlog_max // 2, meter=meter)
