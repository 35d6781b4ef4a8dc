"""The page of one-off runs: counts, search, cancel and move, permissions, audit, and what the page costs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from celery_wheelbeat import later
from celery_wheelbeat.errors import InvalidRequest
from celery_wheelbeat.later import ahead

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = "/admin/wheelbeat/monitor/one-off-runs/"
QUERIES_MAX = 12
"""Session, user, banner, two statements for each of three groups of counts, rows, and the transaction around them."""
APP = Celery("proj", set_as_current=False)


def store(in_s: float, task: str = "proj.remind", key: str | None = None, n: int = 0) -> str:
    """Store a run that is due in ``in_s`` seconds."""
    return later.apply_at(APP.signature(task, args=(n, "<b>")), datetime.now(UTC) + timedelta(seconds=in_s), key=key)


def act(browser: Any, action: str, ids: list[str], **values: str) -> Any:
    """Post an action with its confirmation."""
    given = {"action": action, "_selected_action": ids, "confirmed": "x", **values}
    return browser.post(PAGE, given, follow=True)


def test_the_page_counts_runs_by_minute_and_by_day(either: Any, login: Callable[..., Any]) -> None:
    for in_s in (30, 90, 5_400, 40 * 86_400):
        store(in_s)
    browser = login()
    answer = browser.get(PAGE)
    hour, month = answer.context["forecasts"]
    assert sum(int(runs) for _, runs in hour.numbers) == 2
    assert len(hour.numbers) == 60
    assert sum(int(runs) for _, runs in month.numbers[:-1]) == 3
    assert month.numbers[-1] == ("after that", "1")
    assert len(month.numbers) == 31 + 1
    page = answer.content.decode()
    assert "2 in all, at most 1" in page
    assert "&lt;b&gt;" in page
    assert "style=" not in page, "a strict content security policy forbids it"
    assert f'href="{PAGE}"' in browser.get("/admin/wheelbeat/").content.decode(), "the app index has a link"
    assert f'href="{PAGE}"' in browser.get("/admin/wheelbeat/monitor/scheduler/").content.decode()


def test_an_empty_store_is_a_page(either: Any, login: Callable[..., Any]) -> None:
    page = login().get(PAGE).content.decode()
    assert "Nothing is due." in page
    assert "No run was found." in page


def test_runs_are_found_by_id_key_and_task(either: Any, login: Callable[..., Any]) -> None:
    first = store(600, "proj.first")
    second = store(40 * 86_400, "proj.second", key="order:17")
    browser = login()

    def found(**query: str) -> list[str]:
        return [row.run.id for row, _ in browser.get(PAGE, query).context["rows"]]

    assert found() == [first, second]
    assert found(by="id", text=first.upper()) == [first]
    assert found(by="key", text="order:17") == [second]
    assert found(by="task", text="proj.second") == [second]
    start = f"{datetime.now(UTC) + timedelta(days=2):%Y-%m-%dT%H:%M}"
    assert found(start=start) == [second]
    for by, text in (("id", "no uuid"), ("key", "x" * 255), ("task", "proj.third"), ("task", "%_'")):
        assert found(by=by, text=text) == [], text
    assert "rows" not in browser.get(PAGE, {"by": "colour"}).context
    assert "rows" not in browser.get(PAGE, {"start": "yesterday"}).context


def test_a_search_goes_on_after_the_rows_that_it_looked_through(
    either: Any, login: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "SEARCHED_MAX", 20)
    for n in range(50):
        store(600 + n, "proj.other", n=n)
    wanted = store(700, "proj.wanted")
    browser, query = login(), "by=task&text=proj.wanted"
    for _ in range(5):
        answer = browser.get(f"{PAGE}?{query}")
        rows, query = answer.context["rows"], answer.context["go_on"]
        if rows:
            break
        assert "None so far." in answer.content.decode()
    assert [row.run.id for row, _ in rows] == [wanted]
    assert query is None


def test_a_count_stops_at_a_limit_and_says_so(
    either: Any, login: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "COUNTED_MAX", 20)
    at = datetime.now(UTC) + timedelta(seconds=5_000)
    later.apply_many(SimpleNamespace(name="proj.many", app=APP), [([], {}, at)] * 500)
    if either.vendor == "postgresql":
        with either.cursor() as cursor:
            cursor.execute("ANALYZE wheelbeat_later")
    hour, month = login().get(PAGE).context["forecasts"]
    assert {runs for _, runs in hour.numbers} == {"0"}
    expected = "about 50" if either.vendor == "postgresql" else "at least 20"
    assert {runs[: len(expected)] for _, runs in month.numbers} == {"0", expected}


def test_runs_are_cancelled_and_moved_with_audit_and_history(either: Any, login: Callable[..., Any]) -> None:
    from django.contrib.admin.models import LogEntry

    from django_wheelbeat.models import Audit

    ids = [store(3_600 + n) for n in range(3)]
    soon = store(1)
    browser = login()
    asked = browser.post(PAGE, {"action": "cancel", "_selected_action": ids[:2]})
    assert "2 runs are selected." in asked.content.decode()
    assert later.pending(id=ids[0]) is not None, "nothing is done without the confirmation"
    done = act(browser, "cancel", [*ids[:2], soon], reason="sold <out>").content.decode()
    assert "2 runs were cancelled." in done
    assert "1 run was not changed" in done
    assert [later.pending(id=run_id) is None for run_id in ids] == [True, True, False]
    audit = Audit.objects.get()
    assert (audit.operation, audit.actor, audit.reason, audit.monitors) == ("C", "ann", "sold <out>", 0)
    assert json.loads(audit.changes).keys() == {"one-off runs", *ids[:2]}
    assert "sold &lt;out&gt;" in browser.get("/admin/wheelbeat/audit/").content.decode()

    act(browser, "move", ids[2:], by="1h", reason="later")
    assert later.pending(id=ids[2]) is None
    ((row, _),) = [pair for pair in browser.get(PAGE).context["rows"] if not pair[0].too_late]
    assert row.run.at - datetime.now(UTC) > timedelta(seconds=7_100)
    act(browser, "move", [row.run.id], at="2098-01-01T12:00:00")
    ((row, _),) = [pair for pair in browser.get(PAGE).context["rows"] if not pair[0].too_late]
    assert row.run.at == datetime(2098, 1, 1, 12, tzinfo=UTC)
    history = list(LogEntry.objects.order_by("pk").values_list("change_message", flat=True))
    assert history == ["Cancelled. sold <out>", "Moved. later", "Moved."]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"at": "soon"},
        {"by": "5"},
        {"by": "5m", "at": "2098-01-01T12:00"},
        {"at": "9999-01-01T12:00"},
        {"by": "999999w"},
    ],
)
def test_a_move_that_cannot_be_is_refused(db: Any, login: Callable[..., Any], values: dict[str, str]) -> None:
    run_id = store(3_600)
    page = act(login(), "move", [run_id], **values).content.decode()
    assert "errorlist" in page or "cannot be moved" in page
    assert later.pending(id=run_id) is not None


def test_each_action_has_a_permission_of_its_own(either: Any, login: Callable[..., Any]) -> None:
    run_id = store(3_600)
    assert login("a", only=("view_monitor", "view_scheduler", "change_monitor")).get(PAGE).status_code == 403
    looks = login("b", only=("view_oneoffrun",))
    page = looks.get(PAGE)
    assert page.context["actions"] == []
    assert b"_selected_action" not in page.content
    for action in ("cancel", "move", "", "run"):
        assert act(looks, action, [run_id], by="1h").status_code == 403
    cancels = login("c", only=("view_oneoffrun", "cancel_oneoffrun"))
    assert act(cancels, "move", [run_id], by="1h").status_code == 403
    assert later.pending(id=run_id) is not None
    assert login("d", only=("cancel_oneoffrun",)).post(PAGE, {"action": "cancel"}).status_code == 403
    assert act(cancels, "cancel", [run_id]).status_code == 200
    assert later.pending(id=run_id) is None
    assert "No runs were selected." in act(cancels, "cancel", []).content.decode()


def test_a_post_without_the_token_is_refused(db: Any, login: Callable[..., Any]) -> None:
    run_id = store(3_600)
    forged = login(enforce_csrf_checks=True)
    assert act(forged, "cancel", [run_id]).status_code == 403
    assert later.pending(id=run_id) is not None


def test_the_page_costs_a_fixed_number_of_statements(
    either: Any, login: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    monkeypatch.setattr(ahead, "COUNTED_MAX", 5)
    browser = login()
    costs = []
    for _ in range(3):
        with CaptureQueriesContext(connection) as queries:
            browser.get(PAGE)
        costs.append(len(queries))
        for n in range(120):
            store(60 + 20 * n + n * n * 300, n=n)
    assert max(costs) <= QUERIES_MAX, costs
    assert costs[1] == costs[2]


def test_a_store_that_cannot_be_used_says_so(
    db: Any, login: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: Any) -> None:
        raise InvalidRequest("one-off runs cannot be stored in oracle")

    from django_wheelbeat.admin import one_off_runs_page

    monkeypatch.setattr(one_off_runs_page, "caller_of", unknown)
    page = login().get(PAGE)
    assert "cannot be stored in oracle" in page.content.decode()
    assert "rows" not in page.context


def test_a_store_outside_of_the_database_is_not_shown_as_an_empty_one(
    db: Any, login: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery import current_app

    run_id = store(3_600)
    monkeypatch.setitem(current_app.conf, "wheelbeat_later_url", "redis://localhost:1")
    browser = login()
    page = browser.get(PAGE)
    assert "wheelbeat_later_url is set, so one-off runs do not lie in a database" in page.content.decode()
    assert "rows" not in page.context
    assert "wheelbeat_later_url is set" in act(browser, "cancel", [run_id]).content.decode()


def test_a_run_of_a_hostile_client_can_be_cancelled(db: Any, login: Callable[..., Any]) -> None:
    from django.db import connection

    run_id = store(3_600)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE wheelbeat_later SET at_ms = %s", [10**17])
    assert "1 run was cancelled." in act(login(), "cancel", [run_id]).content.decode()
