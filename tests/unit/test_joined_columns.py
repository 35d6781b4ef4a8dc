"""The texts that SQLite and MariaDB join: cut into as many pieces of each kind, or not used at all."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.changelog.table import PLAIN

from celery_wheelbeat.jobs.compile import compile_rows
from celery_wheelbeat.jobs.compile_columns import Shape, ShapeKey, Shapes, _Table
from celery_wheelbeat.schedules.cron import CronTable
from celery_wheelbeat.sources.databases.joined_columns import _Joined

if TYPE_CHECKING:
    from collections.abc import Mapping

SHAPES = Shapes(partial(compile_rows, crons=CronTable()))
WHOLE = ("7 60000 1 9 0 2 ", "s\x1ft\x1f", "a\x1fü\x1f", "[]\x1f[1]\x1f", "{}\x1f{}\x1f")


def test_joined_texts_are_cut_into_columns() -> None:
    joined = _Joined.of(*WHOLE)
    columns = joined.columns(SHAPES)
    assert (columns.ids.tolist(), columns.interval_ms.tolist()) == ([7, 9], [60_000, 0])
    assert columns.effective_from_ms.tolist() == [1, 2]
    assert (columns.names, columns.name_lengths.tolist()) == ("aü".encode(), [1, 2])
    assert (columns.payload, columns.lengths.tolist()) == (b"[[], {}][[1], {}]", [8, 9])
    assert columns.args_lengths.tolist() == [2, 3]
    assert len(np.unique(columns.shape)) == 2
    assert columns.whole()


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0, "7 60000 1 9 0 2"),  # cut by the server, perhaps in the middle of a number
        (0, "7 60000 1 9 0 "),
        (0, "7 60000 1 "),
        (0, "9 60000 1 7 0 2 "),
        (0, None),
        (1, "s\x1ft"),
        (2, "a\x1f"),
        (2, "a\x1fb\x1fü\x1f"),
        (3, "[]\x1f[1"),
        (4, "{}\x1f{}"),
        (4, None),
    ],
)
def test_what_does_not_come_to_the_same_number_of_each_is_not_used(at: int, text: str | None) -> None:
    texts = [*WHOLE[:at], text, *WHOLE[at + 1 :]]
    joined = _Joined.of(*texts)
    assert len(joined.ids) == len(joined.names) == len(joined.columns(SHAPES).ids) == 0


def test_no_monitors_are_no_columns() -> None:
    assert len(_Joined.of(None, None, None, None, None).prints()) == 0


def test_a_shape_counts_as_known_when_its_rows_can_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another reader of the load may look at any moment; it does not learn a shape that is known."""
    shapes = Shapes(partial(compile_rows, crons=CronTable()))
    build, looks = _Table.of, []

    def look_while_building(known: Mapping[int, tuple[int, Shape | None]]) -> _Table:
        table = build(known)
        looks.append([number for number in shapes._known if not shapes._table.holds(np.array([number]))[0]])
        return table

    monkeypatch.setattr(_Table, "of", look_while_building)
    shapes.learn({ShapeKey(5, 0): PLAIN})
    shapes.learn({ShapeKey(6, 0): PLAIN, ShapeKey(5, 1): PLAIN})
    assert looks == [[], []]
    assert shapes._table.holds(np.array([5, 6, 7])).tolist() == [True, True, False]
    assert shapes._known[5][0] == 0, "the first key with a number is kept"
