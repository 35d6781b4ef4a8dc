"""Choose the store of an app's claims: ``wheelbeat_dedup_url``, else the store of its results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from celery_wheelbeat.errors import InvalidSetting
from celery_wheelbeat.settings.urls import scheme_of, split_url
from celery_wheelbeat.worker.stores import registered_store
from celery_wheelbeat.worker.stores.drivers import sql_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_wheelbeat.worker.stores import Store

REDIS_SCHEMES = ("redis", "rediss", "unix", "redis+socket", "socket")


_IN_MEMORY = ("db+sqlite://", "db+sqlite:///", "db+sqlite:///:memory:")
"""Result backends that no two processes share."""


class Choice(NamedTuple):
    """The chosen store."""

    store: Store | None
    """None if no available store can elect one of several copies."""
    where: str
    """Description for people, without passwords."""


def open_store(url: str, prefix: str = "") -> Store:
    """Open the store at ``url``, where keys of Redis begin with ``prefix``.

    Raises ``InvalidSetting`` if that cannot keep claims or lacks its driver.
    """
    try:
        return _open_store(url, prefix)
    except ImportError as error:
        raise InvalidSetting(
            f"claim store {scheme_of(url)}: {error}; install the driver, as in pip install 'celery-wheelbeat[all]'"
        ) from error


def _open_store(url: str, prefix: str) -> Store:
    scheme = scheme_of(url)
    if scheme in REDIS_SCHEMES:
        from celery_wheelbeat.worker.stores.redis import RedisStore  # noqa: PLC0415 - an optional extra

        split_url("claim store", url)
        at = url.replace("redis+socket://", "unix://").replace("socket://", "unix://")
        try:
            return RedisStore.from_url(at, prefix)
        except ValueError as error:  # of an option behind the question mark: names it, and shows nothing of the rest
            raise InvalidSetting(f"claim store {scheme}: {error}") from None
    if scheme == "memcached":
        from celery_wheelbeat.worker.stores.memcached import MemcachedStore  # noqa: PLC0415 - an optional extra

        split_url("claim store", url.partition(";")[0])
        return MemcachedStore(url)
    return sql_store(url)


def choose_store(app: Any, dedup_url: str | None) -> Choice:
    """Choose by ``dedup_url``, else by the result backend of ``app``; opens no connection."""
    if dedup_url:
        scheme = scheme_of(dedup_url)
        store = _behind_sentinel(app, dedup_url) if scheme == "sentinel" else open_store(dedup_url, _key_prefix(app))
        return Choice(store, f"wheelbeat_dedup_url ({scheme})")
    url = str(app.conf.result_backend or "disabled")
    scheme = scheme_of(url) if "://" in url else url.partition(":")[0]  # a name, as rpc or django-db
    return Choice(_store_of_results(app, url, scheme), f"result_backend ({scheme})")


def _store_of_results(app: Any, url: str, scheme: str) -> Store | None:
    if (registered := registered_store(scheme)) is not None:
        return registered
    if scheme in ("redis", "rediss", "sentinel", "redis+socket", "socket"):
        from celery_wheelbeat.worker.stores.redis import RedisStore  # noqa: PLC0415 - an optional extra

        # Celery's backend has read every option already: TLS, sentinels, credentials
        return RedisStore(app.backend.client.connection_pool, _key_prefix(app))
    if scheme in ("cache+memcached", "memcached"):
        return open_store(url.removeprefix("cache+"))
    if scheme.startswith("db+") and _is_sql(scheme) and url not in _IN_MEMORY:
        return open_store(url.removeprefix("db+"))
    return None


def _behind_sentinel(app: Any, url: str) -> Store:
    """Open the store on the master that the Sentinels at ``url`` name, with the options of Celery's own backend."""
    from celery.backends.redis import SentinelBackend  # noqa: PLC0415 - an optional extra

    from celery_wheelbeat.worker.stores.redis import RedisStore  # noqa: PLC0415 - an optional extra

    for server in url.split(";"):
        split_url("wheelbeat_dedup_url", server)
    if not _options(app).get("master_name"):
        raise InvalidSetting(
            "wheelbeat_dedup_url (sentinel) does not say which master: set master_name in "
            "result_backend_transport_options"
        )
    return RedisStore(SentinelBackend(app=app, url=url).client.connection_pool, _key_prefix(app))


def _key_prefix(app: Any) -> str:
    """Return what Celery's result backend puts before its keys: an ACL may allow nothing else."""
    prefix = str(_options(app).get("global_keyprefix") or "")
    return f"{prefix}_" if prefix and prefix[-1] not in ":_-." else prefix


def _options(app: Any) -> Mapping[str, Any]:
    options: Mapping[str, Any] = app.conf.result_backend_transport_options or {}
    return options


def _is_sql(scheme: str) -> bool:
    return scheme.removeprefix("db+").partition("+")[0] in ("postgresql", "postgres", "sqlite", "mysql", "mariadb")
