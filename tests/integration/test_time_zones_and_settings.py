"""Whatever zones Django, Celery and the host are in, a monitor means the same instants."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
from services import OWN_NAME, mysql_database_beside, postgres_database_beside
from support.site.zone_probe import CELERY_ZONE, PROCESS_ZONES

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
AFTER_MS = 1_925_000_000_000


def ms(text: str, zone: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres),
                        pytest.param("mysql", marks=pytest.mark.mysql)])  # fmt: skip
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of its own for each process: what one wrote, no other reads."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/zones.sqlite3"
        return
    beside = postgres_database_beside if request.param == "postgresql" else mysql_database_beside
    server = request.getfixturevalue("postgres_url" if request.param == "postgresql" else "mysql_url")
    with beside(server, f"{OWN_NAME}_zones") as database:
        yield database


@pytest.mark.parametrize(("use_tz", "time_zone"), [("1", "Asia/Kolkata"), ("0", "Asia/Kolkata")])
def test_a_monitor_means_the_same_instants_everywhere(url: str, use_tz: str, time_zone: str) -> None:
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "support.site.settings",
        "WHEELBEAT_TEST_DATABASE": url,
        "WHEELBEAT_TEST_USE_TZ": use_tz,
        "WHEELBEAT_TEST_TIME_ZONE": time_zone,
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in (".", "django_app", "tests")),
    }
    done = subprocess.run(
        [sys.executable, "-m", "support.site.zone_probe"],
        env=environment, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert list(seen) == list(PROCESS_ZONES)
    noon_ms = ms("2031-07-01T12:00", time_zone)
    nightly_ms = ms("2031-01-01T02:30", "America/Sao_Paulo")
    entry_ms = ms("2031-01-02T03:10", CELERY_ZONE)
    assert 0 < nightly_ms - AFTER_MS < 86_400_000
    for found in seen.values():
        assert found == {
            "once": noon_ms,
            "hourly": noon_ms,
            "ends": noon_ms,
            "nightly": nightly_ms,
            "fresh": True,
            "entry": [entry_ms, entry_ms],
        }
