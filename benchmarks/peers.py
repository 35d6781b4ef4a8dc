"""Compares Celery's own beat, django-celery-beat and redbeat with wheelbeat: ``python benchmarks/peers.py [--full]``.

Runs real ``celery beat`` processes one after the other, on one private Redis and one private PostgreSQL. A run with few
tasks measures start, drift, lateness and idle cost. For the peers the cost of a run grows with the number of tasks, so
the rate is measured with about as many tasks as could keep a one-minute grid, all due faster than they can be sent.
Each result gives the next number to try; the last two are interpolated to an estimate.

``--full`` also searches for the largest number of tasks with which the best peer and wheelbeat keep a real one-minute
grid (defined in ``grids.py``).
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from typing import NamedTuple

import psycopg
from beats import ENVELOPE_BYTES, commands_of, redis_cpu_s
from contenders import CONTENDERS, OURS, Case, Contender, Servers, started
from grids import Attempt, keep_as_peer, keep_as_wheel, search
from report import Report, at_least, cpu_s, quantile, resident_bytes
from services import PrivatePostgres, PrivateRedis
from wheel_table import most_tasks, resize


class Tried(NamedTuple):
    """A number of tasks, and the number that would keep the grid at the rate measured with it."""

    tasks: int
    can_keep: float


GRID_S = 60
FEW, FEW_S = 200, 2
"""Number and interval of the tasks of the run that measures start and drift."""
BURST_S = 2.0
"""Warm-up that is not counted: all tasks are due together at first."""
WARM_S = 60.0
ROUNDS = 4
"""Maximum number of tries on a real grid."""
FIRST_OF_RATE = 0.5
"""Share of wheelbeat's rate to try first: in the first minute every message is a first one, which costs more."""
PEER_UNTIL_S, WHEEL_UNTIL_S = 500.0, 1_000.0
"""Run time after which no further number is tried."""


def transactions(server: PrivatePostgres) -> int:
    """Return the number of transactions that the beats have committed so far."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_clear_snapshot()")
        found = connection.execute(
            "SELECT sum(xact_commit) FROM pg_stat_database WHERE datname LIKE 'bench%'"
        ).fetchall()
    return int(found[0][0] or 0)


def drift_s(arrivals: dict[int, list[float]], interval_s: int) -> float | None:
    """Return the mean delay of a run after one interval since the previous run; None with too few runs."""
    drifts = [(times[-1] - times[0]) / (len(times) - 1) - interval_s for times in arrivals.values() if len(times) > 2]
    return sum(drifts) / len(drifts) if drifts else None


def off_grid_s(arrivals: dict[int, list[float]], interval_s: int) -> list[float]:
    """Return the lateness of each run on the grid of its task's first run, ascending."""
    return sorted(
        at - times[0] - number * interval_s for times in arrivals.values() for number, at in enumerate(times) if number
    )


def few(report: Report, contender: Contender, servers: Servers, measure_s: float) -> None:
    """Measure start, drift, lateness and idle cost."""
    name, note = contender.name, f"{FEW} tasks every {FEW_S} s, {measure_s:.0f} s"
    with started(Case(contender, FEW, FEW_S), servers, counting=False) as run:
        time.sleep(BURST_S)
        run.reader.arrivals = {}
        commands, at, queries, cpu = (
            commands_of(run.client),
            time.monotonic(),
            transactions(servers.database),
            cpu_s(run.pid),
        )
        time.sleep(measure_s)
        took_s = time.monotonic() - at
        arrivals = {number: [*times] for number, times in run.reader.arrivals.items()}
        cpu, queries = cpu_s(run.pid) - cpu, transactions(servers.database) - queries
        commands = commands_of(run.client) - commands
        resident = resident_bytes(run.pid)
    runs = max(1, sum(map(len, arrivals.values())))
    for own in ("rpop", "info"):
        del commands[own]
    report.add(f"{name}: start to first message", run.startup_s, "s", note=note, limit="imports of Celery and Django")
    drift, late = drift_s(arrivals, FEW_S), off_grid_s(arrivals, FEW_S)
    if drift is not None:
        why = "the grid is computed" if name == OURS else "the next run counts from the one before"
        report.add(f"{name}: drift of each run", drift * 1000, "ms", note=note, limit=why)
        what = f"{name}: lateness on the grid of each task's first run"
        report.add(f"{what}, median", quantile(late, 0.5) * 1000, "ms", note=note)
        report.add(f"{what}, p99", quantile(late, 0.99) * 1000, "ms", note=f"{note}; {len(late):,} runs", limit=why)
        report.plot_distribution(f"{what}, in ms ({note})", [each * 1000 for each in late])
    report.add(f"{name}: CPU", cpu / took_s * 100, "% of a core", note=note)
    report.add(f"{name}: resident memory", resident / 1e6, "MB", note=note)
    report.add(f"{name}: database transactions", queries / took_s, "1/s", note=f"{note}; committed in PostgreSQL")
    often = ", ".join(f"{word} {count / runs:.2g}" for word, count in commands.most_common(4))
    report.add(f"{name}: Redis commands for each run", commands.total() / runs, "", note=f"{note}; {often}")


def sustained(report: Report, case: Case, servers: Servers, measure_s: float) -> float:
    """Return runs per second when more are due than can be sent."""
    ours = case.contender.name == OURS
    with started(case, servers, counting=ours) as run:
        begun = time.monotonic()
        time.sleep(BURST_S)
        while ours and run.reader.count < case.tasks and time.monotonic() - begun < WARM_S:
            time.sleep(0.05)  # the first message of each task takes several times as long as later ones
        count, cpu, at = run.reader.count, cpu_s(run.pid), time.monotonic()
        time.sleep(measure_s)
        took_s = time.monotonic() - at
        per_s, share = (run.reader.count - count) / took_s, (cpu_s(run.pid) - cpu) / took_s
        resident = resident_bytes(run.pid)
    each_us = share / max(1.0, per_s) * 1e6
    report.add(
        f"{case.contender.name}, {case.tasks:,} tasks every {case.interval_s} s: sustained",
        per_s,
        "runs/s",
        note=f"start {run.startup_s:.1f} s, {resident / 1e6:.0f} MB, {each_us:,.0f} µs of CPU a run",
        limit=f"the beat has {share * 100:.0f} % of a core",
    )
    return per_s


def by_rate(report: Report, contender: Contender, servers: Servers, measure_s: float, rounds: int) -> float:
    """Return an estimate of how many tasks keep the grid; each measured rate gives the next number."""
    tasks, tried = contender.tasks, list[Tried]()
    for _ in range(rounds):
        per_s = sustained(report, Case(contender, tasks, contender.interval_s), servers, measure_s)
        tried.append(Tried(tasks, GRID_S * per_s))
        if contender.name == OURS:
            break  # its cost of a run does not depend on the number of tasks
        tasks = max(100, int(crossing(tried)))
    found = crossing(tried)
    report.add(f"{contender.name}: tasks that would keep a grid of {GRID_S} s, by its rate", found, "tasks")
    return found


def crossing(tried: list[Tried]) -> float:
    """Return the number of tasks interpolated between the largest that keeps the grid and the smallest that fails."""
    enough = max((one for one in tried if one.can_keep >= one.tasks), default=None)
    too_many = min((one for one in tried if one.can_keep < one.tasks), default=None)
    if enough is None or too_many is None or enough.tasks >= too_many.tasks:
        return tried[-1].can_keep
    above, below = math.log(enough.can_keep / enough.tasks), math.log(too_many.tasks / max(1.0, too_many.can_keep))
    share = above / (above + below)
    return float(enough.tasks * (too_many.tasks / enough.tasks) ** share)


def on_a_grid(report: Report, contender: Contender, servers: Servers, by_its_rate: float, until_s: float) -> float:
    """Search for the largest number of tasks that keeps a real one-minute grid.

    Starts no try that would end after ``until_s``. For a peer without success its best rate is reported.
    """
    ours, database, took_s = contender.name == OURS, "", 0.0

    def attempt(tasks: int) -> Attempt:
        nonlocal database, took_s
        begun = time.monotonic()
        case = Case(contender, tasks, GRID_S)
        if database:
            resize(servers.database.database_url(database), tasks, GRID_S)
        with started(case, servers, counting=ours, database=database) as run:
            database = run.database if ours else ""
            cpu, redis_cpu, at = cpu_s(run.pid), redis_cpu_s(run.client), time.monotonic()
            found = keep_as_wheel(run.reader, tasks) if ours else keep_as_peer(run.reader, tasks)
            took_s = time.monotonic() - at
            shares = (cpu_s(run.pid) - cpu) / took_s * 100, (redis_cpu_s(run.client) - redis_cpu) / took_s * 100
            what = f"{contender.name}, {tasks:,} tasks on a grid of {GRID_S} s"
            note = f"start {run.startup_s:.1f} s, {resident_bytes(run.pid) / 1e6:,.0f} MB; {found.why or 'kept'}"
            limit = f"the beat had {shares[0]:.0f} % of a core, Redis {shares[1]:.0f} %"
            report.add(
                f"{what}: sent in the poorer of two minutes", min(found.sent, default=0), "runs", note=note, limit=limit
            )
        if found.late_s:
            grid = "" if ours else " on the grid of each task's first run"
            for word, share in (("median", 0.5), ("p99", 0.99)):
                report.add(f"{what}: lateness in the queue{grid}, {word}", quantile(found.late_s, share) * 1000, "ms")
            report.plot_distribution(f"{what}: lateness{grid} in ms", [each * 1000 for each in found.late_s])
        took_s = time.monotonic() - begun
        return found

    first = int(by_its_rate * (FIRST_OF_RATE if ours else 0.95))
    most = most_tasks() if ours else 10 * first
    tried = search(first, most, attempt, rounds=ROUNDS, go_on=lambda: time.monotonic() + took_s < until_s)
    kept = max((one.tasks for one in tried if one.kept), default=0)
    failed = min((one.tasks for one in tried if not one.kept), default=0)
    limit = f"{failed:,} are too many" if failed else f"no larger number was tried; at most {most:,} would be"
    note = "each task sent in each of two minutes, in time (see grids.py)"
    report.add(f"{contender.name}: tasks that keep a grid of {GRID_S} s", kept, "tasks", note=note, limit=limit)
    if kept or ours:
        return kept
    could = max(one.could for one in tried)
    what = f"{contender.name}: tasks that it would keep at the rate it had on that grid"
    report.add(what, could, "tasks", note="none of the numbers tried was kept; this one counts for it")
    return could


def main() -> None:
    """Measure every scheduler."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--only", help="part of a name; writes no results")
    given = parser.parse_args()
    measure_s, rounds, begun = *((10, 3) if given.full else (4, 2)), time.monotonic()
    report = Report("peers", full=given.full, wheelbeat_envelope_bytes=ENVELOPE_BYTES)
    most: dict[str, float] = {}
    with PrivateRedis() as broker, PrivatePostgres(max_wal_size="8GB") as server:
        servers = Servers(server, broker)
        chosen = [one for one in CONTENDERS if not given.only or given.only in one.name]
        for contender in chosen:
            few(report, contender, servers, 20 if given.full else 4 * FEW_S)
            most[contender.name] = by_rate(report, contender, servers, measure_s, rounds)
        best = max((name for name in most if name != OURS), key=most.__getitem__, default="")
        for contender in chosen if given.full else ():
            if contender.name in (best, OURS):
                until_s = begun + (WHEEL_UNTIL_S if contender.name == OURS else PEER_UNTIL_S)
                most[contender.name] = on_a_grid(report, contender, servers, most[contender.name], until_s)
    if best and OURS in most:
        how = "both on a real grid" if given.full else "both by their rates"
        report.add(
            "wheelbeat against the best peer",
            most[OURS] / max(1.0, most[best]),
            "×",
            target=at_least(50),
            note=f"{best}; {how}",
        )
    if not given.only:
        report.write()


if __name__ == "__main__":
    sys.exit(main())
