"""Which store an app's claims go to: ``wheelbeat_dedup_url``, else what its results are kept in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from celery_wheelbeat.errors import InvalidSetting
from celery_wheelbeat.worker.stores import registered_store
from celery_wheelbeat.worker.stores.drivers import sql_store

if TYPE_CHECKING:
    from celery_wheelbeat.worker.stores import Store

REDIS_SCHEMES = ("redis", "rediss", "unix", "redis+socket", "socket")


class Choice(NamedTuple):
    """Where the claims of an app go."""

    store: Store | None
    """None where nothing was found that can elect one of several copies."""
    where: str
    """In words, without passwords."""


def open_store(url: str) -> Store:
    """Open the store at ``url``; raises ``InvalidSetting`` if that cannot keep claims or lacks its driver."""
    try:
        return _open_store(url)
    except ImportError as error:
        raise InvalidSetting(
            f"claim store {_scheme(url)}: {error}; install the driver, as in pip install 'celery-wheelbeat[all]'"
        ) from error


def _open_store(url: str) -> Store:
    scheme = url.partition("://")[0]
    if scheme in REDIS_SCHEMES:
        from celery_wheelbeat.worker.stores.redis import RedisStore  # noqa: PLC0415 - an optional extra

        return RedisStore.from_url(url.replace("redis+socket://", "unix://").replace("socket://", "unix://"))
    if scheme == "memcached":
        from celery_wheelbeat.worker.stores.memcached import MemcachedStore  # noqa: PLC0415 - an optional extra

        return MemcachedStore(url)
    return sql_store(url)


_IN_MEMORY = ("db+sqlite://", "db+sqlite:///", "db+sqlite:///:memory:")
"""Result backends that no two processes share."""


def choose_store(app: Any, dedup_url: str | None) -> Choice:
    """Choose by ``dedup_url``, else by the result backend of ``app``; opens no connection."""
    if dedup_url:
        return Choice(open_store(dedup_url), f"wheelbeat_dedup_url ({_scheme(dedup_url)})")
    url = str(app.conf.result_backend or "disabled")
    scheme = _scheme(url)
    where = f"result_backend ({scheme})"
    if (registered := registered_store(scheme)) is not None:
        return Choice(registered, where)
    if scheme in ("redis", "rediss", "sentinel", "redis+socket", "socket"):
        from celery_wheelbeat.worker.stores.redis import RedisStore  # noqa: PLC0415 - an optional extra

        # Celery's backend has read every option already: TLS, sentinels, credentials
        return Choice(RedisStore(app.backend.client.connection_pool), where)
    if scheme in ("cache+memcached", "memcached"):
        return Choice(open_store(url.removeprefix("cache+")), where)
    if scheme.startswith("db+") and _is_sql(scheme) and url not in _IN_MEMORY:
        return Choice(open_store(url.removeprefix("db+")), where)
    return Choice(None, where)


def _scheme(url: str) -> str:
    return url.partition("://")[0].partition(":")[0]


def _is_sql(scheme: str) -> bool:
    return scheme.removeprefix("db+").partition("+")[0] in ("postgresql", "postgres", "sqlite", "mysql", "mariadb")
