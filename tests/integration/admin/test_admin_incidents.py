"""The page of incidents, and the quarantine's "try again"."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

LIST = "/admin/wheelbeat/monitor/"
PAGE = f"{LIST}incidents/"
QUARANTINE = "/admin/wheelbeat/quarantine/"


def fill() -> None:
    from django_wheelbeat.models import Monitor

    for name, tags in (("a", "eu"), ("b", "eu,prod"), ("c", "us"), ("d", "")):
        Monitor.objects.create(name=name, task="t", interval_ms=60_000, tags=tags)


def post_form(browser: Any, tag: str, action: str, **more: Any) -> Any:
    data = {"action": action, "select_across": "1", "index": "0", "_selected_action": "0", "confirmed": "x"}
    return browser.post(f"{LIST}?tag={tag}", data | more)


def test_an_incident_for_a_tag_begins_and_ends_on_its_page(either: Any, login: Callable[..., Any]) -> None:
    from django.utils import timezone

    from django_wheelbeat.models import Change, Monitor

    fill()
    browser = login()
    page = browser.get(PAGE, {"tag": "eu"})
    assert "2 monitors" in page.content.decode()
    assert "There is no running incident." in page.content.decode()
    assert f'action="{LIST}?tag=eu"' in page.content.decode()
    post_form(browser, "eu", "speed_up_monitors", every="5s", end="30m", reason="outage 7")
    assert set(Monitor.objects.in_incident(timezone.now()).values_list("name", flat=True)) == {"a", "b"}
    assert Change.objects.latest("id").reason == "outage 7"
    page = browser.get(PAGE)
    assert [(group.tags, group.count, group.every) for group in page.context["running"]] == [
        (["eu"], 1, "5s"), (["eu", "prod"], 1, "5s"),
    ]  # fmt: skip
    assert "data-countdown" in page.content.decode()
    assert 'name="confirmed"' not in browser.get(PAGE, {"tag": "prod"}).content.decode().partition("end_incidents")[2]
    post_form(browser, "prod", "end_incidents", reason="over")
    assert Change.objects.latest("id").reason == "over"
    assert [group.tags for group in browser.get(PAGE).context["running"]] == [["eu"]]


def test_odd_tags_are_shown_as_text(db: Any, login: Callable[..., Any]) -> None:
    from django_wheelbeat.models import Monitor

    tag = '"><script>&x=1'
    Monitor.objects.create(name="a", task="t", interval_ms=60_000, tags=tag)
    Monitor.objects.all().speed_up("1s", timedelta(hours=1))
    text = login().get(PAGE, {"tag": tag}).content.decode()
    assert "<script>&" not in text
    assert 'href="?tag=%22%3E%3Cscript%3E%26x%3D1"' in text
    assert "1 monitor<" in text


def test_people_who_may_only_look_get_no_form(db: Any, login: Callable[..., Any]) -> None:
    from django_wheelbeat.models import Change

    fill()
    changes = Change.objects.count()
    viewer = login("v", only=("view_monitor",))
    assert viewer.get(PAGE, {"tag": "eu"}).context["form"] is None
    post_form(viewer, "eu", "speed_up_monitors", every="5s", end="30m")
    assert viewer.post(PAGE).status_code == 405
    assert Change.objects.count() == changes
    assert login("s", only=("view_scheduler",)).get(PAGE).status_code == 403


def quarantine() -> list[str]:
    from django_wheelbeat.models import Monitor, Quarantine

    monitor = Monitor.objects.create(name="a", task="gone", interval_ms=60_000)
    keys = [f"monitor:{monitor.pk}", "monitor:987654", "entry:clean"]
    for key in keys:
        Quarantine.objects.create(job_key=key, definition_hash="x", reason="no such task: <gone>")
    return keys


def test_trying_again_lets_beats_read_the_monitor_again(any_vendor: Any, login: Callable[..., Any]) -> None:
    from django.contrib.admin.models import LogEntry

    from django_wheelbeat.models import Change, Monitor, Quarantine

    keys = quarantine()
    browser = login()
    page = browser.get(QUARANTINE).content.decode()
    assert f"{LIST}{Monitor.objects.get().pk}/change/" in page
    assert "no such task: &lt;gone&gt;" in page
    changes = Change.objects.count()
    response = browser.post(QUARANTINE, {"action": "try_again", "_selected_action": keys, "index": "0"}, follow=True)
    assert "1 monitor will be tried again." in response.content.decode()
    assert "beat_schedule" in response.content.decode()
    (change,) = Change.objects.order_by("id")[changes:]
    assert (change.operation, change.actor, change.reason) == ("U", "ann", "try again")
    (line,) = LogEntry.objects.all()
    assert (line.object_id, line.get_change_message()) == (str(change.monitor_id), "Tried again.")
    assert change.monitor_id == Monitor.objects.get().pk
    assert Quarantine.objects.count() == 3, "only a beat takes it off the list"


def test_trying_again_needs_the_permission_to_change(db: Any, login: Callable[..., Any]) -> None:
    from django_wheelbeat.models import Change

    keys = quarantine()
    changes = Change.objects.count()
    data = {"action": "try_again", "_selected_action": keys, "index": "0"}
    login("v", only=("view_quarantine", "view_monitor", "pause_monitor")).post(QUARANTINE, data)
    assert Change.objects.count() == changes
    login("c", only=("view_quarantine", "change_monitor")).post(QUARANTINE, data)
    assert Change.objects.count() == changes + 1
