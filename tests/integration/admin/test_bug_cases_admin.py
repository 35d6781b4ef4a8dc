"""Public reports about editing jobs, tried on the admin; ids as in ``docs/reference/public-reports.md``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

LIST = "/admin/wheelbeat/monitor/"


def make(name: str, **columns: Any) -> Any:
    from django_wheelbeat.models import Monitor

    schedule = {} if columns.keys() & {"cron", "once_at", "interval_ms"} else {"interval_ms": 60_000}
    return Monitor.objects.create(**{"name": name, "task": "t", **schedule, **columns})


def test_the_page_of_a_job_shows_what_a_switch_of_the_clock_will_do(
    db: Any, login: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B07: nobody could see beforehand which jobs fall into the hour that is skipped."""
    from django_wheelbeat.admin import monitor as monitor_admin

    now_ms = int(datetime(2024, 3, 9, 12, tzinfo=UTC).timestamp() * 1000)
    monkeypatch.setattr(monitor_admin, "now_ms", lambda: now_ms)
    monitor = make("night", cron="30 2 * * *", timezone="America/New_York", jitter_s=0)
    text = login().get(f"{LIST}{monitor.pk}/change/").content.decode()
    assert "Sun 2024-03-10 03:00:00 EDT" in text
    assert "Mon 2024-03-11 02:30:00 EDT" in text
    assert "is skipped by the clock" in text


def test_a_job_made_by_code_has_the_project_s_zone(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """B32: new rows got UTC although another zone was configured."""
    from celery import current_app

    monkeypatch.setattr(current_app.conf, "timezone", "Europe/Rome")
    assert make("a", cron="0 9 * * *").timezone == "Europe/Rome"


@pytest.mark.parametrize(
    "columns", [{"interval_ms": None}, {"cron": "* * * * *"}, {"once_at": datetime(2030, 1, 1, tzinfo=UTC)}]
)
def test_a_job_without_a_schedule_or_with_two_cannot_be_stored(either: Any, columns: dict[str, Any]) -> None:
    """B129: one row without a schedule killed the scheduler at its start."""
    from django.db import IntegrityError, transaction

    from django_wheelbeat.models import Monitor

    with pytest.raises(IntegrityError), transaction.atomic():
        Monitor.objects.bulk_create([Monitor(**({"name": "a", "task": "t", "interval_ms": 60_000} | columns))])


def test_rows_that_cannot_be_described_hide_no_other(either: Any, login: Callable[..., Any]) -> None:
    """B128 B153: a describer of somebody else's raised on what the engine accepts."""
    make("mondays", cron="0 2 * * monday")
    make("ninety", cron="*/90 * * * *")
    make("broken", cron="nonsense")
    make("fine", cron="0 2 * * 1")
    browser = login()
    text = browser.get(LIST).content.decode()
    for name in ("mondays", "ninety", "broken", "fine"):
        assert name in text
    assert "unreadable cron “nonsense”" in text
    assert text.count("at 02:00 on Monday") == 2
    from django_wheelbeat.models import Monitor

    page = browser.get(f"{LIST}{Monitor.objects.get(name='ninety').pk}/change/").content.decode()
    assert "*/90" in page


def test_a_thousand_jobs_are_switched_on_in_a_few_statements(either: Any, login: Callable[..., Any]) -> None:
    """B131: bulk changes called ``save()`` a thousand times, and so did the scheduler's reload."""
    from django.test.utils import CaptureQueriesContext

    from django_wheelbeat.models import Change, Monitor

    made = [Monitor(name=f"m{number:04d}", task="t", interval_ms=60_000, enabled=False) for number in range(1_000)]
    Monitor.objects.bulk_create(made)
    changes = Change.objects.count()
    browser = login()
    chosen = list(Monitor.objects.values_list("pk", flat=True)[:100])
    data = {"action": "resume_monitors", "_selected_action": chosen, "select_across": "1", "index": "0"}
    data["confirmed"] = "Resume"
    with CaptureQueriesContext(either) as queries:
        assert browser.post(f"{LIST}?enabled__exact=0", data).status_code == 302
    assert Monitor.objects.filter(enabled=True).count() == 1_000
    assert Change.objects.count() == changes + 1_000
    assert len(queries) <= 40


def test_no_change_row_carries_arguments(either: Any) -> None:
    """B123: big arguments were copied into lists, logs and result rows."""
    from django_wheelbeat.models import Change

    kwargs = '{"s": "' + "x" * 200_000 + '"}'
    monitor = make("big", kwargs=kwargs)
    monitor.kwargs = kwargs.replace("x", "y")
    monitor.save()
    rows = list(Change.objects.filter(monitor_id=monitor.pk).values())
    assert len(rows) == 2
    assert len(repr(rows)) < 2_000
