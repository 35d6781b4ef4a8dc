"""Run by ``test_time_zones_and_settings`` in a process with settings of its own: monitors in, fire times out, as JSON.

Django reads its time zone once per process; the process's own zone is changed in between, as hosts have it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

PROCESS_ZONES = ("UTC", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "XYZ-13:45")
"""Whole, negative, quarter-hour, half-hour summer time, and a POSIX rule that no database knows."""
CELERY_ZONE = "Europe/Berlin"


def main() -> None:
    """Print what each process zone makes of the same monitors and entries."""
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0, interactive=False)
    json.dump({zone: seen_in(zone) for zone in PROCESS_ZONES}, sys.stdout)


def seen_in(process_zone: str) -> dict[str, object]:
    """Write monitors through Django and read them as a beat does, with the process in ``process_zone``."""
    from django.conf import settings
    from django.db import connection

    from celery_wheelbeat.jobs.compile import compile_rows, schedule_of
    from celery_wheelbeat.schedules.cron import CronTable
    from celery_wheelbeat.sources.databases.open import open_database
    from django_wheelbeat.models import Monitor

    os.environ["TZ"] = process_zone
    time.tzset()
    Monitor.objects.all().delete()
    noon = datetime(2031, 7, 1, 12, 0)  # noqa: DTZ001 - naive on purpose where USE_TZ is off
    if settings.USE_TZ:
        noon = noon.replace(tzinfo=ZoneInfo(settings.TIME_ZONE))
    Monitor.objects.create(name="once", task="probe", once_at=noon)
    Monitor.objects.create(name="hourly", task="probe", interval_ms=3_600_000, start_at=noon)
    Monitor.objects.create(name="ends", task="probe", interval_ms=3_600_000, jitter_s=0, end_at=noon)
    Monitor.objects.create(name="nightly", task="probe", cron="30 2 * * *", timezone="America/Sao_Paulo", jitter_s=0)
    begun_ms = time.time_ns() // 1_000_000
    database = open_database(connection.vendor, connection.get_connection_params)
    try:
        rows = {row.name: row for row in database.source.fetch([one.pk for one in Monitor.objects.all()])}
    finally:
        database.source.close()
    assert not compile_rows(list(rows.values()), crons=CronTable()).refused
    new_year_ms = 1_925_000_000_000
    return {
        "once": rows["once"].once_at_ms,
        "hourly": schedule_of(rows["hourly"]).next_fire(0),
        "ends": rows["ends"].end_at_ms,
        "nightly": schedule_of(rows["nightly"]).next_fire(new_year_ms),
        "fresh": all(abs(row.effective_from_ms - begun_ms) < 60_000 for row in rows.values()),
        "entry": entry_fire(new_year_ms),
    }


def entry_fire(after_ms: int) -> list[int]:
    """Return the next fire of a crontab entry, computed, and as Celery's own object sees it."""
    from celery import Celery
    from celery.beat import ScheduleEntry
    from celery.schedules import crontab

    from celery_wheelbeat.schedules.cron import CronTable
    from celery_wheelbeat.sources.beat_schedule.celery_zones import timezone_of
    from celery_wheelbeat.sources.beat_schedule.entries import Entries

    app = Celery("zones", broker="memory://", set_as_current=False)
    app.conf.timezone = CELERY_ZONE
    crons = CronTable()
    entry = ScheduleEntry(name="e", task="probe", schedule=crontab(hour=3, minute=10, app=app), app=app)
    batch = Entries(timezone_of(app), crons).changes({"e": entry}, after_ms).upserts
    after = datetime.fromtimestamp(after_ms / 1000, ZoneInfo(CELERY_ZONE))
    entry.schedule.nowfun = lambda: after
    celery_s = entry.schedule.remaining_estimate(after).total_seconds()
    celery_ms = round((after + timedelta(seconds=celery_s)).timestamp() * 1000)
    return [crons.next_fire(int(batch.cron_index[0]), after_ms) or 0, celery_ms]


if __name__ == "__main__":
    main()
