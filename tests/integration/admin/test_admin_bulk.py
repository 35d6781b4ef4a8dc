"""Bulk edit, bulk delete and incidents: on a selection, on what matches a filter, in steps, never against a check."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

LIST = "/admin/wheelbeat/monitor/"


@pytest.fixture
def one_chunk_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each request do one chunk of three monitors."""
    from django_wheelbeat.bulk import progress
    from django_wheelbeat.database import chunks

    monkeypatch.setattr(chunks.chunks_of_ids, "__defaults__", (3,))
    monkeypatch.setattr(progress, "STEP_S", 0.0)


def fill(count: int, **columns: Any) -> list[int]:
    from django_wheelbeat.models import Monitor

    made = [Monitor(**{"name": f"m{i}", "task": "t", "interval_ms": 60_000} | columns) for i in range(count)]
    return [monitor.pk for monitor in Monitor.objects.bulk_create(made)]


def act(browser: Any, action: str, selected: list[int], query: str = "", **more: Any) -> Any:
    return browser.post(f"{LIST}{query}", {"action": action, "_selected_action": selected, "index": "0"} | more)


def messages_of(browser: Any) -> str:
    return browser.get(LIST).content.decode()


def go_through(browser: Any, page: Any, action: str, selected: list[int], query: str = "", **more: Any) -> int:
    """Send the page of progress until it ends; return how many steps it took."""
    steps = 1
    while page.status_code == 200:
        (token,) = re.findall(r'name="progress" value="([^"]+)"', page.content.decode())
        page = act(browser, action, selected, query, progress=token, **more)
        steps += 1
    assert page.status_code == 302
    return steps


def test_an_edit_sets_what_was_filled_in_and_nothing_else(any_vendor: Any, login: Callable[..., Any]) -> None:
    from django.contrib.admin.models import LogEntry

    from django_wheelbeat.models import Change, Monitor

    ids = fill(3, queue="old", tags="eu", expires_s=5.0)
    changes = Change.objects.count()
    browser = login()
    page = act(browser, "edit_monitors", ids)
    assert "3 monitors will be changed" in page.content.decode()
    page = act(browser, "edit_monitors", ids, confirmed="Change", reason="nothing else")
    assert "Nothing would change" in page.content.decode()
    page = act(browser, "edit_monitors", ids, confirmed="Change", interval_ms="soon", priority="300")
    assert {"interval_ms", "priority"} == set(page.context["form"].errors)
    assert Change.objects.count() == changes
    act(
        browser, "edit_monitors", ids, confirmed="Change", reason="move", interval_ms="5m", queue="new", priority="7",
        expires="next", tags_added="prod, b", tags_removed="eu", timezone="Europe/Berlin",
    )  # fmt: skip
    for monitor in Monitor.objects.all():
        assert (monitor.interval_ms, monitor.queue, monitor.priority, monitor.timezone) == (
            300_000, "new", 7, "Europe/Berlin",
        )  # fmt: skip
        assert (monitor.expires_s, monitor.expires_next, monitor.tags) == (None, True, "b,prod")
        assert (monitor.task, monitor.enabled) == ("t", True)
    assert set(Change.objects.filter(operation="U").values_list("actor", "reason")) == {("ann", "move")}
    assert LogEntry.objects.count() == 3
    changes = Change.objects.count()
    act(browser, "edit_monitors", ids, confirmed="Change", queue="new", priority="7")
    assert Change.objects.count() == changes, "what is so already is not written again"
    act(browser, "edit_monitors", ids, confirmed="Change", cleared=["queue", "priority", "expires", "tags"])
    assert set(Monitor.objects.values_list("queue", "priority", "expires_s", "expires_next", "tags")) == {
        ("", None, None, False, "")
    }


def test_an_edit_leaves_what_could_not_run_and_says_why(db: Any, login: Callable[..., Any]) -> None:
    from django_wheelbeat.models import Monitor

    (plain,) = fill(1, name="plain")
    (jittery,) = fill(1, name="jittery", jitter_s=50)
    (cron,) = fill(1, name="cron", interval_ms=None, cron="0 * * * *")
    (full,) = fill(1, name="full", tags="x" * 250)
    browser = login()
    act(
        browser,
        "edit_monitors",
        [plain, jittery, cron, full],
        confirmed="Change",
        interval_ms="10s",
        tags_added="longer",
    )
    assert dict(Monitor.objects.values_list("name", "interval_ms")) == {
        "plain": 10_000, "jittery": 60_000, "cron": None, "full": 60_000,
    }  # fmt: skip
    shown = messages_of(browser)
    assert "1 monitor was changed." in shown
    assert "3 monitors were not changed" in shown
    assert "jittery: jitter_s" in shown
    assert "cron: interval_ms" in shown
    assert "more than 255" in shown


def test_an_edit_takes_as_many_requests_as_it_needs(
    any_vendor: Any, login: Callable[..., Any], one_chunk_a_step: None
) -> None:
    from django_wheelbeat.models import Monitor

    ids = fill(8, queue="old")
    browser = login()
    query = "?queue=old"  # the edit itself takes monitors out of the filter
    answer = {"confirmed": "Change", "queue": "new", "select_across": "1"}
    page = act(browser, "edit_monitors", ids[:1], query, **answer)
    assert "3 of 8 done" in page.content.decode()
    late = fill(1, name="late", queue="old")
    assert go_through(browser, page, "edit_monitors", ids[:1], query, select_across="1") in (3, 4)
    assert "8 monitors were changed." in messages_of(browser)
    assert list(Monitor.objects.filter(queue="old").values_list("pk", flat=True)) == late


@pytest.mark.parametrize("large", [True, False])
def test_a_large_bulk_is_one_entry_in_each_history(
    any_vendor: Any, login: Callable[..., Any], one_chunk_a_step: None, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    from django.contrib.admin.models import CHANGE, LogEntry

    from django_wheelbeat.bulk import progress
    from django_wheelbeat.models import Audit, Change

    monkeypatch.setattr(progress, "BULK_ROWS", 7 if large else 8)
    ids = fill(8)
    browser = login()
    before = Audit.objects.count()
    page = act(browser, "pause_monitors", ids, confirmed="Pause", reason="move")
    if large:
        assert [str(line) for line in LogEntry.objects.all()] == ["Changed “3 monitors” — Paused: move"], "so far"
    go_through(browser, page, "pause_monitors", ids)
    assert "8 monitors were paused." in messages_of(browser)
    assert Change.objects.filter(operation="U", actor="ann", reason="move").count() == 8, "beats read each of them"
    lines = list(LogEntry.objects.values_list("object_id", "object_repr", "action_flag", "change_message"))
    assert lines[0] == (None, "8 monitors", CHANGE, "Paused: move") if large else len(lines) == 8
    assert len(lines) == (1 if large else 8)
    audit = list(Audit.objects.order_by("id").values_list("monitors", "actor", "reason", "changes"))[before:]
    if large and any_vendor.vendor == "postgresql":
        assert audit == [(8, "ann", "move", '{"enabled": 8, "pause_reason": 8}')]
    else:
        assert [row[:3] for row in audit] == [(1, "ann", "move")] * 8
    assert "8 monitors" in browser.get("/admin/").content.decode() or not large, "under the recent actions"


def test_a_large_delete_is_one_entry_and_leaves_what_is_kept(
    any_vendor: Any, login: Callable[..., Any], one_chunk_a_step: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.contrib.admin.models import DELETION, LogEntry
    from django.db.models import ProtectedError

    from django_wheelbeat.bulk import progress
    from django_wheelbeat.models import Audit, Monitor
    from django_wheelbeat.monitors.queryset import MonitorQuerySet

    monkeypatch.setattr(progress, "BULK_ROWS", 4)
    ids = fill(8)
    delete = MonitorQuerySet.delete

    def keep_one(monitors: Any) -> Any:
        kept = monitors.filter(pk=ids[4])
        if kept.exists():
            raise ProtectedError("", set(kept))
        return delete(monitors)

    monkeypatch.setattr(MonitorQuerySet, "delete", keep_one)
    browser = login()
    before = Audit.objects.count()
    page = act(browser, "delete_selected", ids, confirmed="Delete", typed="8", reason="gone")
    go_through(browser, page, "delete_selected", ids)
    assert list(Monitor.objects.values_list("pk", flat=True)) == [ids[4]]
    (line,) = LogEntry.objects.values_list("object_repr", "action_flag")
    assert line == ("7 monitors", DELETION)
    audit = list(Audit.objects.order_by("id").values_list("monitors", "operation", "reason"))[before:]
    assert audit == ([(7, "D", "gone")] if any_vendor.vendor == "postgresql" else [(1, "D", "gone")] * 7)


def test_a_pass_belongs_to_its_user_and_its_action(db: Any, login: Callable[..., Any], one_chunk_a_step: None) -> None:
    from django_wheelbeat.models import Monitor

    ids = fill(6)
    page = act(login("ann"), "pause_monitors", ids, confirmed="Pause", reason="x")
    (token,) = re.findall(r'name="progress" value="([^"]+)"', page.content.decode())
    other = login("bob")
    for action, text in (("delete_selected", token), ("pause_monitors", token), ("delete_selected", token[:-2] + "xx")):
        page = act(other, action, ids, progress=text)
        assert page.status_code == 200
        assert "will be" in page.content.decode(), "it is asked from the beginning"
    assert Monitor.objects.count() == 6
    assert Monitor.objects.filter(enabled=False).count() == 3


def test_a_pass_goes_on_only_where_it_was_confirmed(db: Any, login: Callable[..., Any], one_chunk_a_step: None) -> None:
    from django_wheelbeat.models import Monitor

    ids = fill(6, queue="old")
    others = [pk for number in range(4) for pk in fill(1, name=f"other {number}", queue="other")]
    browser, across = login(), {"select_across": "1"}
    page = act(browser, "delete_selected", ids[:1], "?queue=old", confirmed="Delete", typed="6", **across)
    (token,) = re.findall(r'name="progress" value="([^"]+)"', page.content.decode())
    for query, selected, more in (("", ids[:1], across), ("?queue=other", ids[:1], across), ("", others, {})):
        page = act(browser, "delete_selected", selected, query, progress=token, **more)
        assert "will be deleted" in page.content.decode(), "it is asked from the beginning"
    assert Monitor.objects.filter(queue="other").count() == 4
    go_through(browser, act(browser, "delete_selected", ids[:1], "?queue=old", progress=token, **across), "x", ids[:1])
    assert set(Monitor.objects.values_list("queue", flat=True)) == {"other"}


def test_deleting_asks_for_the_exact_number(any_vendor: Any, login: Callable[..., Any], one_chunk_a_step: None) -> None:
    from django.contrib.admin.models import DELETION, LogEntry

    from django_wheelbeat.models import Change, Monitor

    ids = fill(7, tags="old")
    fill(1, name="other")
    browser = login()
    query, across = "?tag=old", {"select_across": "1"}
    page = act(browser, "delete_selected", ids[:1], query, **across)
    assert "7 monitors will be deleted" in page.content.decode()
    for typed in ("", "1", "8", "yes"):
        page = act(browser, "delete_selected", ids[:1], query, confirmed="Delete", typed=typed, **across)
        assert page.context["form"].errors["typed"], typed
    fill(1, name="came meanwhile", tags="old")
    page = act(browser, "delete_selected", ids[:1], query, confirmed="Delete", typed="7", **across)
    assert "The selection now has 8 monitors" in page.content.decode()
    assert Monitor.objects.count() == 9
    page = act(browser, "delete_selected", ids[:1], query, confirmed="Delete", typed="8", reason="gone", **across)
    go_through(browser, page, "delete_selected", ids[:1], query, **across)
    assert "8 monitors were deleted." in messages_of(browser)
    assert list(Monitor.objects.values_list("name", flat=True)) == ["other"]
    deleted = Change.objects.filter(operation="D")
    assert set(deleted.values_list("actor", "reason")) == {("ann", "gone")}
    assert LogEntry.objects.filter(action_flag=DELETION).count() == 8


def test_incidents_begin_and_end_in_bulk(any_vendor: Any, login: Callable[..., Any]) -> None:
    from django.utils import timezone

    from django_wheelbeat.models import Change, Monitor

    ids = fill(3, tags="eu") + fill(1, name="fast", interval_ms=1_000, tags="eu")
    browser = login()
    page = act(browser, "speed_up_monitors", ids, confirmed="Speed up", every="10s", end="yesterday")
    assert "cannot be read" in page.content.decode()
    act(browser, "speed_up_monitors", ids, confirmed="Speed up", every="10s", end="2h", reason="outage")
    assert Monitor.objects.in_incident(timezone.now()).count() == 3
    assert "3 monitors were sped up." in messages_of(browser)
    page = act(browser, "end_incidents", ids)
    assert "3 incidents will be ended." in page.content.decode(), "it says how many before it does anything"
    act(browser, "end_incidents", ids, confirmed="End", reason="over")
    assert Change.objects.latest("id").reason == "over"
    assert "3 incidents were ended." in messages_of(browser)
    assert not Monitor.objects.filter(incident_interval_ms__isnull=False).exists()


@pytest.mark.parametrize(
    "end",
    ["2000-01-01T00:00:00Z", "0001-01-01T00:00:00+10:00", "9999-12-31T23:59:59-23:00", "T", "-5m", "99999999999999d"],
)
def test_an_end_that_no_incident_can_have_is_refused(db: Any, login: Callable[..., Any], end: str) -> None:
    from django_wheelbeat.models import Monitor

    page = act(login(), "speed_up_monitors", fill(2), confirmed="Speed up", every="10s", end=end)
    assert page.context["form"].errors["end"]
    assert not Monitor.objects.filter(incident_until__isnull=False).exists()


@pytest.mark.parametrize("action", ["edit_monitors", "delete_selected", "speed_up_monitors", "end_incidents"])
def test_bulk_changes_need_their_permission(db: Any, login: Callable[..., Any], action: str) -> None:
    from django_wheelbeat.models import Change, Monitor

    ids = fill(2)
    Monitor.objects.filter(pk=ids[0]).speed_up("1s", timedelta(hours=1))
    changes = Change.objects.count()
    answer = {"confirmed": "x", "queue": "q", "typed": "2", "every": "1s", "end": "1h"}
    for name, only in (
        ("a", ("view_monitor",)),
        ("b", ("view_monitor", "pause_monitor", "run_monitor", "add_monitor")),
    ):
        act(login(name, only=only), action, ids, **answer)
    assert Change.objects.count() == changes
