"""Of the copies of a run one executes: every pair of store and broker, every pool, real workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from claim_project import ClaimProject
from processes import filesystem_conf

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes

COUNT, COPIES = 200, 3


def conf_of(pair: str, request: pytest.FixtureRequest, folder: Path) -> dict[str, Any]:
    """Return the settings of an app whose results (and so claims) and broker are those of ``pair``."""

    def url(name: str) -> str:
        return str(request.getfixturevalue(f"{name}_url"))

    match pair:
        case "redis+redis":
            return {"broker_url": url("redis"), "result_backend": url("redis")}
        case "postgresql+rabbitmq":
            return {"broker_url": url("amqp"), "result_backend": f"db+{url('postgres')}"}
        case "mariadb+redis":
            return {"broker_url": url("redis"), "wheelbeat_dedup_url": url("mysql")}
    return filesystem_conf(folder, result_backend=f"db+sqlite:///{folder}/results.sqlite3")


PAIRS = ["redis+redis", "postgresql+rabbitmq", "mariadb+redis", "sqlite+filesystem"]


@pytest.mark.parametrize("pair", PAIRS)
def test_of_three_copies_one_runs(pair: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with ClaimProject(tmp_path, conf_of(pair, request, tmp_path)) as project:
        for _ in range(2):
            project.pool_worker()
        ids = project.publish_copies("record", COUNT, COPIES)
        project.until_settled(COUNT * COPIES)
        assert project.logged("Copies of runs are dropped; claims in") == 2
        assert project.count("start") == dict.fromkeys(ids, 1)
        assert project.logged("dropped (other)") == COUNT * (COPIES - 1)


def test_without_the_hook_every_copy_runs(redis_url: str, tmp_path: Path) -> None:
    conf = {
        "broker_url": redis_url,
        "result_backend": redis_url,
        "task_acks_late": True,
        "worker_deduplicate_successful_tasks": True,
    }
    with ClaimProject(tmp_path, conf, installed=False) as project:
        project.pool_worker()
        ids = project.publish_copies("record", 20, COPIES)
        project.until_settled(20 * COPIES)
        assert project.count("start") == dict.fromkeys(ids, COPIES)
