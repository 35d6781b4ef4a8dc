"""Services as fixtures: databases and brokers that a test process shares, made when the first test asks for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
from services import (
    Certificates,
    PrivateRabbit,
    amqp_vhost,
    certificates,
    free_port,
    mysql_database,
    postgres_database,
    redis_database,
)

from support.processes import ROOT

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
def tls() -> Iterator[Certificates]:
    """Certificates of private servers that listen for TLS."""
    with certificates() as made:
        yield made


@pytest.fixture(scope="session")
def private_rabbit(tls: Certificates) -> Iterator[PrivateRabbit]:
    """A RabbitMQ whose memory alarm may be set off, and which takes no messages above 100 kB; also over TLS."""
    with PrivateRabbit(
        max_message_size="100000", **{"listeners.ssl.1": f"127.0.0.1:{free_port()}"}, **tls.rabbitmq
    ) as server:
        yield server


@pytest.fixture(scope="session")
def redis_of_all() -> Iterator[str]:
    """URL of a Redis database that all tests of this process share."""
    with redis_database() as url:
        yield url


@pytest.fixture(scope="module")
def redis_url(redis_of_all: str) -> str:
    """URL of a Redis database that is empty when the file's first test starts."""
    with redis.Redis.from_url(redis_of_all) as client:
        client.flushdb()
    return redis_of_all


@pytest.fixture(scope="session")
def celery55() -> str:
    """Interpreter of an environment with Celery 5.5."""
    python = os.environ.get("WHEELBEAT_CELERY55_PYTHON", str(ROOT / ".venv-celery55/bin/python"))
    if not Path(python).exists():
        pytest.fail(f"{python} does not exist: run `make venv-celery55`, or set WHEELBEAT_CELERY55_PYTHON")
    return python
