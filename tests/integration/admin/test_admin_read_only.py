"""People who may only look: every address of the section, every method, every action. Found from the site itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

VIEWING = (
    "view_monitor",
    "view_change",
    "view_beat",
    "view_quarantine",
    "view_audit",
    "view_scheduler",
    "view_oneoffrun",
)
EXPECTED = {"add": 403, "delete": 403, "import": 403, "run": 405}
"""What people who may only look get for the pages that are not about looking; for every other, 200."""
EVERYTHING = {
    "name": "x", "task": "x", "interval_ms": "1s", "interval": "1s", "timezone": "UTC", "day_rule": "and",
    "enabled": "on",
    "misfire": "auto", "overlap": "allow", "confirmed": "x", "typed": "1", "reason": "x", "queue": "q", "every": "1s",
    "end": "1h", "post": "yes", "run": "x", "import": "x", "effective_from": "2000-01-01", "id": "1", "pk": "1",
    "_save": "x",
}  # fmt: skip


def fill() -> None:
    from django.utils import timezone

    from django_wheelbeat.models import Beat, Monitor, Quarantine

    Monitor.objects.create(pk=1, name="a", task="t", interval_ms=60_000)
    Monitor.objects.create(pk=2, name="b", task="t", interval_ms=60_000, enabled=False)
    Quarantine.objects.create(job_key="monitor:1", definition_hash="x", reason="r")
    now = timezone.now()
    Beat.objects.create(beat_id="b", namespace="n", host="h", pid=1, version="1", started_at=now, seen_at=now)


def addresses() -> dict[str, str]:
    """Return name → path of every address of the section, with keys of rows that exist."""
    from django.contrib import admin
    from django.urls import NoReverseMatch, reverse

    from django_wheelbeat.models import Audit, Beat, Change, Monitor, Quarantine

    keys = {
        model._meta.model_name: str(model._default_manager.values_list("pk", flat=True).first())
        for model in (Audit, Beat, Change, Monitor, Quarantine)
    }
    found = {}
    for model, model_admin in admin.site._registry.items():
        if model._meta.app_label != "wheelbeat":
            continue
        for url in model_admin.get_urls():
            if url.name is None:
                continue  # Django's redirect of an old address
            try:
                found[url.name] = reverse(f"admin:{url.name}")
            except NoReverseMatch:
                found[url.name] = reverse(f"admin:{url.name}", args=[keys[model._meta.model_name]])
    return found


def everything() -> dict[str, list[Any]]:
    """Return what is in every table of the section."""
    from django.apps import apps

    return {
        model.__name__: list(model._default_manager.order_by("pk").values_list())
        for model in apps.get_app_config("wheelbeat").get_models()
    }


def test_the_addresses_are_those_that_are_known(db: Any) -> None:
    fill()
    kinds = {name.removeprefix("wheelbeat_") for name in addresses()}
    assert {"monitor_preview", "monitor_run", "monitor_scheduler", "monitor_runs", "monitor_incidents"} <= kinds
    assert {"monitor_import", "monitor_changelist", "quarantine_changelist", "audit_change", "beat_delete"} <= kinds
    assert len(kinds) >= 5 * 5 + 6


@pytest.mark.parametrize("only", [VIEWING, ()], ids=["looking", "nothing"])
def test_no_address_changes_anything(db: Any, login: Callable[..., Any], only: tuple[str, ...]) -> None:
    fill()
    browser = login("viewer", only=only)
    before = everything()
    for name, path in addresses().items():
        shown = browser.get(path)
        if only:
            assert shown.status_code == EXPECTED.get(name.removeprefix("wheelbeat_").partition("_")[2], 200), name
        else:
            assert shown.status_code in {302, 403, 404, 405}, (name, "is shown without any permission")
        for data in (
            EVERYTHING,
            {**EVERYTHING, "action": "delete_selected", "index": "0", "_selected_action": ["1", "2"]},
        ):
            answer = browser.post(path, data)
            assert answer.status_code in {200, 302, 403, 404, 405}, (name, answer.status_code)
        for method in (browser.put, browser.patch, browser.delete):
            assert method(path).status_code in {200, 302, 403, 404, 405}, name
        assert everything() == before, name
    from django.contrib.admin.models import LogEntry

    assert not LogEntry.objects.exists()


def test_no_action_is_offered_or_obeyed_that_changes_something(db: Any, login: Callable[..., Any]) -> None:
    from django.contrib import admin
    from django.test import RequestFactory

    from django_wheelbeat.models import Monitor, Quarantine

    fill()
    browser = login("viewer", only=VIEWING)
    before = everything()
    for model, keys in ((Monitor, ["1", "2"]), (Quarantine, ["monitor:1"])):
        model_admin = admin.site._registry[model]
        request = RequestFactory().get("/")
        request.user = browser.get("/admin/").context["user"]
        offered = set(model_admin.get_actions(request))
        assert offered <= {"export_as_json_lines", "export_as_csv"}
        every = {getattr(action, "__name__", action) for action in model_admin.actions}
        assert len(every) >= (9 if model is Monitor else 1)
        for action in every - offered:
            for across in ("0", "1"):
                data = {**EVERYTHING, "action": action, "_selected_action": keys, "index": "0", "select_across": across}
                browser.post(f"/admin/wheelbeat/{model._meta.model_name}/", data)
        assert everything() == before


def test_no_form_sets_what_it_does_not_show(either: Any, login: Callable[..., Any]) -> None:
    from django_wheelbeat.models import Monitor

    fill()
    before = Monitor.objects.get(pk=1)
    data = {
        "name": "a", "task": "t", "interval_ms": "2m", "timezone": "UTC", "day_rule": "and", "misfire": "auto",
        "overlap": "allow", "enabled": "on", "effective_from": "2000-01-01 00:00", "finished_at": "2000-01-01 00:00",
        "finished_at_0": "2000-01-01", "finished_at_1": "00:00", "id": "77", "expires_next": "on", "shape": "1",
    }  # fmt: skip
    response = login("editor", only=("view_monitor", "change_monitor")).post("/admin/wheelbeat/monitor/1/change/", data)
    assert response.status_code == 302
    after = Monitor.objects.get(pk=1)
    assert (after.interval_ms, after.finished_at, after.expires_next) == (120_000, None, False)
    assert after.effective_from >= before.effective_from
    assert not Monitor.objects.filter(pk=77).exists()


@pytest.mark.parametrize("path", ["monitor/", "monitor/import/", "monitor/1/run/", "quarantine/"])
def test_forged_requests_are_refused(db: Any, login: Callable[..., Any], path: str) -> None:
    fill()
    before = everything()
    browser = login(enforce_csrf_checks=True)
    data = {**EVERYTHING, "action": "resume_monitors", "_selected_action": ["2"], "index": "0"}
    assert browser.post(f"/admin/wheelbeat/{path}", data).status_code == 403
    assert everything() == before
