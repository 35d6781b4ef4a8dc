"""Fixtures that every folder of tests shares: the services."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from services import amqp_vhost, mysql_database, postgres_database, redis_database

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of a PostgreSQL database that this run made; dropped at the end."""
    with postgres_database() as url:
        yield url


@pytest.fixture(scope="session")
def mysql_url() -> Iterator[str]:
    """URL of a MariaDB database that this run made; dropped at the end."""
    with mysql_database() as url:
        yield url


@pytest.fixture(scope="session")
def amqp_url() -> Iterator[str]:
    """URL of a RabbitMQ virtual host that this run made; dropped at the end."""
    with amqp_vhost() as url:
        yield url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """URL of an empty Redis database."""
    with redis_database() as url:
        yield url
