"""``celery -A proj wheelbeat later …``: what it prints, what it changes, and how it fails."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from celery import Celery
from click.testing import CliRunner

from celery_wheelbeat import later
from celery_wheelbeat.commands.later import later_group
from celery_wheelbeat.later import opening
from celery_wheelbeat.later.tables import create_tables, drop_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ZONE = ZoneInfo("Europe/Berlin")
AT = (datetime.now(UTC) + timedelta(days=3)).replace(microsecond=250_000)


class LaterSite:
    """An app without Django whose ``wheelbeat_database_url`` names a database with the table."""

    def __init__(self, url: str, connect: Callable[[], Any]) -> None:
        self.app = Celery("proj", set_as_current=False)
        self.app.conf.update(wheelbeat_database_url=url, timezone="Europe/Berlin")
        self.connect = connect

    def stored(self, *args: Any, at: datetime = AT, key: str | None = None) -> str:
        """Store one run; returns its id."""
        with closing(self.connect()) as connection:
            run_id = later.apply_at(self.app.signature("proj.remind", args), at, key=key, connection=connection)
            connection.commit()
        return run_id

    def run(self, *words: str, code: int = 0) -> str:
        """Run the command; returns what it prints to either stream."""
        done = CliRunner().invoke(later_group, words, obj=SimpleNamespace(app=self.app))
        assert done.exit_code == code, done.output
        return done.output

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))


@pytest.fixture(scope="module", params=[pytest.param("postgresql", marks=pytest.mark.postgres), "sqlite"])
def tables(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaterSite]:
    if request.param == "sqlite":
        path = tmp_path_factory.mktemp("later") / "later.sqlite3"
        made = LaterSite(f"sqlite:///{path}", lambda: sqlite3.connect(path, timeout=10))
    else:
        url = request.getfixturevalue("postgres_url")
        made = LaterSite(url, lambda: psycopg.connect(url, options="-c lock_timeout=60s"))
    with closing(made.connect()) as connection:
        create_tables(connection)
        connection.commit()
    yield made
    with closing(made.connect()) as connection:
        drop_tables(connection)
        connection.commit()


@pytest.fixture
def site(tables: LaterSite) -> LaterSite:
    with closing(tables.connect()) as connection:
        connection.execute("DELETE FROM wheelbeat_later")
        connection.commit()
    return tables


def local(at: datetime) -> str:
    return at.astimezone(ZONE).isoformat(" ", "milliseconds")


def test_runs_are_listed_by_due_time_in_the_zone_of_the_app(site: LaterSite) -> None:
    days = (800, 3, 29.5, 31, 0.1)  # one in the last part, two in parts of days on either side of midnight
    ids = {n: site.stored(n, at=datetime.now(UTC) + timedelta(days=n), key=f"k{n}") for n in days}
    assert [line.split()[3] for line in site.run("list").splitlines()] == ["proj.remind"] * 3
    until = (datetime.now(UTC) + timedelta(days=1_000)).isoformat()
    listed = site.json("list", "--to", until)
    assert [run["id"] for run in listed] == [ids[n] for n in sorted(days)]
    assert listed[0] | {"at": "", "at_ms": 0} == {
        "id": ids[0.1],
        "at": "",
        "at_ms": 0,
        "key": "k0.1",
        "task": "proj.remind",
        "args": [0.1],
        "kwargs": {},
        "options": {},
        "can_be_cancelled": True,
    }
    assert listed[0]["at"] == local(datetime.fromtimestamp(listed[0]["at_ms"] / 1000, UTC))
    assert [run["id"] for run in site.json("list", "--key", "k31", "--to", until)] == [ids[31]]
    assert site.json("list", "--task", "proj.other", "--to", until) == []
    assert len(site.json("list", "--task", "proj.remind", "--to", until)) == len(days)
    assert "Only the first 2 are shown; see --limit and --from." in site.run("list", "--limit", "2", "--to", until)
    past = site.run("list", "--from", "2020-01-01", "--to", "2021-01-01")
    assert past == "No run is due from 2020-01-01 00:00:00+01:00 to 2021-01-01 00:00:00+01:00.\n"


def test_a_run_is_shown_by_id_and_by_key(site: LaterSite) -> None:
    run_id = site.stored(1, key="order:1")
    shown = site.run("show", run_id)
    assert shown == site.run("show", "--key", "order:1")
    assert shown.splitlines() == [
        run_id,
        f"  due        {local(AT)}",
        "  key        order:1",
        "  task       proj.remind",
        "  args       [1]",
        "  kwargs     {}",
        "  options    {}",
    ]
    assert site.json("show", run_id)["can_be_cancelled"] is True
    soon = site.stored(2, at=datetime.now(UTC) + timedelta(seconds=1.9))
    assert "(can no longer be cancelled or moved)" in site.run("show", soon)


def test_a_run_is_cancelled_once(site: LaterSite) -> None:
    by_id, by_key = site.stored(1), site.stored(2, key="order:1")
    assert site.run("cancel", by_id) == f"{by_id} cancelled\n"
    assert f"no one-off run {by_id}: it was cancelled" in site.run("cancel", by_id, code=1)
    assert site.json("cancel", "--key", "order:1")["id"] == by_key
    assert "no one-off run with key 'order:1'" in site.run("cancel", "--key", "order:1", code=1)
    assert site.json("list") == []
    soon = site.stored(3, at=datetime.now(UTC) + timedelta(seconds=1.9))
    assert "is due within two seconds; nothing was changed" in site.run("cancel", soon, code=1)
    assert "is due within two seconds; nothing was changed" in site.run("move", soon, "2031-01-01", code=1)


def test_a_run_is_moved_to_a_local_time_or_one_with_an_offset(site: LaterSite) -> None:
    first = site.stored(1, key="order:1")
    second, *words = site.run("move", "--key", "order:1", "2031-07-01T09:00").split()
    assert words == ["moved", "to", "2031-07-01", "09:00:00+02:00"]
    moved = site.json("move", second, "2031-07-01T09:00-03:00")
    assert moved == {
        "id": moved["id"],
        "was": {"id": second, "at": "2031-07-01 09:00:00+02:00"},
        "key": "order:1",
        "task": "proj.remind",
    }
    assert site.json("show", "--key", "order:1")["at"] == "2031-07-01 14:00:00+02:00"
    assert "no one-off run" in site.run("show", first, code=1)


def test_runs_are_counted(site: LaterSite) -> None:
    for n in range(3):
        site.stored(n, at=AT + timedelta(hours=n))
    assert site.run("count") == "3\n"
    period = ("--from", AT.isoformat(), "--to", (AT + timedelta(hours=2)).isoformat())
    assert site.json("count", *period)["runs"] == 3, "to the second: the period ends within the one of the last run"
    assert site.json("count", *period[:2], "--to", (AT + timedelta(hours=1, seconds=-1)).isoformat())["runs"] == 1


def test_what_is_wrong_is_named(site: LaterSite) -> None:
    wrong: list[tuple[tuple[str, ...], int, str]] = [
        (("move", "--key", "k", "tomorrow"), 1, "AT: 'tomorrow': expected a time such as 2026-12-24T18:00"),
        (("move", "--key", "k", "2031-03-30T02:30"), 1, "the clocks of Europe/Berlin skip this time"),
        (("list", "--from", "0001-01-01"), 1, "--from: '0001-01-01': expected a time"),
        (("list", "--from", "2031-01-02", "--to", "2031-01-01"), 1, "is not after --from"),
        (("count", "--to", "2020-01-01"), 1, "is not after --from"),
        (("count", "--from", "9999-12-31T00:00Z"), 1, "--to"),
        (("show",), 1, "expected either ID or --key"),
        (("cancel", "an-id", "--key", "k"), 1, "expected either ID or --key"),
        (("show", "an-id"), 1, "no one-off run an-id"),
        (("move", "a", "b", "c"), 2, "expected [ID] AT, got 3 words"),
        (("list", "--limit", "0"), 2, "0 is not in the range"),
    ]
    for words, code, message in wrong:
        assert message in site.run(*words, code=code), words


def test_a_database_without_the_table_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_lend", None)  # another test of this process may have set up Django
    path = tmp_path / "empty.sqlite3"
    site = LaterSite(f"sqlite:///{path}", lambda: sqlite3.connect(path))
    assert site.run("list", code=1) == "Error: one-off runs: OperationalError: no such table: wheelbeat_later\n"
    site.app.conf.wheelbeat_database_url = None
    assert "one-off runs need a database" in site.run("list", code=1)
