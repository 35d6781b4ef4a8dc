"""Real beats of an app without a database share the work: through RabbitMQ, a folder, or an etcd."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from services import PrivateEtcd
from support.processes import Project, filesystem_conf, matching

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.processes import Process

pytestmark = pytest.mark.processes


@pytest.fixture(
    params=[
        pytest.param("amqp", marks=pytest.mark.amqp),
        pytest.param("etcd", marks=pytest.mark.etcd),
        "folder",
    ]
)
def conf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Settings of an app; all but RabbitMQ's have a folder as broker."""
    if request.param == "amqp":
        yield {"broker_url": request.getfixturevalue("amqp_url"), "wheelbeat_rolls": "auto"}
    elif request.param == "folder":
        yield filesystem_conf(tmp_path, wheelbeat_rolls=str(tmp_path / "roll.d"))
    else:
        with PrivateEtcd() as server:
            yield filesystem_conf(tmp_path, wheelbeat_rolls=server.url)


def shards(beat: Process) -> int:
    """Return how many shards a beat has, by its log."""
    taken = sum(int(match[1]) for match in matching(beat.lines, re.compile(r"beat: (\d+) shards taken")))
    return taken - sum(int(match[1]) for match in matching(beat.lines, re.compile(r"beat: (\d+) shards let go")))


def test_two_beats_divide_the_shards_and_the_other_takes_what_one_leaves(conf: dict[str, Any], tmp_path: Path) -> None:
    """SIGKILL of the first, a third one that comes, SIGTERM of the second."""
    with Project(tmp_path, {**conf, "wheelbeat_namespace": tmp_path.name}) as project:

        def started(name: str) -> Process:
            return project.beat("--pidfile=", "-s", str(tmp_path / name))

        def wait_for_shares(**expected: tuple[Process, int]) -> None:
            project.wait_for(lambda: all(shards(beat) == wanted for beat, wanted in expected.values()), str(expected))

        first = started("first")
        wait_for_shares(first=(first, 256))
        second = started("second")
        wait_for_shares(first=(first, 128), second=(second, 128))
        first.kill()
        wait_for_shares(second=(second, 256))
        third = started("third")
        wait_for_shares(second=(second, 128), third=(third, 128))
        assert second.stop() == 0
        wait_for_shares(third=(third, 256))
