"""Transactions side by side in random order: each commit is seen by the next poll, nothing is seen before or twice."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from support.changelog.places import many

from celery_wheelbeat.errors import SourceError
from celery_wheelbeat.jobs.definitions import Finished
from django_wheelbeat.models import Monitor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.changelog.places import Place, Reader

WRITERS = 4
STEPS = 400


class Writer:
    """A connection of its own that edits monitors of its own, so that no writer waits for another."""

    def __init__(self, place: Place, own: list[int]) -> None:
        self.connection = type(place.connection)({**place.connection.settings_dict}, "default")
        self.own = own
        self.open: set[int] | None = None

    def step(self, chance: random.Random) -> set[int]:
        """Begin, edit, or end a transaction; returns what has been committed."""
        if self.open is None:
            self.connection.set_autocommit(False)
            self.open = set()
        if chance.random() < 0.6:
            job_id = chance.choice(self.own)
            self._execute("UPDATE wheelbeat_monitor SET priority = %s WHERE id = %s", chance.randrange(256), job_id)
            self._execute("UPDATE wheelbeat_monitor SET options = %s WHERE id = %s", str(chance.random()), job_id)
            self.open.add(job_id)
            return set()
        committed, self.open = self.open, None
        if chance.random() < 0.3:
            self.connection.rollback()
            committed = set()
        else:
            self.connection.commit()
        self.connection.set_autocommit(True)
        return committed

    def end(self) -> set[int]:
        """Commit what is open."""
        committed, self.open = self.open or set(), None
        self.connection.commit()
        return committed

    def _execute(self, statement: str, *parameters: Any) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, parameters)


@pytest.fixture
def writers(place: Place) -> Iterator[list[Writer]]:
    """Writers that share twenty monitors among them."""
    Monitor.objects.bulk_create(many(WRITERS * 5))
    ids = list(Monitor.objects.order_by("pk").values_list("pk", flat=True))
    writers = [Writer(place, ids[n::WRITERS]) for n in range(WRITERS)]
    yield writers
    for writer in writers:
        writer.connection.close()


@pytest.mark.promise("an-edit-is-never-lost")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("place", ["postgres", "mysql"], indirect=True)
def test_each_commit_is_seen_by_the_next_poll(place: Place, writers: list[Writer], reader: Reader, seed: int) -> None:
    """On MariaDB a change may be read again when there are more gaps than are kept apart."""
    chance = random.Random(seed)
    expected: set[int] = set()
    seen: set[int] = set()
    for _ in range(STEPS):
        expected |= chance.choice(writers).step(chance)
        if chance.random() < 0.3:
            news = reader.news().keys()
            assert expected <= news if place.vendor == "mysql" else expected == news
            seen |= news
            expected = set()
    for writer in writers:
        expected |= writer.end()
    assert expected <= reader.news().keys()
    assert len(seen) > WRITERS


@pytest.mark.promise("an-edit-is-never-lost")
def test_a_connection_may_die_at_any_statement(place: Place, reader: Reader) -> None:
    """Every call fails as SourceError, changes nothing by half, and works when it is made again."""
    one = Monitor.objects.create(name="a", task="t", interval_ms=1_000, one_off=True)
    session = reader.source._session
    store = reader.database.store
    row = {"namespace": "n", "host": "h", "pid": 1, "version": "1", "started_ms": 0, "marks": "{}", "status": "{}"}
    cursor = reader.cursor
    calls = {
        "poll": lambda: list(reader.source.poll(cursor).ids),
        "fetch": lambda: [found.id for found in reader.source.fetch([one.pk])],
        "block": lambda: [found.id for found in reader.source.block(-1, 10, cursor).rows],
        "snapshot": lambda: reader.source.snapshot().cursor == cursor,
        "report": lambda: store.report("beat", row),
        "quarantine": lambda: store.quarantine({"monitor:1": ("h", "r")}, ["monitor:2"]),
        "finish": lambda: store.finish({one.pk: Finished(2**41, 2**41)}),
    }
    execute, statements = session.rows, session.write_many
    for name, call in calls.items():
        wanted = call()
        for dies_at in range(20):
            left = [dies_at]

            def dying(run: Any, *arguments: Any, left: list[int] = left) -> Any:
                if not left[0]:
                    left[0] = -1
                    session._connected().close()
                left[0] -= 1
                return run(*arguments)

            session.rows = lambda *arguments, dying=dying: dying(execute, *arguments)
            session.write_many = lambda *arguments, dying=dying: dying(statements, *arguments)
            try:
                call()
            except SourceError:
                assert call() == wanted, name
            else:
                break
            finally:
                session.rows, session.write_many = execute, statements
        assert 0 < dies_at < 20, name
    assert place.execute("SELECT count(*) FROM wheelbeat_beat")[0][0] == 1
