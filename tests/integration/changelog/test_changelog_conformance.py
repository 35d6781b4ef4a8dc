"""What every database must do: an edit of any kind is in the change log when its transaction commits, and only then.

"In force" here means visible to poll and fetch. Cells that a vendor cannot have are named where they differ, with what
finds the change instead (the reconcile, see test_changelog_reconcile.py).
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from django.db import IntegrityError, transaction
from django.test import override_settings
from support.changelog.places import Reader, fill, many, monitor

from django_wheelbeat.models import Change, Monitor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.changelog.places import Place

TRANSACTIONS_SIDE_BY_SIDE = pytest.mark.parametrize("place", ["postgres", "mysql"], indirect=True)
"""SQLite has one writer at a time: a transaction cannot be overtaken there."""


def test_nothing_changed_nothing_seen(reader: Reader) -> None:
    assert reader.news() == {}
    assert reader.news() == {}


def test_insert_save_delete(reader: Reader) -> None:
    one = monitor(args="[1]")
    assert reader.news()[one.pk].args == "[1]"
    one.args = "[2]"
    one.save()
    assert reader.news()[one.pk].args == "[2]"
    pk = one.pk
    one.delete()
    assert reader.news() == {pk: None}
    assert reader.news() == {}


def test_a_row_leaves_as_it_is_stored(reader: Reader) -> None:
    """Every column, in the order of MonitorRow, on every vendor alike."""
    instant = datetime(2030, 5, 17, 12, 34, 56, 789_999, UTC)
    instant_ms = 1_905_251_696_789
    one = monitor(
        interval_ms=None, cron="*/5 * * * *", timezone="Europe/Rome", day_rule="or", jitter_s=7, start_at=instant,
        end_at=instant + timedelta(days=1), one_off=True, misfire="all", overlap="skip", queue="q", exchange="e",
        routing_key="r", priority=9, headers='{"h": "ü"}', expires_s=1.5, options='{"compression": "zlib"}',
        args='["é"]', kwargs='{"k": 1}', incident_interval_ms=10_000, incident_until=instant,
    )  # fmt: skip
    row = reader.news()[one.pk]
    assert row._replace(effective_from_ms=0) == (
        one.pk, "a", "proj.check", '["é"]', '{"k": 1}', None, "*/5 * * * *", "Europe/Rome", "or",
        None, None, None, None, 7, instant_ms, instant_ms + 86_400_000, True,
        "q", "e", "r", 9, '{"h": "ü"}', 1.5, False,
        '{"compression": "zlib"}', "all", "skip", True, 10_000, instant_ms, 0, None, None,
    )  # fmt: skip
    assert abs(row.effective_from_ms - datetime.now(UTC).timestamp() * 1000) < 60_000
    assert all(type(value) in (int, str, float, bool, type(None)) for value in row)
    sunny = monitor(
        "b", interval_ms=None, solar_event="sunset", solar_latitude=41.9, solar_longitude=-12.5, expires_next=True
    )
    row = reader.news()[sunny.pk]
    assert (row.solar_event, row.solar_latitude, row.solar_longitude, row.expires_next) == ("sunset", 41.9, -12.5, True)
    assert (row.cron, row.queue, row.exchange, row.routing_key, row.enabled) == (None, None, None, None, True)


@pytest.mark.promise("an-edit-is-in-force-within-two-seconds")
def test_queryset_update_and_bulk_operations(reader: Reader) -> None:
    Monitor.objects.bulk_create(many(300))
    pks = set(Monitor.objects.values_list("pk", flat=True))
    assert reader.news().keys() == pks
    assert Monitor.objects.filter(name__startswith="m1").update(priority=5) == 111
    news = reader.news()
    assert len(news) == 111
    assert {row.priority for row in news.values()} == {5}
    objects = list(Monitor.objects.all())
    for one in objects:
        one.queue = f"q{one.pk % 7}"
    Monitor.objects.bulk_update(objects, ["queue"], batch_size=100)
    news = reader.news()
    assert {pk: row.queue for pk, row in news.items()} == {pk: f"q{pk % 7}" for pk in pks}
    Monitor.objects.filter(name__startswith="m2").delete()
    assert list(reader.news().values()) == [None] * 111


def test_upserts(place: Place, reader: Reader) -> None:
    monitor("old")
    reader.news()
    unique = None if place.vendor == "mysql" else ["name"]
    Monitor.objects.bulk_create(
        [Monitor(name=name, task="other", interval_ms=1_000) for name in ("old", "new")],
        update_conflicts=True, update_fields=["task", "interval_ms"], unique_fields=unique,
    )  # fmt: skip
    assert {row.name: (row.task, row.interval_ms) for row in reader.news().values()} == {
        "old": ("other", 1_000),
        "new": ("other", 1_000),
    }


@pytest.mark.promise("an-edit-is-in-force-within-two-seconds")
def test_plain_sql(place: Place, reader: Reader) -> None:
    place.execute("INSERT INTO wheelbeat_monitor (name, task, interval_ms) VALUES ('sql', 't', 5000)")
    news = reader.news()
    assert [(row.name, row.interval_ms, row.enabled, row.timezone) for row in news.values()] == [
        ("sql", 5000, True, "UTC")
    ]
    place.execute("UPDATE wheelbeat_monitor SET task = 'T' WHERE name = 'sql'")
    assert [row.task for row in reader.news().values()] == ["T"]  # a change of case is a change, whatever the collation
    place.execute("DELETE FROM wheelbeat_monitor")
    assert list(reader.news().values()) == [None]


@pytest.mark.parametrize("place", ["mysql"], indirect=True)
def test_replace(place: Place, reader: Reader) -> None:
    """MariaDB tells of the row that a REPLACE removes; SQLite does not (reconcile)."""
    one = monitor()
    reader.news()
    place.execute("REPLACE INTO wheelbeat_monitor (name, task, interval_ms) VALUES ('a', 't', 5)")
    assert reader.news() == {one.pk: None, Monitor.objects.get().pk: reader.source.fetch([Monitor.objects.get().pk])[0]}


def test_deleting_every_row(place: Place, reader: Reader) -> None:
    Monitor.objects.bulk_create(many(10))
    reader.news()
    place.execute("DELETE FROM wheelbeat_monitor")
    assert list(reader.news().values()) == [None] * 10


def test_a_changed_primary_key_is_delete_and_insert(place: Place, reader: Reader) -> None:
    one = monitor()
    reader.news()
    place.execute("UPDATE wheelbeat_monitor SET id = id + 1000000 WHERE id = %s", one.pk)
    news = reader.news()
    assert news[one.pk] is None
    assert news[one.pk + 1_000_000].name == "a"
    changes = Change.objects.order_by("-pk")[:2]
    assert {(change.monitor_id, change.operation) for change in changes} == {
        (one.pk, "D"),
        (one.pk + 1_000_000, "I"),
    }


def test_primary_keys_that_are_exchanged(place: Place, reader: Reader) -> None:
    first, second = monitor("a"), monitor("b")
    reader.news()
    with transaction.atomic():
        place.execute("UPDATE wheelbeat_monitor SET id = -1 WHERE id = %s", first.pk)
        place.execute("UPDATE wheelbeat_monitor SET id = %s WHERE id = %s", first.pk, second.pk)
        place.execute("UPDATE wheelbeat_monitor SET id = %s WHERE id = -1", second.pk)
    news = reader.news()
    assert (news[first.pk].name, news[second.pk].name) == ("b", "a")


def test_whatever_does_not_matter_causes_no_row(reader: Reader) -> None:
    one = monitor()
    reader.news()
    count = Change.objects.count()
    Monitor.objects.update(description="new", tags="x", pause_reason="holidays")
    one.refresh_from_db()
    one.save()
    Monitor.objects.filter(pk=one.pk).update(interval_ms=60_000)
    assert Change.objects.count() == count
    assert reader.news() == {}


EACH_COLUMN = {
    "name": "z", "task": "Proj.check", "args": "[ ]", "kwargs": '{"a": 1}', "interval_ms": 1, "timezone": "Asia/Tokyo",
    "day_rule": "or", "jitter_s": 0, "start_at": datetime(2030, 1, 1, tzinfo=UTC), "one_off": True, "misfire": "skip",
    "end_at": datetime(2031, 1, 1, tzinfo=UTC), "overlap": "skip", "queue": "q", "exchange": "e", "routing_key": "r",
    "priority": 0, "headers": '{"a": 1}', "expires_s": 5, "options": '{"a": 1}', "enabled": False,
    "incident_interval_ms": 0, "finished_at": datetime(2030, 1, 1, tzinfo=UTC),
}  # fmt: skip


def test_each_column_that_matters(reader: Reader) -> None:
    one = monitor()
    reader.news()
    for column, value in EACH_COLUMN.items():
        changed = {column: value}
        if column == "incident_interval_ms":
            changed = {"incident_interval_ms": 1, "incident_until": datetime(2030, 1, 1, tzinfo=UTC), "interval_ms": 9}
        Monitor.objects.filter(pk=one.pk).update(**changed)
        assert reader.news().keys() == {one.pk}, column
        Monitor.objects.filter(pk=one.pk).update(**changed)
        assert reader.news() == {}, column


def test_rolled_back_batch_between_two_good_ones(reader: Reader) -> None:
    first = monitor("first")
    assert reader.news().keys() == {first.pk}
    with transaction.atomic():
        Monitor.objects.bulk_create(many(1_000))
        transaction.set_rollback(True)
    second = monitor("second")
    assert reader.news().keys() == {second.pk}
    third = monitor("third")
    assert reader.news().keys() == {third.pk}


def test_savepoints(reader: Reader) -> None:
    kept = monitor("kept")
    reader.news()
    with transaction.atomic():
        outer = monitor("outer")
        with pytest.raises(IntegrityError):
            transaction.atomic(Monitor.objects.bulk_create)([*many(3), Monitor(name="kept", task="t", interval_ms=1)])
        with transaction.atomic():
            released = monitor("released")
        assert reader.news() == {}  # not committed
        Monitor.objects.filter(pk=kept.pk).update(priority=1)
    assert reader.news().keys() == {kept.pk, outer.pk, released.pk}


@pytest.mark.promise("an-edit-is-never-lost")
@TRANSACTIONS_SIDE_BY_SIDE
def test_late_commit_behind_ten_thousand_others(place: Place, reader: Reader) -> None:
    early = monitor("early")
    reader.news()
    with place.another_writer(), transaction.atomic():
        Monitor.objects.filter(pk=early.pk).update(priority=1)
        late = monitor("late")
        for batch in range(20):
            fill(place.connection, 500, f"fast{batch}-")
        seen = reader.news()
        assert len(seen) == 10_000
        assert early.pk not in seen
        assert late.pk not in seen
        fill(place.connection, 1, "after")
        assert len(reader.news()) == 1
    news = reader.news()
    assert news.keys() == {early.pk, late.pk}
    assert news[early.pk].priority == 1
    assert reader.news() == {}


@TRANSACTIONS_SIDE_BY_SIDE
def test_a_beat_that_starts_while_a_transaction_is_open(place: Place) -> None:
    one = monitor("one")
    with place.another_writer(), transaction.atomic():
        Monitor.objects.filter(pk=one.pk).update(priority=7)
        fill(place.connection, 3, "beside")
        reader = Reader(place)  # its snapshot holds the later changes and not the earlier one
        assert reader.news() == {}
    assert reader.news()[one.pk].priority == 7
    reader.close()


def test_cascade(place: Place, reader: Reader) -> None:
    """A foreign key of somebody else's that deletes monitors; MariaDB's cascades fire no trigger (reconcile)."""
    if place.vendor == "sqlite":
        place.execute("CREATE TABLE customer (id integer PRIMARY KEY)")
        place.execute(
            "ALTER TABLE wheelbeat_monitor ADD COLUMN customer_id bigint REFERENCES customer ON DELETE CASCADE"
        )
    else:
        place.execute("CREATE TABLE customer (id bigint PRIMARY KEY)")
        place.execute("ALTER TABLE wheelbeat_monitor ADD COLUMN customer_id bigint")
        place.execute(
            "ALTER TABLE wheelbeat_monitor ADD CONSTRAINT owned FOREIGN KEY (customer_id) REFERENCES customer (id) "
            "ON DELETE CASCADE"
        )
    try:
        place.execute("INSERT INTO customer VALUES (1)")
        one = monitor()
        place.execute("UPDATE wheelbeat_monitor SET customer_id = 1")
        reader.news()
        place.execute("DELETE FROM customer")
        assert not Monitor.objects.exists()
        assert reader.news() == ({} if place.vendor == "mysql" else {one.pk: None})
    finally:
        if place.vendor == "mysql":
            place.execute("ALTER TABLE wheelbeat_monitor DROP FOREIGN KEY owned")
        if place.vendor == "sqlite":
            place.execute("PRAGMA foreign_keys = OFF")
        place.execute("ALTER TABLE wheelbeat_monitor DROP COLUMN customer_id")
        place.execute("DROP TABLE customer")
        if place.vendor == "sqlite":
            place.execute("PRAGMA foreign_keys = ON")


@contextmanager
def _child_models(place: Place) -> Iterator[tuple[Any, Any]]:
    from django.apps.registry import Apps
    from django.db import models

    class Meta:
        app_label = "wheelbeat"
        apps = Apps()
        proxy = True

    proxy = type("Proxy", (Monitor,), {"__module__": __name__, "Meta": Meta})
    meta = type("Meta", (), {"app_label": "wheelbeat", "apps": Apps(), "db_table": "test_child"})
    attributes = {"__module__": __name__, "Meta": meta, "region": models.CharField(max_length=9)}
    child = type("Child", (Monitor,), attributes)
    with place.connection.schema_editor() as editor:
        editor.create_model(child)
    try:
        yield proxy, child
    finally:
        with place.connection.schema_editor() as editor:
            editor.delete_model(child)


def test_proxy_and_multi_table_children(place: Place, reader: Reader) -> None:
    """Edits through a subclass are noticed: triggers know no Python classes."""
    with _child_models(place) as (proxy, child):
        through_proxy = proxy.objects.create(name="proxy", task="t", interval_ms=1_000)
        through_child = child.objects.create(name="child", task="t", interval_ms=1_000, region="eu")
        assert reader.news().keys() == {through_proxy.pk, through_child.pk}
        through_child.region = "us"
        through_child.save()
        assert reader.news() == {}
        through_child.interval_ms = 2_000
        through_child.save()
        assert reader.news()[through_child.pk].interval_ms == 2_000
        gone = [through_proxy.pk, through_child.pk]
        through_proxy.delete()
        through_child.delete()
        assert reader.news() == dict.fromkeys(gone)


def test_a_data_migration_with_historical_models(place: Place, reader: Reader) -> None:
    """Historical models have neither our save() nor signals."""
    from django.db.migrations.loader import MigrationLoader

    apps = MigrationLoader(place.connection).project_state().apps
    historical = apps.get_model("wheelbeat", "Monitor")
    for n in range(3):
        historical.objects.create(name=f"migrated {n}", task="t", interval_ms=1_000)
    assert sorted(row.name for row in reader.news().values()) == ["migrated 0", "migrated 1", "migrated 2"]


@pytest.mark.parametrize("fold", [0, 1])
@pytest.mark.parametrize("use_tz", [True, False])
def test_an_instant_is_the_same_with_and_without_use_tz(
    place: Place, reader: Reader, *, use_tz: bool, fold: int
) -> None:
    """Both settings, in a zone that is not UTC, in an hour that comes twice."""
    zone = ZoneInfo("America/New_York")
    once_at = datetime(2030, 11, 3, 1, 30, fold=fold, tzinfo=zone)

    def epoch_ms(value: datetime) -> float:
        return (value if use_tz else value.replace(tzinfo=zone)).timestamp() * 1000

    with override_settings(USE_TZ=use_tz, TIME_ZONE="America/New_York"):
        value = once_at if use_tz else once_at.replace(tzinfo=None)
        one = monitor(interval_ms=None, once_at=value)
        row = reader.news()[one.pk]
        assert row.once_at_ms == once_at.timestamp() * 1000
        one.refresh_from_db()
        assert (one.once_at.tzinfo is not None) is use_tz
        assert epoch_ms(one.once_at) == once_at.timestamp() * 1000
        assert epoch_ms(one.effective_from) == pytest.approx(row.effective_from_ms, abs=1)
        assert row.effective_from_ms == pytest.approx(datetime.now(zone).timestamp() * 1000, abs=60_000)
        assert Monitor.objects.get(once_at=value) == one
