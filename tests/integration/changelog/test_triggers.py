"""The triggers themselves: what the database keeps, who is named, what is noticed when one is missing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.utils import timezone
from support.changelog.places import many, monitor

from celery_wheelbeat.jobs.definitions import Finished
from django_wheelbeat.checks import check_triggers
from django_wheelbeat.database import triggers
from django_wheelbeat.database.actors import acting
from django_wheelbeat.database.opening import install_triggers
from django_wheelbeat.models import Change, Monitor

if TYPE_CHECKING:
    from support.changelog.places import Place, Reader

PAST = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "changed",
    [
        {"interval_ms": 5_000},
        {"start_at": datetime(2031, 1, 1, tzinfo=UTC)},
        {"interval_ms": None, "cron": "0 4 * * *"},
        {"interval_ms": None, "once_at": datetime(2031, 1, 1, tzinfo=UTC)},
        {"jitter_s": 0},
    ],
    ids=",".join,
)
def test_a_new_schedule_takes_effect_from_now(place: Place, changed: dict[str, object]) -> None:
    one = monitor()
    _backdate(place, one)
    Monitor.objects.update(finished_at=timezone.now())
    Monitor.objects.filter(pk=one.pk).update(**changed)
    one.refresh_from_db()
    assert timedelta(0) <= timezone.now() - one.effective_from < timedelta(minutes=1)
    assert one.finished_at is None


@pytest.mark.parametrize("changed", [{"args": "[1]"}, {"queue": "q"}, {"description": "x"}, {"enabled": False}])
def test_anything_else_leaves_both_instants_alone(place: Place, changed: dict[str, object]) -> None:
    one = monitor()
    finished_at = timezone.now()
    _backdate(place, one)
    Monitor.objects.update(finished_at=finished_at)
    Monitor.objects.filter(pk=one.pk).update(**changed)
    one.refresh_from_db()
    assert (one.effective_from, one.finished_at) == (PAST, finished_at)


def test_switching_on_is_a_new_definition(place: Place) -> None:
    one = monitor(enabled=False)
    _backdate(place, one)
    Monitor.objects.update(finished_at=timezone.now())
    Monitor.objects.update(enabled=True)
    one.refresh_from_db()
    assert one.effective_from > PAST
    assert one.finished_at is None


@pytest.mark.parametrize("changed", [{"jitter_s": 5}, {"end_at": datetime(2031, 1, 1, tzinfo=UTC)}, {"enabled": True}])
def test_a_single_run_that_was_had_stays_had(place: Place, changed: dict[str, object]) -> None:
    finished_at = timezone.now()
    one = monitor(interval_ms=None, once_at=PAST, enabled="enabled" not in changed)
    _backdate(place, one)
    Monitor.objects.update(finished_at=finished_at)
    Monitor.objects.filter(pk=one.pk).update(**changed)
    one.refresh_from_db()
    assert one.effective_from > PAST
    assert one.finished_at == finished_at
    Monitor.objects.filter(pk=one.pk).update(once_at=finished_at + timedelta(days=1))
    one.refresh_from_db()
    assert one.finished_at is None


def test_a_copy_read_before_a_one_off_was_done_cannot_arm_it_again(place: Place) -> None:
    one = monitor(one_off=True)
    stale = Monitor.objects.get()
    database = place.open()
    done_ms = int(timezone.now().timestamp() * 1000) + 1_000
    database.store.finish({one.pk: Finished(done_ms, done_ms)})
    database.source.close()
    stale.description = "saved from an old form"
    stale.save()
    one.refresh_from_db()
    assert one.finished_at.timestamp() * 1000 == pytest.approx(done_ms, abs=1)


def test_finishing_is_written_once_and_never_over_a_newer_definition(place: Place, reader: Reader) -> None:
    one, edited = monitor("one", one_off=True), monitor("edited", one_off=True)
    now_ms = int(timezone.now().timestamp() * 1000)
    reader.news()
    reader.database.store.finish(
        {one.pk: Finished(now_ms + 1_000, now_ms + 1_000), edited.pk: Finished(now_ms, now_ms - 3_600_000)}
    )
    assert reader.news()[one.pk].finished_at_ms == now_ms + 1_000
    reader.database.store.finish({one.pk: Finished(now_ms + 9_000, now_ms + 9_000)})
    assert reader.news() == {}
    one.refresh_from_db()
    edited.refresh_from_db()
    assert one.finished_at.timestamp() * 1000 == pytest.approx(now_ms + 1_000, abs=1)
    assert edited.finished_at is None


def test_actor_and_reason_last_for_one_transaction(place: Place) -> None:
    with acting("anna", "deploy"):
        monitor("a")
    monitor("b")
    with acting("x" * 400, "y" * 400):
        monitor("c")
    first, second, third = Change.objects.order_by("-pk")[:3][::-1]
    assert (first.actor, first.reason) == ("anna", "deploy")
    assert second.actor in ("", *_session_users(place))
    assert second.reason == ""
    assert (third.actor, third.reason) == ("x" * 150, "y" * 200)


def test_a_rolled_back_actor_is_forgotten(place: Place) -> None:
    class Refused(Exception):
        pass

    with pytest.raises(Refused), acting("anna", "deploy"):
        raise Refused
    monitor("b")
    assert Change.objects.latest("pk").actor in ("", *_session_users(place))


def test_touch_is_one_row_for_each(reader: Reader) -> None:
    Monitor.objects.bulk_create(many(20))
    reader.news()
    assert Monitor.objects.filter(name__startswith="m1").order_by("name").touch() == 11
    assert len(reader.news()) == 11
    one = Monitor.objects.get(name="m3")
    one.touch()
    assert reader.news().keys() == {one.pk}


BAD_ROWS = {
    "no schedule": {"interval_ms": None},
    "two schedules": {"cron": "* * * * *"},
    "zero interval": {"interval_ms": 0},
    "negative interval": {"interval_ms": -5},
    "solar without a place": {"interval_ms": None, "solar_event": "dawn_civil"},
    "solar off the globe": {
        "interval_ms": None, "solar_event": "dawn_civil", "solar_latitude": 91, "solar_longitude": 0,
    },
    "place without solar": {"solar_latitude": 1.0, "solar_longitude": 1.0},
    "no name": {"name": ""},
    "no task": {"task": ""},
    "incident without end": {"incident_interval_ms": 10},
    "end without incident": {"incident_until": PAST},
    "incident not shorter": {"incident_interval_ms": 60_000, "incident_until": PAST},
    "incident of a single run": {
        "interval_ms": None, "once_at": PAST, "incident_interval_ms": 10, "incident_until": PAST,
    },
    "start at end": {"start_at": PAST, "end_at": PAST},
    "expires twice": {"expires_s": 5, "expires_next": True},
    "expires at once": {"expires_s": 0},
    "negative jitter": {"jitter_s": -1},
    "priority": {"priority": 256},
    "misfire": {"misfire": "never"},
    "overlap": {"overlap": "maybe"},
    "day rule": {"day_rule": "xor"},
}  # fmt: skip


def test_the_database_refuses_what_no_row_may_say(place: Place) -> None:
    for what, columns in BAD_ROWS.items():
        with pytest.raises(IntegrityError), transaction.atomic():
            monitor(what, **columns) if "name" not in columns else Monitor.objects.bulk_create(
                [Monitor(task="t", interval_ms=1, **columns)]
            )
    assert not Monitor.objects.exists()


def test_migrate_brings_a_lost_trigger_back_and_the_check_notices(place: Place) -> None:
    assert triggers.missing(place.connection) == []
    assert install_triggers("default") == []
    on_table = " ON wheelbeat_monitor" if place.vendor == "postgresql" else ""
    place.execute(f"DROP TRIGGER wheelbeat_log_update{on_table}")
    (error,) = check_triggers(["default"])
    assert error.id == "wheelbeat.E001"
    assert "wheelbeat_log_update" in error.msg
    assert "wheelbeat_triggers --install" in error.hint
    with pytest.raises(CommandError, match="wheelbeat_log_update"):
        call_command("wheelbeat_triggers", check=True)
    call_command("migrate", verbosity=0)
    assert check_triggers(["default"]) == []
    out = StringIO()
    call_command("wheelbeat_triggers", check=True, stdout=out)
    assert "in place" in out.getvalue()


def test_a_trigger_of_another_version_is_replaced(place: Place) -> None:
    if place.vendor == "postgresql":
        place.execute(
            "CREATE OR REPLACE FUNCTION wheelbeat_keep_instants() RETURNS trigger LANGUAGE plpgsql "
            "AS 'BEGIN RETURN NEW; END'"
        )
    else:
        place.execute("DROP TRIGGER wheelbeat_keep_instants")
        place.execute(
            "CREATE TRIGGER wheelbeat_keep_instants AFTER UPDATE ON wheelbeat_monitor FOR EACH ROW "
            + ("SET @old = 1" if place.vendor == "mysql" else "BEGIN SELECT 1; END")
        )
    assert triggers.missing(place.connection) == ["wheelbeat_keep_instants"]
    call_command("wheelbeat_triggers", install=True, stdout=StringIO())
    assert triggers.missing(place.connection) == []


@pytest.mark.postgres
@pytest.mark.parametrize("change", ["RESET jit", "RESET search_path", "SET work_mem = '1GB'", "SECURITY INVOKER"])
def test_a_trigger_function_with_other_options_is_replaced(postgres: Place, change: str) -> None:
    """The text of the function is the same; what it may see, and whose rights it has, is not."""
    postgres.execute(f"ALTER FUNCTION wheelbeat_log_changes() {change}")
    assert triggers.missing(postgres.connection) == ["wheelbeat_log_changes"]
    assert triggers.install(postgres.connection) == ["wheelbeat_log_changes"]
    assert triggers.missing(postgres.connection) == []


def test_sqlites_table_rebuild_drops_triggers_and_they_come_back(sqlite: Place) -> None:
    from django.db import models

    field = Monitor._meta.get_field("tags")
    wider = models.CharField(max_length=999, default="", blank=True, db_default="")
    wider.set_attributes_from_name("tags")
    wider.model = Monitor
    with sqlite.connection.schema_editor() as editor:
        editor.alter_field(Monitor, field, wider)
    assert len(triggers.missing(sqlite.connection)) == 9, "five of the log, three of the audit, one of the pauses"
    call_command("migrate", verbosity=0)
    assert triggers.missing(sqlite.connection) == []


def _backdate(place: Place, one: Monitor) -> None:
    """Give a definition an old ``effective_from``: the database lets it move forward only, so re-insert the row."""
    one.delete()
    one.effective_from = PAST
    Monitor.objects.bulk_create([one])
    one.refresh_from_db()
    assert one.effective_from == PAST


def _session_users(place: Place) -> list[str]:
    if place.vendor == "sqlite":
        return []
    return [place.execute("SELECT session_user" if place.vendor == "postgresql" else "SELECT user()")[0][0]]


def test_the_first_migration_can_be_taken_back(place: Place) -> None:
    call_command("migrate", "wheelbeat", "zero", verbosity=0)
    left = set(place.connection.introspection.table_names())
    assert not [name for name in left if name.startswith("wheelbeat")]
    call_command("migrate", verbosity=0)
    assert triggers.missing(place.connection) == []
    one = monitor()
    assert Change.objects.get().monitor_id == one.pk
