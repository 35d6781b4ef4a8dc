"""Which rolls an app has: by what it has, or by name."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from support.membership.memory_roll import MemoryRoll, MemoryStore

from celery_wheelbeat.errors import InvalidSetting
from celery_wheelbeat.membership.rolls import opening
from celery_wheelbeat.membership.rolls.amqp_roll import AmqpRoll
from celery_wheelbeat.membership.rolls.etcd_roll import EtcdRoll
from celery_wheelbeat.membership.rolls.folder_roll import FolderRoll
from celery_wheelbeat.membership.rolls.opening import Surroundings, roll_makers, usual_rolls
from celery_wheelbeat.membership.rolls.redis_roll import RedisRoll
from celery_wheelbeat.membership.rolls.sql_roll import SqlRoll

if TYPE_CHECKING:
    from pathlib import Path

    from celery_wheelbeat.membership import Roll


def around(folder: Path, driver: str = "redis", **has: Any) -> Surroundings:
    app = Celery("proj", broker=f"{driver}://", set_as_current=False)
    return Surroundings("a", 1, 1.0, str(folder), driver, app.connection_for_write, **has)


def opened(names: list[str], has: Surroundings) -> dict[str, Roll]:
    return {name: make("site") for name, make in roll_makers(names, has).items()}


@pytest.mark.parametrize(
    ("vendor", "driver", "names"),
    [
        ("postgresql", "redis", ("database", "broker")),
        ("mysql", "amqp", ("database", "broker")),
        ("sqlite", "sqs", ("database",)),
        (None, "redis", ("broker",)),
        (None, "amqp", ("broker",)),
        (None, "filesystem", ("folder",)),
    ],
)
def test_an_app_that_names_none_has_its_database_and_its_broker(
    vendor: str | None, driver: str, names: tuple[str, ...]
) -> None:
    assert usual_rolls(vendor, driver) == names


def test_each_name_opens_its_store_without_connecting(tmp_path: Path) -> None:
    has = around(tmp_path, vendor="sqlite", parameters=dict)
    names = ["database", "broker", "folder", "etcd://user:secret@host", "redis://:secret@host/1"]
    found = opened(names, has)
    assert {name: type(roll) for name, roll in found.items()} == {
        "database": SqlRoll,
        "broker": RedisRoll,
        "folder": FolderRoll,
        "etcd": EtcdRoll,
        "redis": RedisRoll,
    }
    assert isinstance(opened(["broker"], around(tmp_path, "amqp"))["broker"], AmqpRoll)
    assert isinstance(opened([str(tmp_path)], has)[str(tmp_path)], FolderRoll)
    assert opened(["auto"], has).keys() == {"database", "broker"}
    assert opened(["auto"], around(tmp_path, "filesystem")).keys() == {"folder"}


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["database"], "database: this app has no database of monitors"),
        (["folder", "folder"], "folder is named twice"),
        (["data base"], "data base: expected auto, database, broker, folder, the path of a folder, or a URL"),
        (["redis://:secret@host:port"], "redis://…: expected redis://user:password@host:6379/0"),
        (
            ["consul://secret@host"],
            "consul://…: expected auto, database, broker, folder, the path of a folder, or a URL .* or the scheme of a",
        ),
    ],
)
def test_a_name_that_cannot_be_a_roll_is_refused_without_its_password(
    tmp_path: Path, names: list[str], reason: str
) -> None:
    with pytest.raises(InvalidSetting, match=reason) as refused:
        opened(names, around(tmp_path))
    assert "secret" not in str(refused.value)


def test_a_broker_of_another_kind_is_no_roll(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="a broker of kind memory cannot be a roll"):
        opened(["broker"], around(tmp_path, "memory"))


def test_a_package_adds_a_store_by_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def factory(url: str, namespace: str, beat_id: str, wait_s: float) -> MemoryRoll:
        made.append((url, wait_s))
        return MemoryRoll(MemoryStore(), namespace, beat_id)

    monkeypatch.setattr(EntryPoint, "load", lambda _: factory)
    point = EntryPoint("consul", "package:factory", opening.GROUP)
    monkeypatch.setattr(opening, "entry_points", lambda **wanted: [point] if wanted["name"] == "consul" else [])
    found = opened(["consul://host"], around(tmp_path))
    assert isinstance(found["consul"], MemoryRoll)
    assert made[0] == ("consul://host", 1.0)
