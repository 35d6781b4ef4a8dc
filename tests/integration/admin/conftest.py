"""Fixtures of the admin's tests: a migrated site on SQLite and on PostgreSQL, rolled back after each test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery._state import _set_current_app, current_app
from services import OWN_NAME, mysql_database_beside, postgres_database_beside
from support.site.databases import rolled_back, set_up_django, site_database, with_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

set_up_django()


@pytest.fixture(scope="session", autouse=True)
def environment() -> Iterator[None]:
    """Let responses keep their templates and contexts."""
    from django.test.utils import setup_test_environment, teardown_test_environment

    setup_test_environment()
    yield
    teardown_test_environment()


@pytest.fixture(autouse=True)
def nothing_counted() -> None:
    """Forget the requests that earlier tests counted: a user of each test has the same number, and tests are fast."""
    from django.core.cache import cache

    cache.clear()


@pytest.fixture(scope="session")
def admin_postgres_url(postgres_url: str) -> Iterator[str]:
    """URL of a PostgreSQL database beside the one that other tests use."""
    with postgres_database_beside(postgres_url, f"{OWN_NAME}_admin") as url:
        yield url


@pytest.fixture(scope="session")
def sqlite_connection() -> Iterator[Any]:
    """A migrated SQLite database in memory."""
    with site_database("sqlite:///:memory:") as connection:
        yield connection


@pytest.fixture(scope="session")
def postgres_connection(admin_postgres_url: str) -> Iterator[Any]:
    """A migrated PostgreSQL database."""
    with site_database(admin_postgres_url) as connection:
        yield connection


@pytest.fixture
def db(sqlite_connection: Any) -> Iterator[Any]:
    """Connection of the default database, SQLite; what the test writes is undone."""
    with rolled_back(sqlite_connection):
        yield sqlite_connection


@pytest.fixture
def pg(postgres_connection: Any) -> Iterator[Any]:
    """Connection of the default database, PostgreSQL; what the test writes is undone."""
    with rolled_back(postgres_connection):
        yield postgres_connection


@pytest.fixture(params=["db", pytest.param("pg", marks=pytest.mark.postgres)])
def either(request: pytest.FixtureRequest) -> Any:
    """Connection of the default database, once SQLite and once PostgreSQL."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def mysql_connection(mysql_url: str) -> Iterator[Any]:
    """A migrated MariaDB database beside the one that other tests use."""
    with mysql_database_beside(mysql_url, f"{OWN_NAME}_admin") as url, site_database(url) as connection:
        yield connection


@pytest.fixture
def my(mysql_connection: Any) -> Iterator[Any]:
    """Connection of the default database, MariaDB; what the test writes is undone."""
    with rolled_back(mysql_connection):
        yield mysql_connection


@pytest.fixture(
    params=["db", pytest.param("pg", marks=pytest.mark.postgres), pytest.param("my", marks=pytest.mark.mysql)]
)
def any_vendor(request: pytest.FixtureRequest) -> Any:
    """Connection of the default database, once per vendor."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def login() -> Callable[..., Any]:
    """Return a function that logs a new user in: a superuser, or staff with the named permissions."""
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    def as_user(name: str = "ann", *, only: tuple[str, ...] | None = None, **client: Any) -> Client:
        if only is None:
            user = User.objects.create_superuser(name, password="x")
        else:
            user = User.objects.create_user(name, password="x", is_staff=True)
            found = Permission.objects.filter(codename__in=only, content_type__app_label="wheelbeat")
            assert found.count() == len(only)
            user.user_permissions.set(found)
        browser = Client(**client)
        browser.force_login(user)
        return browser

    return as_user


@pytest.fixture
def site_app() -> Iterator[Celery]:
    """The current app, with one entry in its code."""
    former = current_app._get_current_object()
    app = Celery("site", broker="memory://", set_as_current=False)
    app.conf.beat_schedule = {"in the code": {"task": "t", "schedule": 60}}
    app.conf.timezone = "Europe/Berlin"
    app.set_current()
    yield app
    _set_current_app(former)
    app.close()


@pytest.fixture(scope="module")
def beside_dcb() -> Iterator[None]:
    """Let django-celery-beat be installed while this module's databases are migrated."""
    with with_app("django_celery_beat", in_admin=False):  # tests in between look at pages of the admin
        yield


@pytest.fixture(scope="module")
def sqlite_with_dcb(beside_dcb: None) -> Iterator[Any]:
    """A migrated SQLite database with the tables of both."""
    with site_database("sqlite:///:memory:") as connection:
        yield connection


@pytest.fixture(scope="module")
def postgres_with_dcb(beside_dcb: None, postgres_url: str) -> Iterator[Any]:
    """A migrated PostgreSQL database with the tables of both."""
    with postgres_database_beside(postgres_url, f"{OWN_NAME}_dcb") as url, site_database(url) as connection:
        yield connection


@pytest.fixture(scope="module")
def mysql_with_dcb(beside_dcb: None, mysql_url: str) -> Iterator[Any]:
    """A migrated MariaDB database with the tables of both."""
    with mysql_database_beside(mysql_url, f"{OWN_NAME}_dcb") as url, site_database(url) as connection:
        yield connection


@pytest.fixture(
    params=[
        pytest.param("sqlite_with_dcb", marks=pytest.mark.django_celery_beat),
        pytest.param("postgres_with_dcb", marks=[pytest.mark.django_celery_beat, pytest.mark.postgres]),
        pytest.param("mysql_with_dcb", marks=[pytest.mark.django_celery_beat, pytest.mark.mysql]),
    ]
)
def dcb(request: pytest.FixtureRequest, site_app: Celery) -> Iterator[Any]:
    """The models of django-celery-beat, once per vendor; what the test writes is undone."""
    with rolled_back(request.getfixturevalue(request.param)):
        from django_celery_beat import models

        yield models
