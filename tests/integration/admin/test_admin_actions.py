"""Bulk pause and resume, incidents, and what people without permission can do: nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

LIST = "/admin/wheelbeat/monitor/"


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    from django_wheelbeat.database import chunks

    monkeypatch.setattr(chunks.chunks_of_ids, "__defaults__", (3,))


def fill(count: int, **columns: Any) -> list[int]:
    from django_wheelbeat.models import Monitor

    made = [Monitor(name=f"m{i}", task="t", interval_ms=60_000, **columns) for i in range(count)]
    return [monitor.pk for monitor in Monitor.objects.bulk_create(made)]


def act(browser: Any, action: str, selected: list[int], query: str = "", **more: Any) -> Any:
    return browser.post(f"{LIST}{query}", {"action": action, "_selected_action": selected, "index": "0"} | more)


def test_pauses_a_selection_with_a_reason(any_vendor: Any, login: Callable[..., Any], small_chunks: None) -> None:
    from django.contrib.admin.models import LogEntry

    from django_wheelbeat.models import Change, Monitor

    ids = fill(10)
    before = Change.objects.count()
    browser = login()
    page = act(browser, "pause_monitors", ids[:7])
    assert "7 enabled monitors will be paused" in page.content.decode()
    assert not Monitor.objects.filter(enabled=False).exists(), "nothing happens before the reason is given"
    page = act(browser, "pause_monitors", ids[:7], confirmed="Pause", reason=" ")
    assert page.context["form"].errors
    page = act(browser, "pause_monitors", ids[:7], confirmed="Pause", reason="deploy 7")
    assert page.status_code == 302
    paused = Monitor.objects.filter(enabled=False)
    assert sorted(paused.values_list("pk", flat=True)) == ids[:7]
    assert set(paused.values_list("pause_reason", flat=True)) == {"deploy 7"}
    changes = Change.objects.order_by("id")[before:]
    assert [(c.operation, c.actor, c.reason) for c in changes] == [("U", "ann", "deploy 7")] * 7
    assert LogEntry.objects.count() == 7
    assert LogEntry.objects.first().get_change_message() == "Paused: deploy 7"


def test_pauses_everything_that_matches_the_filter(
    any_vendor: Any, login: Callable[..., Any], small_chunks: None
) -> None:
    from django_wheelbeat.models import Monitor

    ids = fill(10, tags="eu")
    Monitor.objects.create(name="other", task="t", interval_ms=1_000)
    browser = login()
    query = "?tag=eu&enabled__exact=1"
    more = {"select_across": "1", "confirmed": "Pause", "reason": "x"}
    assert "10 enabled monitors" in act(browser, "pause_monitors", ids[:1], query, select_across="1").content.decode()
    response = browser.post(
        f"{LIST}{query}", {"action": "pause_monitors", "_selected_action": ids[:1], "index": "0"} | more, follow=True
    )
    assert "10 monitors were paused." in response.content.decode()
    assert list(Monitor.objects.filter(enabled=True).values_list("name", flat=True)) == ["other"]


def test_an_actor_ends_with_its_block(any_vendor: Any) -> None:
    from django_wheelbeat.database.actors import acting
    from django_wheelbeat.models import Change, Monitor

    with acting("a" * 200, "r" * 300):
        Monitor.objects.create(name="a", task="t", interval_ms=1_000)
    assert (Change.objects.latest("id").actor, Change.objects.latest("id").reason) == ("a" * 150, "r" * 200)
    with pytest.raises(ZeroDivisionError), acting("ann", "broke"):
        Monitor.objects.create(name="b", task=str(1 / 0), interval_ms=1_000)
    Monitor.objects.create(name="c", task="t", interval_ms=1_000)
    assert Change.objects.latest("id").actor != "ann"
    assert Change.objects.latest("id").reason == ""


def test_resume_and_pause_never_toggle(db: Any, login: Callable[..., Any], small_chunks: None) -> None:
    from django.contrib.admin.models import LogEntry

    from django_wheelbeat.models import Change, Monitor

    ids = fill(4)
    Monitor.objects.filter(pk=ids[0]).update(enabled=False, pause_reason="mine")
    browser = login()
    act(browser, "pause_monitors", ids, confirmed="Pause", reason="all")
    assert Monitor.objects.get(pk=ids[0]).pause_reason == "mine", "paused before: keeps its reason"
    changes = Change.objects.count()
    act(browser, "pause_monitors", ids, confirmed="Pause", reason="again")
    assert Change.objects.count() == changes
    page = act(browser, "resume_monitors", ids)
    assert "4 paused monitors will be resumed." in page.content.decode(), "it says how many, and does nothing yet"
    assert not Monitor.objects.filter(enabled=True).exists()
    act(browser, "resume_monitors", ids, confirmed="Resume", reason="all clear")
    assert Change.objects.latest("id").reason == "all clear"
    assert LogEntry.objects.latest("id").get_change_message() == "Resumed. all clear"
    assert set(Monitor.objects.values_list("enabled", "pause_reason")) == {(True, "")}
    changes = Change.objects.count()
    act(browser, "resume_monitors", ids, confirmed="Resume")
    assert Change.objects.count() == changes


def test_a_failing_chunk_keeps_what_is_done(db: Any, login: Callable[..., Any], small_chunks: None) -> None:
    from django.contrib.auth.models import User

    from django_wheelbeat.bulk import progress
    from django_wheelbeat.bulk.operations import Pause
    from django_wheelbeat.models import Monitor

    fill(7)
    login("ann")
    chunks = []

    class Breaking(Pause):
        def apply(self, chunk: Any, note: Any) -> Any:
            chunks.append(chunk.count())
            if len(chunks) == 3:
                raise ConnectionError
            return super().apply(chunk, note)

    bulk_pass = progress.begin("pause_monitors", User.objects.get(), Monitor.objects.all(), 7, "")
    with pytest.raises(ConnectionError):
        progress.step(bulk_pass, Monitor.objects.all(), Breaking("x"), User.objects.get())
    assert chunks == [3, 3, 1]
    assert Monitor.objects.filter(enabled=False).count() == 6


def test_people_who_may_only_look_change_nothing(db: Any, login: Callable[..., Any]) -> None:
    from django_wheelbeat.models import Change, Monitor

    ids = fill(2)
    Monitor.objects.filter(pk=ids[1]).update(enabled=False)
    changes = Change.objects.count()
    browser = login("viewer", only=("view_monitor",))
    edit = f"{LIST}{ids[0]}/"
    assert browser.get(LIST).status_code == 200
    page = browser.get(f"{edit}change/")
    assert page.status_code == 200
    assert b'name="interval_ms"' not in page.content
    assert b'<div class="readonly">1m</div>' in page.content, "stored milliseconds are shown as they are typed"
    assert b"data-fire-ms" in page.content, "the preview is for everyone who may look"
    typed = {"name": "m0", "task": "evil", "interval_ms": "1s", "timezone": "UTC", "day_rule": "and"}
    for url, data in (
        (f"{edit}change/", typed),
        (f"{LIST}add/", typed),
        (f"{edit}delete/", {"post": "yes"}),
        (f"{LIST}preview/", typed),
    ):
        assert browser.post(url, data).status_code in {403, 405}, url
    for action in ("pause_monitors", "resume_monitors", "delete_selected"):
        act(browser, action, ids, confirmed="Pause", reason="x", post="yes")
    assert Change.objects.count() == changes
    assert Monitor.objects.get(pk=ids[0]).enabled


@pytest.mark.parametrize(
    ("only", "may"),
    [
        (("add_monitor",), False),
        (("view_monitor", "delete_monitor"), False),
        (("change_monitor",), True),
        (("view_monitor", "pause_monitor"), True),
        (("pause_monitor",), False),
        ((), False),
    ],
)
def test_pausing_needs_the_permission_to_pause_or_to_change(
    db: Any, login: Callable[..., Any], only: tuple[str, ...], may: bool
) -> None:
    from django_wheelbeat.models import Monitor

    ids = fill(2)
    act(login("bob", only=only), "pause_monitors", ids, confirmed="Pause", reason="x")
    assert Monitor.objects.filter(enabled=False).count() == (2 if may else 0)


def test_a_forged_request_is_refused(db: Any, login: Callable[..., Any]) -> None:
    from django_wheelbeat.models import Monitor

    ids = fill(1)
    browser = login(enforce_csrf_checks=True)
    assert act(browser, "pause_monitors", ids, confirmed="Pause", reason="x").status_code == 403
    assert browser.post(f"{LIST}{ids[0]}/change/", {"name": "x"}).status_code == 403
    assert Monitor.objects.get().enabled


def test_an_incident_speeds_a_monitor_up_and_back(any_vendor: Any) -> None:
    from django.utils import timezone

    from celery_wheelbeat.errors import InvalidMonitor, WheelbeatError
    from django_wheelbeat.models import Change, Monitor

    monitor = Monitor.objects.create(name="a", task="t", interval_ms=300_000)
    stale = Monitor.objects.get()
    Monitor.objects.update(queue="edited meanwhile")
    changes = Change.objects.count()
    stale.speed_up("10s", timedelta(minutes=30))
    stored = Monitor.objects.get()
    assert (stored.incident_interval_ms, stored.queue) == (10_000, "edited meanwhile")
    assert stored.incident_until == stale.incident_until > timezone.now() + timedelta(minutes=29)
    assert Change.objects.count() == changes + 1
    for every in (300, "5m", timedelta(hours=1)):
        with pytest.raises(InvalidMonitor, match="5m"):
            monitor.speed_up(every, timedelta(minutes=1))
    for every, until in (("soon", timedelta(1)), (0, timedelta(1)), (10, timedelta(0)), (10, timezone.now())):
        with pytest.raises(WheelbeatError):
            monitor.speed_up(every, until)
    stale.end_incident()
    assert Monitor.objects.get().incident_interval_ms is None
    stale.end_incident()
    assert Change.objects.count() == changes + 2


def test_an_incident_covers_a_tag_but_nothing_without_a_grid(db: Any) -> None:
    from django.utils import timezone

    from django_wheelbeat.models import Monitor

    make = Monitor.objects.create
    make(name="slow", task="t", interval_ms=60_000, tags="eu")
    make(name="fast", task="t", interval_ms=1_000, tags="eu")
    make(name="cron", task="t", cron="0 * * * *", tags="eu,prod")
    make(name="once", task="t", once_at=timezone.now(), tags="eu")
    make(name="elsewhere", task="t", interval_ms=60_000, tags="europe")
    assert Monitor.objects.tagged("eu").speed_up(5, timedelta(minutes=1)) == 2
    assert set(Monitor.objects.in_incident(timezone.now()).values_list("name", flat=True)) == {"slow", "cron"}
    assert Monitor.objects.tagged("eu").end_incident() == 2


def test_touching_puts_rows_into_the_change_log(any_vendor: Any, small_chunks: None) -> None:
    from django_wheelbeat.models import Change, Monitor

    ids = fill(7)
    Monitor.objects.get(pk=ids[0]).touch()
    assert Monitor.objects.exclude(pk=ids[0]).touch() == 6
    assert list(Change.objects.order_by("id")[7:].values_list("monitor_id", "operation")) == [(pk, "U") for pk in ids]


def test_the_behaviour_does_not_need_django_s_model_admin(db: Any) -> None:
    from django.contrib.admin import ModelAdmin

    from django_wheelbeat.admin.monitor import MonitorAdminMixin

    assert not issubclass(MonitorAdminMixin, ModelAdmin)
    *ours, root = MonitorAdminMixin.__mro__
    assert root is object
    assert all(base.__module__.startswith("django_wheelbeat.") for base in ours)
