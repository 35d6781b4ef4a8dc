"""What lies ahead in the store, for people and metrics: counts of periods, and rows by task.

Every look is bounded, however many rows there are: a count stops at a limit and is then estimated from the planner's
statistics, and a search looks through a number of rows. Never: a write.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_wheelbeat.later.ring import parts_between, table_of
from celery_wheelbeat.later.writers import IN_FORCE_MS, Found, found_in
from celery_wheelbeat.runtime.statements import read_statements

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from celery_wheelbeat.later.connections import Caller

COUNTED_MAX = 1_000
"""Rows of a period that are counted."""
SEARCHED_MAX = 10_000
"""Rows that one search by task looks through."""


class Period(NamedTuple):
    """The seconds ``from_s`` to ``until_s`` (exclusive)."""

    from_s: int
    until_s: int


class Precision(Enum):
    """How a count was made."""

    EXACT = "exact"
    ESTIMATE = "estimate"
    AT_LEAST = "at least"


class Count(NamedTuple):
    """Runs of a period."""

    runs: int
    precision: Precision


class Search(NamedTuple):
    """Which rows are looked for, from second ``from_s`` on."""

    from_s: int
    until_s: int
    limit: int
    """Most rows that are returned."""
    task: str | None = None
    """None: every task."""


class SearchedRows(NamedTuple):
    """Rows by second, sent ones included."""

    rows: Sequence[Found]
    go_on_s: int | None
    """Second from which a further search finds the rest; None if there is none. Never the second it began with."""


def counts(caller: Caller, periods: Sequence[Period], most: int | None = None) -> list[Count]:
    """Return how many runs lie in each of ``periods``, which ascend; up to three statements on PostgreSQL, else one.

    ``most``: rows that are counted in each (default: ``COUNTED_MAX``).
    """
    most = COUNTED_MAX if most is None else most
    if not periods:
        return []
    parts = parts_between(periods[0].from_s, periods[-1].until_s)
    bounds: Mapping[str, Any] = {"from_s": [one.from_s for one in periods], "until_s": [one.until_s for one in periods]}
    if caller.vendor == "sqlite":
        bounds = {name: json.dumps(values) for name, values in bounds.items()}
    elif caller.vendor == "mysql":
        bounds = {"periods": json.dumps(periods), "parts": parts}
    statement = _statement(caller, "bounded_counts", parts)
    found = [int(row[0]) for row in caller.rows(statement, {**bounds, "limit": most + 1})]
    full = [number for number, runs in enumerate(found) if runs > most]
    precision = Precision.ESTIMATE if caller.vendor == "postgresql" else Precision.AT_LEAST
    estimates = dict(zip(full, _estimates(caller, [periods[number] for number in full]), strict=True))
    return [
        Count(max(most, estimates[number]), precision) if number in estimates else Count(runs, Precision.EXACT)
        for number, runs in enumerate(found)
    ]


def search(caller: Caller, wanted: Search) -> SearchedRows:
    """Return the first rows that are ``wanted``, of at most ``SEARCHED_MAX`` that are looked through."""
    statement = _statement(caller, "search", parts_between(wanted.from_s, wanted.until_s))
    searched = wanted.limit if wanted.task is None else SEARCHED_MAX
    given = {**wanted._asdict(), "in_force_ms": IN_FORCE_MS, "searched": searched}
    if caller.vendor == "mysql":
        given["parts"] = parts_between(wanted.from_s, wanted.until_s)
    rows = caller.rows(statement, given)
    found = [found_in([*row[:-3], row[-1]]) for row in rows if row[-1] is not None]
    if not rows or (len(found) < wanted.limit and rows[-1][-2] < searched):
        return SearchedRows(found, None)
    return SearchedRows(found, max(int(rows[-1][-3]), wanted.from_s + 1))


def _statement(caller: Caller, name: str, parts: Sequence[int]) -> str:
    statements = read_statements("celery_wheelbeat.later", f"sql/{caller.vendor}.sql")
    if "{parts}" not in statements[name]:
        return statements[name]
    union = " UNION ALL ".join(statements["all_of_part"].replace("{table}", table_of(part)) for part in parts)
    return statements[name].replace("{parts}", union)


def _estimates(caller: Caller, periods: Sequence[Period]) -> list[int]:
    """Return the planner's estimate for each of ``periods``; the statement is planned and not executed."""
    if caller.vendor != "postgresql" or not periods:
        return [0] * len(periods)
    statements = read_statements("celery_wheelbeat.later", f"sql/{caller.vendor}.sql")
    caller.rows(statements["no_parallel_plan"], {})
    reads = [
        (number, statements["read_of_part"].replace("{table}", table_of(part)).format(**period._asdict()))
        for number, period in enumerate(periods)
        for part in parts_between(*period)
    ]
    ((plan,),) = caller.rows(f"{statements['explain']} {' UNION ALL '.join(text for _, text in reads)}", {})
    top = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
    totals = [0] * len(periods)
    for (number, _), rows in zip(reads, _rows_of_reads(top), strict=True):
        totals[number] += rows
    return totals


def _rows_of_reads(top: Mapping[str, Any]) -> Iterator[int]:
    """Yield the estimated rows of each part of the UNION ALL, which stand in the order of the statement."""
    yield from (int(node["Plan Rows"]) for node in (top["Plans"] if top["Node Type"] == "Append" else [top]))
