"""MariaDB: ids out of order, gaps that close and gaps that never do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.core.management import call_command
from django.db import connections, transaction
from services.found import OWN_NAME
from support.changelog.places import Place, Reader, many, monitor

from celery_wheelbeat.errors import CursorLost
from celery_wheelbeat.sources.databases import mariadb
from celery_wheelbeat.sources.databases.open import open_database
from django_wheelbeat.models import Change, Monitor

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.mysql


@pytest.fixture
def place(mysql: Place) -> Place:
    return mysql


@pytest.fixture
def ordinary(place: Place) -> Iterator[str]:
    """A user without the PROCESS privilege, who may not see others' transactions."""
    name = f"{OWN_NAME[-20:]}_plain"
    database = place.connection.settings_dict["NAME"]
    place.execute(f"CREATE USER '{name}'@'%%' IDENTIFIED BY ''")
    place.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.* TO '{name}'@'%%'")
    yield name
    place.execute(f"DROP USER '{name}'@'%%'")


def roll_back(count: int) -> None:
    with transaction.atomic():
        Monitor.objects.bulk_create(many(count))
        transaction.set_rollback(True)


def test_a_rolled_back_gap_is_dropped_when_nothing_older_is_open(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor("before")
    roll_back(100)
    monitor("after")
    assert len(reader.news()) == 2
    gap = reader.cursor.gaps[-1]
    assert gap.high - gap.low == 99
    later_s = gap.since_s + mariadb.CLOCK_MARGIN_S + 1
    monkeypatch.setattr(mariadb.time, "monotonic", lambda: later_s)
    assert reader.news() == {}
    assert reader.cursor.gaps == ()


def test_a_gap_stays_while_its_transaction_is_open(
    place: Place, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.another_writer() as slow, transaction.atomic():
        late = monitor("late")
        connections["default"] = place.connection
        monitor("beside")
        assert len(reader.news()) == 1
        gap = reader.cursor.gaps[-1]  # others may be left by what was rolled back before
        monkeypatch.setattr(reader.source, "_oldest_transaction_s", lambda: 600.0)
        monkeypatch.setattr(mariadb.time, "monotonic", lambda: gap.since_s + 600)
        assert reader.source.poll(reader.cursor).oldest_transaction_s == 600.0
        assert reader.news() == {}
        assert gap in reader.cursor.gaps
        connections["default"] = slow
    assert reader.news().keys() == {late.pk}
    assert gap not in reader.cursor.gaps


def test_without_the_right_to_see_transactions_a_gap_times_out(
    place: Place, ordinary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_database("mysql", lambda: {**place.connection.get_connection_params(), "user": ordinary}).source
    cursor = source.snapshot().cursor
    monitor("before")
    roll_back(3)
    monitor("after")
    cursor = source.poll(cursor).cursor
    gap = cursor.gaps[-1]
    for waited_s, kept in ((mariadb.GAP_TIMEOUT_S - 1, True), (mariadb.GAP_TIMEOUT_S + 1, False)):
        monkeypatch.setattr(mariadb.time, "monotonic", lambda waited_s=waited_s: gap.since_s + waited_s)
        assert (gap in source.poll(cursor).cursor.gaps) is kept
    source.close()


def test_autocommit_switched_off_by_the_options_does_not_freeze_the_view(place: Place) -> None:
    parameters = {**place.connection.get_connection_params(), "autocommit": False}
    source = open_database("mysql", lambda: parameters).source
    cursor = source.snapshot().cursor
    one = monitor()
    for priority in range(100):
        Monitor.objects.update(priority=priority)
        poll = source.poll(cursor)
        cursor = poll.cursor
        assert [row.priority for row in source.fetch(poll.ids)] == [priority]
    assert poll.ids.tolist() == [one.pk]
    source.close()


def test_another_log_under_the_same_name_loses_the_cursor(place: Place, reader: Reader) -> None:
    monitor()
    reader.news()
    place.execute("TRUNCATE wheelbeat_changelog")
    for n in range(5):
        monitor(f"m{n}")
    with pytest.raises(CursorLost) as lost:
        reader.news()
    assert lost.value.reason == "replaced"


def test_a_floor_from_an_earlier_log_is_ignored(place: Place) -> None:
    place.execute("UPDATE wheelbeat_installation SET pruned_id = 1000000000")
    reader = Reader(place)
    first, second = monitor("first"), monitor("second")
    assert reader.news().keys() == {first.pk, second.pk}
    call_command("wheelbeat_prune", days=0, verbosity=0)
    assert place.execute("SELECT pruned_id FROM wheelbeat_installation")[0][0] < 1_000_000_000
    reader.close()


def test_pruning(place: Place, reader: Reader) -> None:
    late = Reader(place)
    Monitor.objects.bulk_create(many(5))
    assert len(reader.news()) == 5
    call_command("wheelbeat_prune", days=0, verbosity=0)
    assert Change.objects.count() == 1
    assert reader.news() == {}
    with pytest.raises(CursorLost) as lost:
        late.news()
    assert lost.value.reason == "pruned"
    late.close()
