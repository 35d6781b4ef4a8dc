"""A country changes its law: the zone database is replaced between two lives of a beat, and the new rule counts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from datetime import datetime
from pathlib import Path

import tzdata

ROOT = Path(__file__).parents[2]
ZONES = Path(tzdata.__file__).parent / "zoneinfo"
LIFE = """
import json, sys
from support.site.databases import set_up_django
set_up_django()
from django.core.management import call_command
from django.db import connection
from support.changelog.places import Place, monitor
from django_wheelbeat.models import Beat, Monitor
from support.beat.stepped import SteppedBeat

call_command("migrate", verbosity=0, interactive=False)
if not Monitor.objects.exists():
    monitor("noon", args="[1]", interval_ms=None, cron="0 12 * * *", timezone="Europe/Berlin", jitter_s=0)
beat = SteppedBeat(Place(connection).open(), start_ms=int(sys.argv[1]))
beat.until(lambda: beat.current, "the load").run(20)
beat.close()
zones = json.loads(Beat.objects.order_by("seen_at").last().status)["tzdata"]
print(json.dumps([zones, [[message.fire_ms, message.run_id] for message in beat.broker.messages]]))
"""


def live(tmp_path: Path, start: str) -> tuple[str, list[list[int | str]]]:
    """Let a beat live for twenty seconds from ``start`` on; returns the version that it names and what it sent."""
    environment = {
        **os.environ,
        "PYTHONTZPATH": str(tmp_path / "zoneinfo"),
        "WHEELBEAT_TEST_DATABASE": f"sqlite:///{tmp_path}/site.sqlite3",
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in (".", "django_app", "tests")),
    }
    done = subprocess.run(
        [sys.executable, "-", str(ms(start))], input=LIFE, env=environment,
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    version, sent = json.loads(done.stdout)
    return version, sent


def install(tmp_path: Path, version: str, berlin_is: str) -> None:
    """Write a zone database in which Berlin keeps the time of another zone."""
    folder = tmp_path / "zoneinfo"
    (folder / "Europe").mkdir(parents=True, exist_ok=True)
    shutil.copy(ZONES / "UTC", folder / "UTC")
    shutil.copy(ZONES / berlin_is, folder / "Europe" / "Berlin")
    (folder / "tzdata.zi").write_text(f"# version {version}\n")


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def run_id(fire_ms: int) -> str:
    namespace = uuid.uuid5(uuid.NAMESPACE_URL, "celery-wheelbeat:stepped")
    return str(uuid.uuid5(namespace, f"monitor:1@{fire_ms}"))


def test_a_new_zone_database_counts_from_the_next_start_on(tmp_path: Path) -> None:
    install(tmp_path, "2030a", "Etc/GMT-1")
    first, second = ms("2030-06-01T11:00Z"), ms("2030-06-02T10:00Z")
    assert live(tmp_path, "2030-06-01T10:59:50Z") == ("2030a", [[first, run_id(first)]])
    install(tmp_path, "2030b", "Etc/GMT-2")
    assert live(tmp_path, "2030-06-02T09:59:50Z") == ("2030b", [[second, run_id(second)]])
