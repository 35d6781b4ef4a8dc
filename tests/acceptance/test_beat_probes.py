"""A real beat behind its HTTP port: scraped, with threads that hang, without its broker."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families
from services import PrivateRedis, free_port
from support.processes import WAIT_S, Process, Project, redis_conf

from celery_wheelbeat.observe.metrics import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.processes

HANG = """
    from celery import schedules
    from celery.signals import before_task_publish

    def hang_while(name):
        while os.path.exists(name):
            time.sleep(0.05)

    class Hanging(schedules.schedule):
        def is_due(self, last_run_at):
            hang_while("hang-scheduling")
            return super().is_due(last_run_at)

    @before_task_publish.connect
    def hang(**_):
        hang_while("hang-publisher")

    app.conf.beat_schedule = {
        "tick": {"task": "proj.note", "schedule": 1.0},
        "asked": {"task": "proj.note", "schedule": Hanging(1.0)},
    }
"""
WITHOUT_DATABASE = ("changelog_", "load_", "reconcile", "drift_", "later_")
ALONE = ("members", "share_", "unowned_", "takes", "taken_")
"""Metrics that a beat without rolls does not have."""
ON_THE_CELERY_LANE = "wheelbeat_celery_lane_jobs"
OK = (200, "ok\n")


class Port:
    """The HTTP port of a beat."""

    def __init__(self) -> None:
        self.number = free_port()

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.number}{path}", timeout=WAIT_S) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def says(self, path: str, text: str) -> bool:
        status, body = self.get(path)
        return status == 503 and text in body

    def scrape(self) -> Mapping[str, Mapping[str, float]]:
        status, text = self.get("/metrics")
        assert status == 200
        return {
            family.name: {",".join(sample.labels.values()): sample.value for sample in family.samples}
            for family in text_string_to_metric_families(text)
        }


def test_a_beat_behind_its_port(tmp_path: Path) -> None:
    port = Port()
    with PrivateRedis() as redis:
        conf = redis_conf(redis.url, wheelbeat_live_timeout=2, wheelbeat_http_port=port.number)
        with Project(tmp_path, conf, extra=HANG) as project:
            beat = project.beat()
            beat.wait_for(f"beat: Probes and metrics on 127.0.0.1 port {port.number}")
            project.wait_for(lambda: port.get("/readyz") == OK, "it is ready")
            _is_scraped(port, project)
            _lives_by_its_threads(port, project, beat)
            redis.stop()
            project.wait_for(lambda: port.says("/readyz", "[-] broker: "), "it is not ready without a broker")
            project.wait_for(lambda: port.get("/livez") == OK, "it lives all the same")
            assert beat.stop() == 0
            with pytest.raises(urllib.error.URLError):
                port.get("/livez")


def _is_scraped(port: Port, project: Project) -> None:
    names = {family.name.removesuffix("_total") for family in FAMILIES} - {ON_THE_CELERY_LANE}
    names = {name for name in names if not name.removeprefix("wheelbeat_").startswith(WITHOUT_DATABASE + ALONE)}
    project.wait_for(lambda: names <= {*port.scrape()}, "every family of a beat without a database is there")
    project.wait_for(lambda: port.scrape()["wheelbeat_sent"][""] >= 1, "runs are counted")
    found = port.scrape()
    assert {name for name in found if name.startswith("wheelbeat_")} - {ON_THE_CELERY_LANE} == names
    assert found["wheelbeat_jobs"] == {"monitor": 0, "entry": 3}
    assert found["wheelbeat_account_difference"] == {"": 0}
    assert sum(found["wheelbeat_watchdog_found"].values()) == 0
    assert json.loads(port.get("/status")[1])["source"]["kind"] == "file"


def _lives_by_its_threads(port: Port, project: Project, beat: Process) -> None:
    (project.folder / "hang-publisher").touch()
    project.wait_for(lambda: port.says("/livez", "[-] threads: publisher: no progress"), "the publisher that hangs")
    (project.folder / "hang-publisher").unlink()
    project.wait_for(lambda: port.get("/livez") == OK, "it lives again")
    (project.folder / "hang-scheduling").touch()
    project.wait_for(lambda: port.says("/livez", "[-] tick: last tick "), "the scheduling thread that hangs")
    assert port.get("/status")[0] == 200, "the port answers all the same"
    (project.folder / "hang-scheduling").unlink()
    project.wait_for(lambda: port.get("/livez") == OK, "it lives again")
