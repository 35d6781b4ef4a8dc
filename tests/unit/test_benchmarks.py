"""What the benchmarks conclude from what they see: who keeps a grid, how many do, which target is missed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
START_S = 1_000


@pytest.fixture(scope="module")
def modules() -> Iterator[Any]:
    """Return what imports a module of ``benchmarks``."""
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def grids(modules: Any) -> ModuleType:
    return modules("grids")


@pytest.mark.parametrize(
    ("limit", "tried", "kept"),
    [
        (1_000, [800, 960, 1_152, 1_056], 960),
        (500, [800, 475, 637, 556], 475),
        (10_000, [800, 960, 1_152, 1_382], 1_382),
        (100, [800, 400, 200, 100], 100),
    ],
)
def test_the_search_goes_where_the_last_attempts_point(
    grids: ModuleType, limit: int, tried: list[int], kept: int
) -> None:
    def attempt(tasks: int) -> Any:
        return grids.Attempt(tasks, tasks <= limit, float(limit), (), ())

    found = grids.search(800, 5_000, attempt, rounds=4, go_on=lambda: True)
    assert [one.tasks for one in found] == tried
    assert max(one.tasks for one in found if one.kept) == kept


def test_the_search_ends_at_what_there_is_room_for_and_in_time(grids: ModuleType) -> None:
    def attempt(tasks: int) -> Any:
        return grids.Attempt(tasks, True, 9e9, (), ())

    assert [one.tasks for one in grids.search(800, 900, attempt, rounds=9, go_on=lambda: True)] == [800, 900]
    assert [one.tasks for one in grids.search(800, 5_000, attempt, rounds=9, go_on=lambda: False)] == [800]


def test_all_runs_of_both_minutes_have_to_arrive_in_time(grids: ModuleType) -> None:
    by_second = dict.fromkeys(range(START_S - 5, START_S + 130), 10)
    seen = [grids.Seen(second, 10, 0.2) for second in by_second]

    def judged(by_second: dict[int, int], seen: list[Any]) -> Any:
        return grids.judge_wheel(600, by_second, seen, START_S, 600.0)

    assert judged(by_second, seen).kept
    assert judged({**by_second, START_S + 70: 9}, seen).why == "600 and 599 runs in the two minutes"
    assert not judged({**by_second, START_S + 70: 11}, seen).kept, "a run twice is not kept either"
    late = [one._replace(late_s=1.5) if one.fire_s in (START_S, START_S + 1) else one for one in seen]
    assert judged(by_second, late).why == "p99 1.5 s late"
    assert judged(by_second, [one._replace(late_s=9.0) if one.fire_s == START_S else one for one in seen]).kept


@pytest.mark.parametrize(
    ("times", "kept", "why"),
    [
        ((0.0, 60.2, 120.4), True, ""),
        ((0.0, 61.2, 122.4), False, "p99 of what a run is later than a minute after the one before: 1.2 s"),
        ((0.0, 60.0), False, "100 and 0 tasks ran a second and a third time"),
    ],
)
def test_each_task_of_a_peer_runs_twice_more_a_minute_apart(
    grids: ModuleType, times: tuple[float, ...], kept: bool, why: str
) -> None:
    found = grids.judge_peer(100, {task: [task / 10 + at for at in times] for task in range(100)})
    assert (found.kept, found.why) == (kept, why)


def test_lateness_counts_by_runs(modules: Any) -> None:
    beats = modules("beats")
    late = [(0.1, 98), (0.5, 1), (7.0, 1)]
    assert [beats.weighted(late, share) for share in (0.5, 0.99, 1.0)] == [0.1, 0.5, 7.0]
    assert beats.weighted([], 0.99) == 0.0


def test_the_page_says_by_how_much_a_target_is_missed(modules: Any) -> None:
    page = modules("page")
    figure = {"what": "a tick", "value": 60.0, "unit": "ms", "floor": None, "note": "n", "limit": "l"}
    most = {"value": 50.0, "at_least": False}
    assert page.row({**figure, "target": most}) == "| a tick | 60 ms | ≤ 50 ms, missed: 1.20 of it |  |  | n | l |"
    assert page.row({**figure, "value": 40.0, "target": most}) == "| a tick | 40 ms | ≤ 50 ms |  |  | n | l |"
    least = {"value": 100.0, "at_least": True}
    assert "| ≥ 100 ms, missed: 0.60 of it |" in page.row({**figure, "target": least})
    assert page.row({key: figure[key] for key in ("what", "value", "unit", "floor", "note")}).endswith("| n |  |")
