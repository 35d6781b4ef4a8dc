"""Sites that narrow ``get_queryset`` for each user: nothing of the section reaches beyond it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIST = "/admin/wheelbeat/monitor/"
QUARANTINE = "/admin/wheelbeat/quarantine/"
ANNS, BOBS = 900_001, 900_002
"""Primary keys that no sequence of the test reaches."""


@pytest.fixture
def tenant(either: Any, login: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A superuser who sees only the monitors with the tag of her name."""
    from django_wheelbeat.admin import MonitorAdmin
    from django_wheelbeat.models import Monitor, Quarantine

    def of_the_user(self: Any, request: Any) -> Any:
        return super(MonitorAdmin, self).get_queryset(request).tagged(request.user.get_username())

    monkeypatch.setattr(MonitorAdmin, "get_queryset", of_the_user)
    for pk, name in ((ANNS, "hers"), (BOBS, "secret")):
        tags = ["ann" if pk == ANNS else "bob"]
        Monitor.objects.create(pk=pk, name=name, task=f"{name}.task", queue=f"{name}-q", cron="* * * * *", tags=tags)
        Quarantine.objects.create(job_key=f"monitor:{pk}", definition_hash="x", reason="r")
    Monitor.objects.get(pk=BOBS).speed_up("10s", timedelta(days=1))
    return login("ann")


def test_an_import_changes_only_monitors_that_the_user_sees(tenant: Any) -> None:
    from django_wheelbeat.models import Monitor

    lines = (
        '{"name": "hers", "queue": "moved"}\n{"name": "secret", "queue": "stolen"}\n'
        '{"name": "new", "task": "t", "interval": "1m"}\n'
    )
    data = {"file": SimpleUploadedFile("m.jsonl", lines.encode()), "import": "1", "skip_errors": "on"}
    page = tenant.post(f"{LIST}import/", data).content.decode()
    assert "belongs to a monitor that you may not see" in page
    assert "secret-q" not in page
    queues = dict(Monitor.objects.values_list("name", "queue"))
    assert queues == {"hers": "moved", "secret": "secret-q", "new": ""}


def test_trying_again_reaches_only_monitors_that_the_user_sees(tenant: Any) -> None:
    from django_wheelbeat.models import Change

    changes = Change.objects.count()
    page = tenant.get(QUARANTINE).content.decode()
    assert f'<a href="{LIST}{ANNS}/change/">hers</a>' in page
    assert "secret" not in page
    assert "secret" not in tenant.get(f"{QUARANTINE}monitor_3A{BOBS}/change/").content.decode()
    assert "hers" in tenant.get(f"{QUARANTINE}monitor_3A{ANNS}/change/").content.decode()
    tenant.post(
        QUARANTINE, {"action": "try_again", "_selected_action": [f"monitor:{ANNS}", f"monitor:{BOBS}"], "index": "0"}
    )
    assert list(Change.objects.order_by("id")[changes:].values_list("monitor_id", flat=True)) == [ANNS]


@pytest.mark.parametrize("path", [
    "", "add/", f"{ANNS}/change/", f"{ANNS}/runs/", "incidents/", "incidents/?tag=bob", "scheduler/?upcoming=1",
    "?q=secre", "?tag=bob", "?quarantined=yes",
])  # fmt: skip
def test_no_page_names_what_the_user_does_not_see(tenant: Any, path: str) -> None:
    page = tenant.get(f"{LIST}{path}").content.decode()
    assert "secret" not in page
    if path in ("", "add/"):
        assert "hers.task" in page, "her own tasks are offered"


def test_bulk_actions_and_exports_keep_to_what_the_user_sees(tenant: Any) -> None:
    from django_wheelbeat.models import Monitor

    def act(action: str, **given: str) -> str:
        data = {"action": action, "_selected_action": [ANNS, BOBS], "select_across": "1", "index": "0", **given}
        answer = tenant.post(LIST, data)
        return (b"".join(answer.streaming_content) if answer.streaming else answer.content).decode()

    assert "secret" not in act("edit_monitors")
    assert "hers-q" in act("edit_monitors"), "her own queues are offered"
    assert "secret" not in act("export_as_json_lines")
    act("pause_monitors", confirmed="1", reason="r")
    assert dict(Monitor.objects.values_list("name", "enabled")) == {"hers": False, "secret": True}
    for page in ("change", "runs", "history", "delete"):
        assert tenant.get(f"{LIST}{BOBS}/{page}/").status_code in (302, 404)
    assert tenant.post(f"{LIST}{BOBS}/run/", {"request": "x"}).status_code == 404
