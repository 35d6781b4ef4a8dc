"""Pruning the change log harms no reader that polls; a reader too far behind notices. PostgreSQL.

On a server of its own, because how far the log can be pruned depends on every transaction of the server.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from django.db import connections, transaction
from support.changelog.places import Place, Reader, many, monitor

from celery_wheelbeat.errors import CursorLost
from django_wheelbeat.database.retention import SETTLE_S, prune_changelog
from django_wheelbeat.models import Change, Monitor

if TYPE_CHECKING:
    from collections.abc import Callable

    from services import PrivatePostgres

pytestmark = pytest.mark.postgres


@pytest.fixture
def place(quiet: Place) -> Place:
    return quiet


def prune(place: Place, meanwhile: Callable[[], Any] = lambda: None) -> int:
    """Prune everything that may be pruned; ``meanwhile`` happens while the command waits."""

    def wait(seconds: float) -> None:
        assert seconds == SETTLE_S
        meanwhile()

    return prune_changelog(place.connection, timedelta(0), wait)


def test_beats_that_are_up_to_date_are_spared_and_others_notice(place: Place, reader: Reader) -> None:
    late = Reader(place)
    Monitor.objects.bulk_create(many(5))
    assert len(reader.news()) == 5
    prune(place)
    assert not Change.objects.exists()
    assert reader.news() == {}
    with pytest.raises(CursorLost) as lost:
        late.news()
    assert lost.value.reason == "pruned"
    late.close()


def test_a_transaction_that_ends_during_the_prune_costs_no_beat_its_place(
    place: Place, reader: Reader, quiet_server: PrivatePostgres
) -> None:
    """A beat whose cursor knows it as open has not lost what was logged after it began."""
    quiet = Reader(place)
    with psycopg.connect(quiet_server.url) as foreign:
        foreign.execute("CREATE TEMPORARY TABLE t AS SELECT 1")
        Monitor.objects.bulk_create(many(5))
        assert len(reader.news()) == 5
    prune(place, meanwhile=reader.news)
    assert not Change.objects.exists()
    assert reader.news() == {}
    with pytest.raises(CursorLost):
        quiet.news()
    quiet.close()


def test_a_transaction_that_ended_just_now_is_pruned_the_next_time(place: Place, reader: Reader) -> None:
    with place.another_writer() as slow:
        slow.set_autocommit(False)
        late = monitor("late")
        connections["default"] = place.connection
        beside = monitor("beside")
        assert reader.news().keys() == {beside.pk}
        prune(place, meanwhile=slow.commit)
        assert set(Change.objects.values_list("monitor_id", flat=True)) == {late.pk, beside.pk}
    assert reader.news().keys() == {late.pk}
    assert prune(place) > 0
    assert not Change.objects.exists()
    assert reader.news() == {}


def test_what_an_open_transaction_hides_is_spared(place: Place, reader: Reader) -> None:
    with place.another_writer() as slow, transaction.atomic():
        late = monitor("late")
        connections["default"] = place.connection
        monitor("beside")
        prune(place)
        assert len(reader.news()) == 1
        connections["default"] = slow
    assert reader.news().keys() == {late.pk}


def test_a_floor_from_another_server_is_ignored(place: Place) -> None:
    """A dump brings the installation row along, to a server whose transaction ids are lower."""
    place.execute("UPDATE wheelbeat_installation SET pruned_xid = 1000000000000")
    reader = Reader(place)
    one = monitor()
    assert reader.news().keys() == {one.pk}
    prune(place)
    assert not Change.objects.exists()
    assert place.execute("SELECT pruned_xid FROM wheelbeat_installation")[0][0] < 1_000_000_000_000
    assert reader.news() == {}
    reader.close()


def test_nothing_old_enough_means_no_wait(place: Place) -> None:
    monitor()

    def never(_seconds: float) -> None:
        raise AssertionError("nothing is older than a day")

    assert prune_changelog(place.connection, timedelta(days=1), never) == 0


def test_a_poll_does_not_depend_on_the_length_of_a_log_that_nobody_prunes(place: Place, reader: Reader) -> None:
    place.execute(
        "INSERT INTO wheelbeat_changelog (monitor_id, operation) SELECT n, 'U' FROM generate_series(1, 200000) n"
    )
    place.execute("ANALYZE wheelbeat_changelog")
    reader.news()
    parameters = {"xmax": str(reader.cursor.xmax), "in_progress": "{}"}
    one = monitor()
    with psycopg.connect(**place.connection.get_connection_params()) as client:
        statement = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + reader.source._session._statements["changes"]
        plan = client.execute(statement, parameters).fetchone()[0][0]["Plan"]
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 50
    assert reader.news().keys() == {one.pk}
