"""Searches for the largest number of tasks that a scheduler keeps on a one-minute grid.

Keeping the grid means that every task is sent once in each of two consecutive minutes. Wheelbeat spreads tasks over the
minute, and each message contains its fire time: over sixty such seconds exactly as many messages as tasks must arrive,
99 % of them within ``LATE_S``. The peers fire all tasks together one minute after their start, and then each task one
minute after its last run, so they may drift. Each task is therefore measured from run to run: it must run twice more
after its first run, and 99 % of the runs must come at most ``LATE_S`` later than one minute after the previous one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from beats import Counting, Seen, weighted
from report import quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

GRID_S = 60
LATE_S = 1.0
LOOK_S = 5.0
RATE_LOOKS = 6
WARM_S = 200.0
"""Time limit until no run is late; the first message of each task takes several times as long as later ones."""
GAIN = 1.2
"""Growth of the number of tasks after a success."""
CLOSE = 0.05
"""The search ends when success and failure are this close, relatively."""
SAMPLES = 2_000


class Attempt(NamedTuple):
    """Result for one number of tasks."""

    tasks: int
    kept: bool
    could: float
    """Tasks per minute at the measured rate."""
    sent: Sequence[int]
    """Number of runs in each minute."""
    late_s: Sequence[float]
    """Lateness of the runs, or of a sample of them, ascending."""
    why: str = ""
    """Reason for the failure."""


def search(
    first: int, most: int, attempt: Callable[[int], Attempt], *, rounds: int, go_on: Callable[[], bool]
) -> list[Attempt]:
    """Try ``first``, then numbers suggested by the results, bisecting between success and failure."""
    tried: list[Attempt] = []
    tasks = min(first, most)
    while len(tried) < rounds and (not tried or go_on()):
        tried.append(attempt(tasks))
        low = max((one.tasks for one in tried if one.kept), default=0)
        high = min((one.tasks for one in tried if not one.kept), default=None)
        if high is None:
            tasks = min(most, int(low * GAIN))
        elif low == 0:
            tasks = int(min(0.85 * high, max(0.5 * high, 0.95 * tried[-1].could)))
        else:
            tasks = (low + high) // 2
        if tasks <= low or (high is not None and high - low < CLOSE * high):
            break
    return tried


def keep_as_wheel(counting: Counting, tasks: int) -> Attempt:
    """Observe a wheelbeat beat with ``tasks`` tasks, each due once a minute."""
    begun, at, counts = time.monotonic(), len(counting.seen), [counting.count]
    while True:
        time.sleep(LOOK_S)
        late, at = counting.late_since(at), len(counting.seen)
        counts.append(counting.count)
        looks = min(RATE_LOOKS, len(counts) - 1)
        could = (counts[-1] - counts[-1 - looks]) / (looks * LOOK_S) * GRID_S
        if counts[-1] >= tasks and weighted(late, 0.99) <= LATE_S:
            break
        too_slow = looks == RATE_LOOKS and counts[-1] > 1.5 * tasks and could < tasks
        if too_slow or time.monotonic() - begun > WARM_S:
            why = f"{weighted(late, 0.5):.1f} s late {time.monotonic() - begun:.0f} s after its first message"
            return Attempt(tasks, False, could, (), _spread(late), why)
    first_s, at, count = int(time.time()) + 1, len(counting.seen), counting.count
    begun = time.monotonic()
    while time.time() < first_s + 2 * GRID_S + 3 * LATE_S:
        time.sleep(LOOK_S)
        if weighted(counting.late_since(max(at, len(counting.seen) - 200)), 0.99) > 5 * LATE_S:
            break  # it has fallen behind; the result cannot change
    could = (counting.count - count) / (time.monotonic() - begun) * GRID_S
    return judge_wheel(tasks, counting.by_second, counting.seen[at:], first_s, could)


def judge_wheel(tasks: int, by_second: Mapping[int, int], seen: Sequence[Seen], first_s: int, could: float) -> Attempt:
    """Judge whether the two minutes from ``first_s`` on are complete and on time."""
    minutes = [range(first_s + minute * GRID_S, first_s + (minute + 1) * GRID_S) for minute in (0, 1)]
    sent = [sum(by_second.get(second, 0) for second in minute) for minute in minutes]
    late = sorted((one.late_s, one.count) for one in seen if first_s <= one.fire_s < minutes[1].stop)
    p99_s = weighted(late, 0.99)
    why = "" if sent == [tasks, tasks] else f"{sent[0]:,} and {sent[1]:,} runs in the two minutes"
    if p99_s > LATE_S:
        why += f"{'; ' if why else ''}p99 {p99_s:.1f} s late"
    return Attempt(tasks, not why, could, sent, _spread(late), why)


def keep_as_peer(reading: Any, tasks: int) -> Attempt:
    """Observe a beat whose ``tasks`` tasks fire together first, and then one minute after each run."""
    begun = time.monotonic()
    while len(reading.arrivals) < tasks:
        if time.monotonic() - begun > 2 * GRID_S:
            could = reading.count / (time.monotonic() - begun) * GRID_S
            return Attempt(
                tasks, False, could, (), (), f"only {len(reading.arrivals):,} had run once after two minutes"
            )
        time.sleep(0.1)
    time.sleep(2 * GRID_S + 5 * LATE_S)
    return judge_peer(tasks, {number: list(times) for number, times in reading.arrivals.items()})


def judge_peer(tasks: int, arrivals: Mapping[int, Sequence[float]]) -> Attempt:
    """Judge whether each task ran twice more, one minute after its previous run; times are in seconds."""
    steps = [sorted(times[n] - times[n - 1] - GRID_S for times in arrivals.values() if len(times) > n) for n in (1, 2)]
    late = sorted(at - times[0] - n * GRID_S for times in arrivals.values() for n, at in enumerate(times[:3]) if n)
    sent = [len(minute) for minute in steps]
    why = "" if sent == [tasks, tasks] else f"{sent[0]:,} and {sent[1]:,} tasks ran a second and a third time"
    p99_s = [quantile(minute, 0.99) if minute else 0.0 for minute in steps]
    if max(p99_s) > LATE_S:
        why += f"{'; ' if why else ''}p99 of what a run is later than a minute after the one before: {max(p99_s):.1f} s"
    mean_s = [sum(minute) / len(minute) + GRID_S if minute else 0.0 for minute in steps]
    could = tasks * GRID_S / max(GRID_S, *mean_s) if all(sent) else float(min(sent))
    return Attempt(tasks, not why, could, sent, late, why)


def _spread(late: Sequence[tuple[float, int]]) -> list[float]:
    """Return ``SAMPLES`` lateness values representative of all runs."""
    runs = sum(count for _, count in late)
    if not runs:
        return []
    found, passed = [], 0
    for late_s, count in late:
        passed += count
        while len(found) < passed * SAMPLES // runs:
            found.append(late_s)
    return found
