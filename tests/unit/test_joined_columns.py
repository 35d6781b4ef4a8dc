"""The texts that SQLite and MariaDB join: cut into as many pieces of each kind, or not used at all."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from celery_wheelbeat.jobs.compile import compile_rows
from celery_wheelbeat.jobs.compile_columns import Shapes
from celery_wheelbeat.schedules.cron import CronTable
from celery_wheelbeat.sources.databases.joined_columns import _Joined

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
