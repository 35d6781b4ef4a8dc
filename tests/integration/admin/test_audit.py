"""The audit: what changed, by whom and why, for every writer, as far as the setting asks."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from celery_wheelbeat.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = "/admin/wheelbeat/audit/"


@pytest.fixture(autouse=True)
def _nothing_noted(request: pytest.FixtureRequest) -> None:
    """Begin without rows of tests that had to commit; the database comes first, and this is undone with the test."""
    from django_wheelbeat.models import Audit

    for name in ("any_vendor", "either", "db", "pg", "my"):
        if name in request.fixturenames:
            request.getfixturevalue(name)
            Audit.objects.all().delete()
            return


def audit() -> list[Any]:
    from django_wheelbeat.models import Audit

    return list(Audit.objects.order_by("id"))


def fill(count: int, **columns: Any) -> list[int]:
    from django_wheelbeat.models import Monitor

    made = [Monitor(**{"name": f"m{i}", "task": "t", "interval_ms": 60_000} | columns) for i in range(count)]
    return [monitor.pk for monitor in Monitor.objects.bulk_create(made)]


def reinstall(connection: Any, monkeypatch: pytest.MonkeyPatch, mode: str, bulk_rows: int = 10_000) -> list[str]:
    from django_wheelbeat.database import audit_triggers, triggers

    monkeypatch.setattr(audit_triggers, "beat_settings", lambda: Settings(audit=mode))
    monkeypatch.setattr(audit_triggers, "BULK_ROWS", bulk_rows)
    installed = triggers.install(connection)
    assert triggers.missing(connection) == []
    return installed


def test_every_change_is_noted_with_before_and_after(any_vendor: Any) -> None:
    from django_wheelbeat.database.actors import acting
    from django_wheelbeat.models import Monitor

    with acting("ann", "new shop"):
        (pk,) = fill(1, tags="eu", kwargs='{"url": "x"}')
    with acting("bob", "slower"):
        Monitor.objects.filter(pk=pk).update(interval_ms=300_000, queue="q'\"\\é😀", description="now\nlonger")
    Monitor.objects.filter(pk=pk).update(interval_ms=300_000)
    with acting("eve"):
        Monitor.objects.filter(pk=pk).delete()
    made, changed, gone = audit()
    assert [(a.operation, a.actor, a.reason, a.monitors) for a in (made, changed, gone)] == [
        ("I", "ann", "new shop", 1), ("U", "bob", "slower", 1), ("D", "eve", "", 1),
    ]  # fmt: skip
    assert {a.monitor_id for a in (made, changed, gone)} == {pk}
    after = {
        column: pair[1] for column, pair in json.loads(made.changes).items() if column in ("name", "tags", "kwargs")
    }
    assert after == {"name": "m0", "tags": "eu", "kwargs": '{"url": "x"}'}
    assert json.loads(changed.changes) == {
        "interval_ms": [60_000, 300_000], "queue": ["", "q'\"\\é😀"], "description": ["", "now\nlonger"],
    }  # fmt: skip
    before = json.loads(gone.changes)
    assert before["interval_ms"] == [300_000, None]
    assert "args" not in before, "what is empty needs no word"


def test_what_the_beat_notes_is_no_change_of_anybody(any_vendor: Any) -> None:
    from django.utils import timezone

    from django_wheelbeat.models import Monitor

    fill(1)
    Monitor.objects.update(finished_at=timezone.now())
    assert [a.operation for a in audit()] == ["I"]


def test_instants_and_case_count(any_vendor: Any) -> None:
    from django.utils import timezone

    from django_wheelbeat.models import Monitor

    fill(1, task="Check")
    Monitor.objects.update(task="check")
    Monitor.objects.update(start_at=timezone.now() + timedelta(days=1), enabled=False)
    _, first, second = (json.loads(a.changes) for a in audit())
    assert first == {"task": ["Check", "check"]}
    assert set(second) == {"start_at", "enabled"}
    assert second["start_at"][0] is None


def test_plain_sql_is_noted_under_the_session_user(pg: Any) -> None:
    fill(1)
    with pg.cursor() as cursor:
        cursor.execute("UPDATE wheelbeat_monitor SET queue = 'x'")
        cursor.execute("UPDATE wheelbeat_monitor SET id = id + 1000")
        cursor.execute("SELECT session_user")
        user = cursor.fetchone()[0]
    _, edited, *renumbered = audit()
    assert (edited.actor, json.loads(edited.changes)) == (user, {"queue": ["", "x"]})
    assert sorted(a.operation for a in renumbered) == ["D", "I"]


@pytest.mark.postgres
def test_a_bulk_is_one_row(pg: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from django_wheelbeat.database.actors import acting
    from django_wheelbeat.models import Monitor

    reinstall(pg, monkeypatch, "full", bulk_rows=5)
    ids = fill(6)
    with acting("ann", "move"):
        Monitor.objects.filter(pk__in=ids[:5]).update(queue="q")
        Monitor.objects.update(queue="q", priority=3)
        Monitor.objects.update(queue="q")
    Monitor.objects.filter(pk__in=ids).delete()
    made, *single, many, gone = audit()
    assert (made.operation, made.monitors, made.monitor_id) == ("I", 6, None)
    assert [a.monitors for a in single] == [1] * 5
    assert (many.monitors, many.actor, many.reason) == (6, "ann", "move")
    assert json.loads(many.changes) == {"queue": 1, "priority": 6}, "how many of them changed in each column"
    assert (gone.operation, gone.monitors) == ("D", 6)


@pytest.mark.postgres
def test_a_bulk_of_many_statements_is_one_row_where_it_is_requested(pg: Any) -> None:
    from django_wheelbeat.database.actors import acting, gather_audit, gathered_audit
    from django_wheelbeat.models import Monitor

    ids = fill(6)
    with acting("ann", "move"):
        gather_audit(0, using="default")
        Monitor.objects.filter(pk__in=ids[:3]).update(queue="q")
        Monitor.objects.filter(pk__in=ids[:3]).update(queue="q")
        row = gathered_audit(using="default")
    with acting("ann", "move"):
        gather_audit(row, using="default")
        Monitor.objects.filter(pk__in=ids[2:]).update(queue="q", priority=1)
        assert gathered_audit(using="default") == row
        Monitor.objects.filter(pk=ids[0]).update(priority=2)
    for actor, operation in (("eve", {"queue": "x"}), ("ann", {"queue": "y"})):
        with acting(actor, "other"):
            gather_audit(row, using="default")
            Monitor.objects.filter(pk=ids[0]).update(**operation)
            assert gathered_audit(using="default") != row, "nobody adds to the row of another bulk"
    bulk, single, eve, ann = audit()[6:]
    assert (bulk.pk, bulk.monitor_id, bulk.monitors, bulk.actor, bulk.reason) == (row, None, 7, "ann", "move")
    assert json.loads(bulk.changes) == {"queue": 6, "priority": 4}
    assert (single.monitor_id, json.loads(single.changes)) == (ids[0], {"priority": [None, 2]}), "a row each, outside"
    assert (eve.monitors, eve.actor, ann.monitors, ann.reason) == (1, "eve", 1, "other")
    with acting("ann"):
        gather_audit(0, using="default")
        assert gathered_audit(using="default") == 0, "nothing changed"


def test_the_summary_holds_no_values(either: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from django_wheelbeat.models import Monitor

    reinstall(either, monkeypatch, "summary")
    fill(2)
    before = len(audit())
    Monitor.objects.update(kwargs='{"secret": 1}', queue="q")
    new = audit()[before:]
    assert sum(a.monitors for a in new) == 2
    assert all(json.loads(a.changes).keys() == {"kwargs", "queue"} for a in new)
    assert not [a for a in audit() if "secret" in a.changes]
    assert len(new) == (1 if either.vendor == "postgresql" else 2)


def test_off_removes_the_triggers(either: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from django_wheelbeat.database import triggers
    from django_wheelbeat.models import Change, Monitor

    installed = reinstall(either, monkeypatch, "off")
    assert "wheelbeat_audit_update" in installed
    fill(1)
    Monitor.objects.update(queue="q")
    assert audit() == []
    assert Change.objects.count() == 2, "the change log needs no audit"
    assert "wheelbeat_audit_update" in reinstall(either, monkeypatch, "full")
    triggers.uninstall(either)
    triggers.install(either)
    assert triggers.missing(either) == []


def test_long_texts_are_cut(any_vendor: Any) -> None:
    from django_wheelbeat.models import Monitor

    fill(1)
    Monitor.objects.update(kwargs=json.dumps({"x": "é" * 10_000}))
    assert len(json.loads(audit()[-1].changes)["kwargs"][1]) == 2_000


def test_old_rows_are_pruned(any_vendor: Any) -> None:
    from django.core.management import call_command
    from django.core.management.base import CommandError
    from django.utils import timezone

    from django_wheelbeat.models import Audit

    fill(3)
    Audit.objects.filter(pk=audit()[0].pk).update(at=timezone.now() - timedelta(days=400))
    output = io.StringIO()
    call_command("wheelbeat_prune", stdout=output)
    assert "1 of the audit" in output.getvalue()
    assert len(audit()) == 2
    with pytest.raises(CommandError, match="--audit-days -1"):
        call_command("wheelbeat_prune", audit_days=-1)


def test_the_page_shows_it_and_changes_nothing(db: Any, login: Callable[..., Any]) -> None:
    from django_wheelbeat.models import Monitor

    fill(1)
    Monitor.objects.update(queue="<script>alert(1)</script>")
    browser = login("v", only=("view_audit",))
    page = browser.get(PAGE).content.decode()
    assert "queue: – → &lt;script&gt;" in page
    assert browser.get(f"{PAGE}?q=nobody").context["cl"].result_count == 0
    pk = audit()[0].pk
    assert browser.get(f"{PAGE}{pk}/change/").status_code == 200
    for path in (f"{PAGE}add/", f"{PAGE}{pk}/change/", f"{PAGE}{pk}/delete/"):
        assert browser.post(path, {"actor": "me", "post": "yes"}).status_code == 403
    assert login("w", only=("view_monitor",)).get(PAGE).status_code == 403
