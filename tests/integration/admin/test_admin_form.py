"""The add and change form: what it stores, what it refuses and where, who is named for it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ADD = "/admin/wheelbeat/monitor/add/"
PLAIN = {
    "name": "probe",
    "task": "shop.check",
    "args": "[]",
    "kwargs": "{}",
    "interval_ms": "5m",
    "timezone": "UTC",
    "day_rule": "and",
    "misfire": "auto",
    "overlap": "allow",
    "enabled": "on",
    "headers": "{}",
    "options": "{}",
}


def only_monitor() -> Any:
    from django_wheelbeat.models import Monitor

    return Monitor.objects.get()


def errors_of(response: Any) -> dict[str, list[str]]:
    assert response.status_code == 200, "the form was accepted"
    return {field: list(texts) for field, texts in response.context["adminform"].form.errors.items()}


@pytest.mark.parametrize(
    ("typed", "stored"),
    [
        ({"interval_ms": "90s"}, {"interval_ms": 90_000}),
        ({"interval_ms": " 1h30m "}, {"interval_ms": 5_400_000}),
        (
            {"interval_ms": "", "cron": "*/7 2 * * mon", "timezone": "Asia/Tokyo", "day_rule": "or"},
            {"interval_ms": None, "cron": "*/7 2 * * mon", "timezone": "Asia/Tokyo", "day_rule": "or"},
        ),
        (
            {"interval_ms": "", "once_at_0": "2031-05-01", "once_at_1": "12:00:00"},
            {"once_at": datetime(2031, 5, 1, 12, tzinfo=UTC)},
        ),
        (
            {"interval_ms": "", "solar_event": "sunset", "solar_latitude": "52.5", "solar_longitude": "13.4"},
            {"solar_event": "sunset", "solar_latitude": 52.5, "solar_longitude": 13.4},
        ),
        ({"expires_s": "next"}, {"expires_next": True, "expires_s": None}),
        ({"expires_s": "90"}, {"expires_next": False, "expires_s": 90.0}),
        ({"expires_s": "2m"}, {"expires_next": False, "expires_s": 120.0}),
        ({"args": "", "kwargs": " \n ", "headers": ""}, {"args": "[]", "kwargs": "{}", "headers": "{}"}),
        ({"tags": " eu ,prod,, eu"}, {"tags": "eu,prod"}),
        ({"name": "Zürich–東京 / a.b 😀", "kwargs": '{"s": "é\u2028😀"}'}, {"name": "Zürich–東京 / a.b 😀"}),
        ({"jitter_s": "0"}, {"jitter_s": 0}),
        (
            {"incident_interval_ms": "10s", "incident_until_0": "2031-05-01", "incident_until_1": "12:00"},
            {"incident_interval_ms": 10_000, "incident_until": datetime(2031, 5, 1, 12, tzinfo=UTC)},
        ),
        ({"priority": "7", "queue": "slow"}, {"priority": 7, "queue": "slow"}),
    ],
)
def test_stores_what_was_typed(
    db: Any, login: Callable[..., Any], typed: dict[str, str], stored: dict[str, Any]
) -> None:
    response = login().post(ADD, PLAIN | typed)
    assert response.status_code == 302, errors_of(response)
    monitor = only_monitor()
    assert {column: getattr(monitor, column) for column in stored} == stored


@pytest.mark.parametrize(
    ("typed", "field", "words"),
    [
        ({"interval_ms": "5"}, "interval_ms", "has no unit"),
        ({"interval_ms": "soon"}, "interval_ms", "cannot be read"),
        ({"interval_ms": "0s"}, "interval_ms", "is zero"),
        ({"interval_ms": ""}, "interval_ms", "expected exactly one of interval, cron, once or solar"),
        ({"cron": "* * * * *"}, "interval_ms", "got interval_ms and cron"),
        ({"interval_ms": "", "cron": "* * *"}, "cron", "fields"),
        ({"interval_ms": "", "cron": "0 0 31 2 *"}, "cron", "never fires"),
        ({"interval_ms": "", "cron": "0 0 * * *", "timezone": "Mars/Base"}, "timezone", "Mars/Base"),
        ({"args": "[1,\n 2,,]"}, "args", "line 2, column 4"),
        ({"kwargs": "[]"}, "kwargs", "expected a JSON object"),
        ({"headers": "{'a': 1}"}, "headers", "line 1, column 2"),
        ({"options": '{"no_such_option": 1}'}, "options", "no_such_option"),
        ({"expires_s": "-3"}, "expires_s", "cannot be read"),
        ({"expires_s": "now"}, "expires_s", "cannot be read"),
        (
            {"interval_ms": "", "once_at_0": "2031-05-01", "once_at_1": "12:00", "expires_s": "next"},
            "expires_s",
            "no next run",
        ),
        ({"jitter_s": "301"}, "jitter_s", "0…300 s"),
        ({"priority": "256"}, "priority", "256"),
        ({"incident_interval_ms": "10m"}, "incident_interval_ms", "not shorter than the interval, 5m"),
        ({"incident_interval_ms": "10s"}, "incident_until", "both an interval and an end"),
        (
            {"start_at_0": "2031-01-02", "start_at_1": "00:00", "end_at_0": "2031-01-02", "end_at_1": "00:00"},
            "end_at",
            "not after start_at",
        ),
        ({"interval_ms": "", "solar_event": "sunset"}, "solar_latitude", "degrees"),
        ({"name": "a\x00b"}, "name", "Null characters"),
        ({"kwargs": '{"a": "\x00"}'}, "kwargs", "Null characters"),
        ({"kwargs": json.dumps({"a": "x" * 300_000})}, "kwargs", "wheelbeat_max_payload_bytes"),
        ({"task": ""}, "task", "required"),
    ],
)
def test_names_the_field_and_the_remedy(
    db: Any, login: Callable[..., Any], typed: dict[str, str], field: str, words: str
) -> None:
    from django_wheelbeat.models import Monitor

    errors = errors_of(login().post(ADD, PLAIN | typed))
    assert list(errors) == [field] or field in errors, errors
    assert words in " ".join(errors[field])
    assert not Monitor.objects.exists()


@pytest.mark.parametrize(
    "typed",
    [
        {"name": "x" * 300},
        {"task": ""},
        {"interval_ms": "10"},
        {"interval_ms": "", "once_at_0": "2031-13-01", "once_at_1": "12:00"},
        {"interval_ms": "", "solar_event": "sunset", "solar_latitude": "1e400", "solar_longitude": "0"},
    ],
)
def test_says_one_thing_about_what_it_cannot_read(db: Any, login: Callable[..., Any], typed: dict[str, str]) -> None:
    errors = errors_of(login().post(ADD, PLAIN | typed))
    assert [len(texts) for texts in errors.values()] == [1], errors


def test_the_model_refuses_what_the_form_refuses(db: Any) -> None:
    from django.core.exceptions import ValidationError

    from django_wheelbeat.models import Monitor

    with pytest.raises(ValidationError) as refusal:
        Monitor(name="a", task="b", cron="61 * * * *", kwargs="{", expires_next=True, expires_s=3).full_clean()
    assert {"cron", "kwargs", "expires_next"} <= refusal.value.error_dict.keys()
    with pytest.raises(ValidationError) as refusal:
        Monitor(name="a", task="b", interval_ms="often").full_clean()
    assert "interval_ms" in refusal.value.error_dict
    Monitor(name="a", task="b", interval_ms=1_000).full_clean()


def test_the_project_s_time_zone_is_preselected(db: Any, login: Callable[..., Any]) -> None:
    from django.test import override_settings

    from django_wheelbeat.models import Monitor

    with override_settings(TIME_ZONE="Europe/Paris"):
        assert login().get(ADD).context["adminform"].form["timezone"].value() == "Europe/Paris"
    with override_settings(CELERY_TIMEZONE="Europe/Rome"):
        assert login("bob").get(ADD).context["adminform"].form["timezone"].value() == "Europe/Rome"
        assert Monitor.objects.create(name="by code", task="t", cron="0 9 * * *").timezone == "Europe/Rome"


def test_shows_stored_values_as_they_are_typed(db: Any, login: Callable[..., Any]) -> None:
    from django_wheelbeat.models import Monitor

    monitor = Monitor.objects.create(
        name="a", task="t", interval_ms=5_400_000, expires_next=True, tags="eu,prod", incident_interval_ms=500,
        incident_until=datetime(2031, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    form = login().get(f"/admin/wheelbeat/monitor/{monitor.pk}/change/").context["adminform"].form
    shown = {name: form[name].value() for name in ("interval_ms", "expires_s", "tags", "incident_interval_ms")}
    assert shown == {"interval_ms": "1h30m", "expires_s": "next", "tags": "eu, prod", "incident_interval_ms": "500ms"}


def test_an_unchanged_form_writes_no_change(db: Any, login: Callable[..., Any]) -> None:
    from django_wheelbeat.models import Change, Monitor

    browser = login()
    browser.post(ADD, PLAIN | {"expires_s": "next", "tags": "b,a"})
    changes = Change.objects.count()
    url = f"/admin/wheelbeat/monitor/{only_monitor().pk}/change/"
    response = browser.post(url, PLAIN | {"interval_ms": "300s", "expires_s": "Next", "tags": "a, b"}, follow=True)
    assert response.context["messages"]
    assert Change.objects.count() == changes
    assert Monitor.objects.get().expires_next


def test_names_the_user_and_the_reason(any_vendor: Any, login: Callable[..., Any]) -> None:
    from django.contrib.admin.models import LogEntry

    from django_wheelbeat.models import Change, Monitor

    browser = login("ann")
    browser.post(ADD, PLAIN | {"change_reason": "new shop"})
    url = f"/admin/wheelbeat/monitor/{only_monitor().pk}"
    browser.post(f"{url}/change/", PLAIN | {"interval_ms": "1m", "change_reason": "closer look"})
    browser.post(f"{url}/delete/", {"post": "yes"})
    Monitor.objects.create(name="by code", task="t", interval_ms=1_000)
    written = list(Change.objects.order_by("id").values_list("operation", "actor", "reason"))
    assert written[:3] == [("I", "ann", "new shop"), ("U", "ann", "closer look"), ("D", "ann", "")]
    assert written[3][1] != "ann", "an actor outlived its request"
    messages = [entry.get_change_message() for entry in LogEntry.objects.order_by("id")[:2]]
    assert messages == ["Added. new shop", "Changed Interval. closer look"]


def test_a_race_that_no_form_can_see_is_a_readable_error(db: Any, login: Callable[..., Any]) -> None:
    from django.db.models.signals import pre_save

    from django_wheelbeat.models import Monitor

    def other_request_wins(instance: Any, **_: Any) -> None:
        Monitor.objects.bulk_create([Monitor(name=instance.name, task="t", interval_ms=1_000)])

    pre_save.connect(other_request_wins, sender=Monitor)
    try:
        errors = errors_of(login().post(ADD, PLAIN))
    finally:
        pre_save.disconnect(other_request_wins, sender=Monitor)
    assert "name" in " ".join(errors["__all__"])


@pytest.mark.postgres
def test_a_name_that_another_user_has_just_taken_is_marked(
    pg: Any, admin_postgres_url: str, login: Callable[..., Any]
) -> None:
    import psycopg
    from django.db.models.signals import pre_save

    from django_wheelbeat.models import Monitor

    with psycopg.connect(admin_postgres_url, autocommit=True) as other:

        def other_user_saves(instance: Any, **_: Any) -> None:
            other.execute("INSERT INTO wheelbeat_monitor (name, task, interval_ms) VALUES ('probe', 't', 1000)")

        pre_save.connect(other_user_saves, sender=Monitor)
        try:
            errors = errors_of(login().post(ADD, PLAIN))
        finally:
            pre_save.disconnect(other_user_saves, sender=Monitor)
            other.execute("DELETE FROM wheelbeat_monitor")
            other.execute("DELETE FROM wheelbeat_changelog")
    assert errors["name"] == ["Monitor with this Name already exists."]


def test_a_constraint_speaks_its_own_words(any_vendor: Any, login: Callable[..., Any]) -> None:
    from django.db.models.signals import pre_save

    from django_wheelbeat.models import Monitor

    def break_row(instance: Any, **_: Any) -> None:
        instance.jitter_s = -1

    pre_save.connect(break_row, sender=Monitor)
    try:
        errors = errors_of(login().post(ADD, PLAIN))
    finally:
        pre_save.disconnect(break_row, sender=Monitor)
    assert errors["__all__"] == ["The jitter must be zero or more seconds."]


def test_an_edit_does_not_undo_one_that_it_has_not_seen(db: Any, login: Callable[..., Any]) -> None:
    from datetime import timedelta

    from django_wheelbeat.models import Monitor

    browser = login()
    browser.post(ADD, PLAIN)
    url = f"/admin/wheelbeat/monitor/{only_monitor().pk}/change/"
    read = browser.get(url).context["adminform"].form["definition_read"].value()
    Monitor.objects.pause("incident 7")
    only_monitor().speed_up("10s", timedelta(hours=1))
    refused = browser.post(url, PLAIN | {"description": "x", "definition_read": read})
    assert "This monitor has been changed since you opened it" in errors_of(refused)["__all__"][0]
    assert not only_monitor().enabled
    again = refused.context["adminform"].form["definition_read"].value()
    assert again != read
    assert browser.post(url, PLAIN | {"description": "x", "definition_read": again}).status_code == 302
    assert only_monitor().enabled


def test_takes_no_column_that_is_not_on_the_form(db: Any, login: Callable[..., Any]) -> None:
    login().post(ADD, PLAIN | {"effective_from_0": "1999-01-01", "finished_at": "1999-01-01", "id": "99"})
    monitor = only_monitor()
    assert monitor.finished_at is None
    assert monitor.effective_from.year > 1999
    assert monitor.pk != 99


def test_markup_in_texts_is_shown_as_text(db: Any, login: Callable[..., Any]) -> None:
    markup = "<script>alert(1)</script>"
    browser = login()
    texts = dict.fromkeys(("name", "task", "queue", "pause_reason", "tags", "change_reason"), markup)
    browser.post(ADD, PLAIN | texts | {"enabled": ""})
    url = f"/admin/wheelbeat/monitor/{only_monitor().pk}"
    for page in ("/admin/wheelbeat/monitor/", f"{url}/change/", f"{url}/history/", "/admin/wheelbeat/change/"):
        shown = browser.get(page).content.decode()
        assert "&lt;script&gt;alert" in shown
        assert markup not in shown


def test_the_form_stays_small_and_asks_little_with_many_monitors(db: Any, login: Callable[..., Any]) -> None:
    from django.test.utils import CaptureQueriesContext

    from django_wheelbeat.models import Monitor

    Monitor.objects.bulk_create(Monitor(name=f"m{i}", task=f"shop.task_{i}", interval_ms=60_000) for i in range(5_000))
    browser = login()
    with CaptureQueriesContext(db) as queries:
        page = browser.get(ADD)
    assert len(queries) <= 10
    assert len(page.content) < 200_000


def test_completes_names_that_are_registered_or_in_use(db: Any, login: Callable[..., Any]) -> None:
    from celery import current_app

    from django_wheelbeat.models import Monitor

    @current_app.task(name="registered.here")
    def here() -> None: ...

    try:
        Monitor.objects.create(name="a", task="in.use", interval_ms=1_000)
        page = login().get(ADD).content.decode()
    finally:
        current_app.tasks.pop("registered.here")
    assert '<option value="registered.here">' in page
    assert '<option value="in.use">' in page
    assert '<option value="Europe/Zurich">' in page
    assert "celery.chord" not in page


def test_no_script_is_inline(db: Any, login: Callable[..., Any]) -> None:
    import re

    browser = login()
    browser.post(ADD, PLAIN)
    for page in (ADD, f"/admin/wheelbeat/monitor/{only_monitor().pk}/change/", "/admin/wheelbeat/monitor/"):
        shown = browser.get(page).content.decode()
        for script in re.findall(r"<script[^>]*>", shown):
            assert " src=" in script or 'type="application/json"' in script, script
        assert not re.search(r"\son[a-z]+=", shown), "an inline event handler"
        assert 'href="javascript:' not in shown


def test_without_time_zone_support_instants_are_local(db: Any, login: Callable[..., Any]) -> None:
    from datetime import timedelta

    from django.test import override_settings

    from django_wheelbeat.models import Monitor
    from django_wheelbeat.monitors.rows import row_of

    with override_settings(USE_TZ=False, TIME_ZONE="Asia/Shanghai"):
        browser = login()
        once = {"interval_ms": "", "once_at_0": "2031-05-01", "once_at_1": "20:00"}
        assert browser.post(ADD, PLAIN | once).status_code == 302
        assert row_of(only_monitor()).once_at_ms == datetime(2031, 5, 1, 12, tzinfo=UTC).timestamp() * 1000
        Monitor.objects.update(once_at=None, interval_ms=60_000)
        only_monitor().speed_up(5, timedelta(hours=1))
        only_monitor().speed_up(6, datetime.now(UTC) + timedelta(hours=1))
        assert "incident, " in browser.get("/admin/wheelbeat/monitor/?incident=now").content.decode()
        change = browser.get(f"/admin/wheelbeat/monitor/{only_monitor().pk}/change/").content.decode()
        assert 'data-countdown datetime="' in change
        assert '+08:00"' in change


@pytest.mark.parametrize("codename", ["view_monitor", "change_monitor"])
def test_tasks_of_monitors_are_offered_to_those_who_may_see_monitors(
    db: Any, login: Callable[..., Any], codename: str
) -> None:
    from django_wheelbeat.models import Monitor

    Monitor.objects.create(name="payroll", task="payroll.pay", interval_ms=60_000)
    assert "payroll.pay" not in login("adds", only=("add_monitor",)).get(ADD).content.decode()
    assert "payroll.pay" in login("sees", only=("add_monitor", codename)).get(ADD).content.decode()
