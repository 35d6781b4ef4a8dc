"""A monitor that could not be sent, and whose definition is as it was when the cause is gone: "try again"."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.processes import DjangoProject, filesystem_conf

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.processes]

STRICT = """
    from pathlib import Path
    from celery import Task

    class Strict(Task):
        def apply_async(self, args=None, kwargs=None, **options):
            if Path({flag!r}).exists():
                args = [object()]
            return super().apply_async(args, kwargs, **options)

    @app.task(base=Strict, name="proj.strict")
    def strict(*_made):
        Path({done!r}).touch()
"""
LISTED = """
    from django_wheelbeat.models import Quarantine
    print(*Quarantine.objects.values_list("job_key", "reason"))
"""
TRY_AGAIN = """
    from types import SimpleNamespace
    from django.contrib import admin
    from django.contrib.auth.models import User
    from django_wheelbeat.admin import QuarantineAdmin
    from django_wheelbeat.models import Quarantine

    user, _ = User.objects.get_or_create(username="ann")
    request = SimpleNamespace(user=user, _messages=SimpleNamespace(add=lambda *_said: None))
    QuarantineAdmin(Quarantine, admin.site).try_again(request, Quarantine.objects.all())
"""


def test_what_can_be_sent_meanwhile_is_sent_after_trying_again(tmp_path: Path) -> None:
    flag, done = tmp_path / "not-today", tmp_path / "done"
    flag.touch()
    apps = ("django.contrib.admin", "django.contrib.sessions", "django.contrib.messages", "django_wheelbeat")
    extra = STRICT.format(flag=str(flag), done=str(done))
    with DjangoProject(tmp_path, filesystem_conf(tmp_path), apps=apps, extra=extra) as project:
        project.django("""
            Monitor.objects.create(name="strict", task="proj.strict", interval_ms=1000)
            Monitor.objects.create(name="good", task="proj.note", interval_ms=1000)
        """)
        project.worker()
        beat = project.beat()
        beat.wait_for("strict is quarantined: EncodeError: Object of type object is not JSON serializable")
        project.wait_for(lambda: "monitor:1" in project.django(LISTED), "it is written down")
        flag.unlink()
        seen = len(project.runs("good"))
        project.wait_for_runs(
            lambda runs: sum(run.name == "good" for run in runs) >= seen + 3,
            "others run, and it is not tried by itself",
        )
        assert not done.exists()
        project.django(TRY_AGAIN)
        project.wait_for(done.exists, "it runs")
        project.wait_for(lambda: "monitor:1" not in project.django(LISTED), "it left the quarantine")
        assert beat.stop() == 0
