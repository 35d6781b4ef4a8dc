"""Fixtures of the change log's tests: one migrated database per vendor, emptied before each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from services import OWN_NAME, PrivatePostgres, mysql_database_beside, postgres_database_beside
from support.changelog.places import Place, Reader
from support.site.databases import as_default, set_up_django, site_database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

set_up_django()

NAME = f"{OWN_NAME}_changelog"


@pytest.fixture(scope="session")
def postgres_place(postgres_url: str) -> Iterator[Place]:
    """PostgreSQL."""
    with postgres_database_beside(postgres_url, NAME) as url, site_database(url) as connection:
        yield Place(connection)


@pytest.fixture(scope="session")
def quiet_server() -> Iterator[PrivatePostgres]:
    """A PostgreSQL that runs no transactions but those of the test."""
    with PrivatePostgres(autovacuum="off") as server:
        yield server


@pytest.fixture(scope="session")
def quiet_place(quiet_server: PrivatePostgres) -> Iterator[Place]:
    """PostgreSQL, on a server without other transactions."""
    with site_database(quiet_server.url) as connection:
        yield Place(connection)


@pytest.fixture(scope="session")
def mysql_place(mysql_url: str) -> Iterator[Place]:
    """MariaDB."""
    with mysql_database_beside(mysql_url, NAME) as url, site_database(url) as connection:
        yield Place(connection)


@pytest.fixture(scope="session")
def sqlite_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """SQLite, in a file."""
    file: Path = tmp_path_factory.mktemp("changelog") / "site.sqlite3"
    with site_database(f"sqlite:///{file}") as connection:
        yield Place(connection)


def _emptied(place: Place) -> Iterator[Place]:
    from django_wheelbeat.models import Beat, Installation, Monitor, Quarantine

    with as_default(place.connection):
        for model in (Monitor, Beat, Quarantine):
            model.objects.all()._raw_delete(using="default")  # one statement, however full a test has left it
        Installation.objects.update(pruned_xid=0, pruned_id=0)
        yield place


@pytest.fixture
def postgres(postgres_place: Place) -> Iterator[Place]:
    """PostgreSQL without monitors."""
    yield from _emptied(postgres_place)


@pytest.fixture
def quiet(quiet_place: Place) -> Iterator[Place]:
    """PostgreSQL without monitors and without other transactions."""
    yield from _emptied(quiet_place)


@pytest.fixture
def mysql(mysql_place: Place) -> Iterator[Place]:
    """MariaDB without monitors."""
    yield from _emptied(mysql_place)


@pytest.fixture
def sqlite(sqlite_place: Place) -> Iterator[Place]:
    """SQLite without monitors."""
    yield from _emptied(sqlite_place)


@pytest.fixture(
    params=[
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("mysql", marks=pytest.mark.mysql),
        "sqlite",
    ]
)
def place(request: pytest.FixtureRequest) -> Place:
    """Each database in turn, without monitors."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def reader(place: Place) -> Iterator[Reader]:
    """A beat that has read everything up to the beginning of the test."""
    reader = Reader(place)
    yield reader
    reader.close()
