"""Real beats on PostgreSQL and Redis share the work: one is killed, one leaves, one is a hot standby."""

from __future__ import annotations

import base64
import json
import re
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import redis
from services import PrivatePostgres, PrivateRedis
from support.processes import DjangoProject, redis_conf
from support.site.settings import database_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.processes import Process

pytestmark = [pytest.mark.processes, pytest.mark.postgres, pytest.mark.redis]

MONITORS = 40


class Site:
    """A project with monitors of one second, its beats, and the messages that they have sent."""

    def __init__(self, project: DjangoProject, broker_url: str, prefix: str) -> None:
        self.project = project
        self._redis = redis.Redis.from_url(broker_url)
        self._queue = f"{prefix}celery"

    def beat(self, name: str) -> Process:
        """Start a beat with files of its own."""
        return self.project.beat("--pidfile=", "-s", str(self.project.folder / name))

    def runs(self) -> Counter[tuple[str, int]]:
        """Count the messages of each run: (monitor, fire time in ms)."""
        found: Counter[tuple[str, int]] = Counter()
        for raw in self._redis.lrange(self._queue, 0, -1):
            headers: dict[str, Any] = json.loads(raw)["headers"]
            if headers.get("periodic_task_name", "").startswith("each second"):
                found[headers["periodic_task_name"], headers["wheelbeat_fire_ms"]] += 1
        return found

    def one_off_runs(self) -> Counter[int]:
        """Count the messages of each one-off run, by its argument."""
        found: Counter[int] = Counter()
        for raw in self._redis.lrange(self._queue, 0, -1):
            message = json.loads(raw)
            arguments = json.loads(base64.b64decode(message["body"]))[0]
            if not message["headers"].get("periodic_task_name", "").startswith("each second") and arguments:
                found[arguments[0]] += 1
        return found

    def newest_ms(self) -> int:
        """The latest fire time that was sent."""
        return max((fire_ms for _, fire_ms in self.runs()), default=0)

    def wait_for_seconds(self, seconds: int) -> None:
        """Wait until runs are sent that are due so much later than the latest one now."""
        until_ms = self.newest_ms() + 1000 * seconds
        self.project.wait_for(lambda: self.newest_ms() >= until_ms, f"runs of {seconds} s more")

    def lost(self) -> list[tuple[str, int]]:
        """Return the runs between the first and the last second, without both, of which there is no message."""
        runs = self.runs()
        fires = sorted({fire_ms for _, fire_ms in runs})
        names = sorted({name for name, _ in runs})
        assert len(names) == MONITORS
        every = range(fires[0] + 1000, fires[-1], 1000)
        return [(name, fire_ms) for name in names for fire_ms in every if not runs[name, fire_ms]]

    def copied(self, after_ms: int = 0) -> list[tuple[str, int]]:
        """Return the runs due after ``after_ms`` with more than one message."""
        return sorted(run for run, count in self.runs().items() if count > 1 and run[1] > after_ms)


@pytest.fixture(scope="module")
def stores() -> Iterator[tuple[PrivatePostgres, PrivateRedis]]:
    """Servers of this file."""
    with PrivatePostgres() as postgres, PrivateRedis() as broker:
        yield postgres, broker


@pytest.fixture
def site(
    stores: tuple[PrivatePostgres, PrivateRedis], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Site]:
    """A project with settings that the test names."""
    postgres, broker = stores
    more = {"wheelbeat_rolls": "auto", "wheelbeat_namespace": tmp_path.name, **request.param}
    conf = {**redis_conf(broker.url), **more}
    prefix = conf["broker_transport_options"]["global_keyprefix"]
    with DjangoProject(tmp_path, conf, database=database_of(postgres.url)) as project:
        project.django(
            f"""
            Monitor.objects.all().delete()
            for n in range({MONITORS}):
                Monitor.objects.create(name=f"each second {{n}}", task="proj.note", interval_ms=1000)
            """
        )
        yield Site(project, broker.url, prefix)


@pytest.mark.parametrize("site", [{}], indirect=True)
@pytest.mark.promise("every-due-run-is-accounted-for")
def test_two_beats_share_the_work_and_each_takes_over_what_the_other_leaves(site: Site) -> None:
    """SIGKILL: nothing is lost. SIGTERM: nothing is lost and nothing is sent twice."""
    first = site.beat("first")
    first.wait_for("256 shards taken")
    site.wait_for_seconds(2)
    second = site.beat("second")
    second.wait_for("128 shards taken")
    first.wait_for("shards let go")
    site.wait_for_seconds(3)
    assert site.copied() == []

    killed_ms = site.newest_ms()
    first.kill()
    second.wait_for("is ready; it had 128 shards")
    second.wait_for("128 of a beat that is gone")
    site.wait_for_seconds(3)
    assert site.lost() == []
    taken_ms = site.newest_ms()
    assert all(killed_ms - 3000 < fire_ms < taken_ms for _, fire_ms in site.copied())

    third = site.beat("third")
    third.wait_for("128 shards taken")
    site.wait_for_seconds(2)
    assert second.stop() == 0
    third.wait_for("128 of a beat that left")
    site.wait_for_seconds(3)
    assert third.stop() == 0
    assert site.lost() == []
    assert site.copied(taken_ms) == []


@pytest.mark.parametrize("site", [{"wheelbeat_active": 1}], indirect=True)
def test_one_of_two_beats_stands_by(site: Site) -> None:
    """With ``wheelbeat_active = 1`` the second beat takes nothing until the first one is gone, and then everything."""
    first = site.beat("first")
    first.wait_for("256 shards taken")
    second = site.beat("second")
    second.wait_for("Everything is loaded")
    site.wait_for_seconds(3)
    assert "shards taken" not in second.output
    assert site.copied() == []
    first.kill()
    second.wait_for("256 of a beat that is gone")
    site.wait_for_seconds(3)
    assert second.stop() == 0
    assert site.lost() == []


@pytest.mark.parametrize("site", [{}], indirect=True)
def test_a_beat_that_was_stopped_looks_before_it_sends(site: Site) -> None:
    """SIGSTOP: the other beat takes its share. On waking, it lets that go and gives away what has come due."""
    first = site.beat("first")
    first.wait_for("256 shards taken")
    second = site.beat("second")
    second.wait_for("128 shards taken")
    site.wait_for_seconds(3)
    first.send(signal.SIGSTOP)
    stopped_ms = site.newest_ms()
    second.wait_for("128 of a beat that is gone")
    site.wait_for_seconds(3)
    first.send(signal.SIGCONT)
    first.wait_for("128 shards were taken by another beat while this one had them")
    first.wait_for("waiting runs are left to their owners")
    site.wait_for_seconds(3)
    assert site.lost() == []
    assert site.copied(stopped_ms + 2_000) == []


@pytest.mark.parametrize("site", [{}], indirect=True)
def test_each_one_off_run_is_sent_by_one_of_two_beats(site: Site) -> None:
    """They lie in the second they are due in; a kill of one beat loses none."""
    first, second = site.beat("first"), site.beat("second")
    site.project.wait_for(
        lambda: all(re.search("128 shards (taken|let go)", beat.output) for beat in (first, second)), "two shares"
    )
    site.project.django(
        """
        from datetime import datetime, timedelta, UTC
        from celery_wheelbeat import later
        from proj import note
        for n in range(200):
            later.apply_at(note.s(n), datetime.now(UTC) + timedelta(seconds=1 + n % 15))
        """
    )
    site.project.wait_for(lambda: len(site.one_off_runs()) >= 50, "some one-off runs")
    first.kill()
    site.project.wait_for(lambda: len(site.one_off_runs()) >= 200, "all one-off runs")
    site.wait_for_seconds(2)
    assert sorted(site.one_off_runs()) == list(range(200))
    assert second.stop() == 0
