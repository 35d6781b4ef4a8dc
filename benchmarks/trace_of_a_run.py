"""The way of one run through the code: ``python benchmarks/trace_of_a_run.py [--calls STEP]``, by hand.

One job on a private Redis fires once a minute. The scheduling thread is traced (``sys.setprofile``) while a warm run
passes through the steps of a tick: its envelope and its parts are cached, and nothing else is due. A step is traced
``ROUNDS`` times, and the trace with the fewest calls counts, so a periodic check that falls into one does not.

Columns, for functions of the package only: *calls*; *files* and *functions* called; *moves* from one file to another,
by a call or by a return; *rooms* and *sub-rooms*: the moves that change the folder below ``celery_wheelbeat``, or the
innermost folder; *hub*: the moves into ``dispatch/fast_lane/lane.py``, and the calls among them.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from services import PrivateRedis
from support.lanes.bench import FastBench, numbered
from support.lanes.fast_lane import make_app

import celery_wheelbeat

if TYPE_CHECKING:
    from types import FrameType

ROUNDS = 5
PACKAGE = Path(celery_wheelbeat.__file__).parent
HUB = "dispatch/fast_lane/lane.py"
STEPS = ("advance", "refresh", "enqueue", "submit_due", "collect_outcomes")
OUTSIDE = "(caller)"


class Place(NamedTuple):
    """A function of the package."""

    file: str
    """Path below the package."""
    function: str

    @property
    def room(self) -> str:
        """Folder below the package."""
        return self.file.partition("/")[0]

    @property
    def sub_room(self) -> str:
        """Innermost folder."""
        return self.file.rpartition("/")[0]


class Trace:
    """Calls and moves of one step, while used as a context manager."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, Place]] = []
        """Depth and function of each call, in order."""
        self.moves: list[tuple[Place, Place]] = []
        """(from, to) for each call and each return that changes the file."""
        self.hub_calls = 0
        self._stack = [Place(OUTSIDE, "")]
        self._places: dict[Any, Place | None] = {}

    def __enter__(self) -> Self:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *exc_info: object) -> None:
        sys.setprofile(None)

    def row(self) -> dict[str, int]:
        """Return the figures of the table's columns."""
        inside = [(left, to) for left, to in self.moves if OUTSIDE not in (left.file, to.file)]
        return {
            "calls": len(self.calls),
            "files": len({place.file for _, place in self.calls}),
            "functions": len({place for _, place in self.calls}),
            "moves": len(inside),
            "rooms": sum(left.room != to.room for left, to in inside),
            "sub-rooms": sum(left.sub_room != to.sub_room for left, to in inside),
            "hub": sum(to.file == HUB for _, to in self.moves),
            "hub calls": self.hub_calls,
        }

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if event not in ("call", "return"):
            return
        place = self._place_of(frame)
        if place is None:
            return
        if event == "call":
            before = self._stack[-1]
            self.calls.append((len(self._stack), place))
            self._stack.append(place)
            self.hub_calls += place.file == HUB != before.file
            self._move(before, place)
        else:
            self._stack.pop()
            self._move(place, self._stack[-1])

    def _move(self, left: Place, to: Place) -> None:
        if left.file != to.file:
            self.moves.append((left, to))

    def _place_of(self, frame: FrameType) -> Place | None:
        code = frame.f_code
        if code not in self._places:
            path = Path(code.co_filename)
            inside = path.is_relative_to(PACKAGE)
            self._places[code] = Place(path.relative_to(PACKAGE).as_posix(), code.co_qualname) if inside else None
        return self._places[code]


def a_run(bench: FastBench) -> dict[str, Trace]:
    """Let the job fire once, and return the trace of each step."""
    traces = {step: Trace() for step in STEPS}
    due: list[Any] = []
    while not due:
        bench.now_ms += 1000
        traces["advance"] = Trace()
        with traces["advance"]:
            due = bench.engine.advance(bench.now_ms)
    now_s = time.monotonic()
    with traces["refresh"]:
        bench.lanes.refresh(now_s)
    with traces["enqueue"]:
        bench.lanes.enqueue(due)
    with traces["submit_due"]:
        bench.lanes.submit_due(now_s)
    sent = bench.ledger.sent
    deadline_s = now_s + 60
    while bench.ledger.sent == sent:
        bench.beat.wake.wait(0.005)
        traces["collect_outcomes"] = Trace()
        with traces["collect_outcomes"]:
            bench.lanes.collect_outcomes(time.monotonic())
        if time.monotonic() > deadline_s:
            raise SystemExit(f"the run was not confirmed: {bench.lanes.last_error}")
    return traces


def warm(bench: FastBench) -> None:
    """Let the job fire until its envelope and its parts are cached."""
    bench.load(numbered(1, bench.route()))
    for _ in range(3):
        bench.pass_minutes()
        bench.drain()


def traced(url: str) -> dict[str, Trace]:
    """Trace a run with the Redis at ``url``; returns the trace of each step."""
    with FastBench(make_app(url)) as bench:
        warm(bench)
        bench.fast.canary.due_s = math.inf  # a comparison a second: on a busy machine it would fall into each round
        rounds = [a_run(bench) for _ in range(ROUNDS)]
    return {step: min((traces[step] for traces in rounds), key=lambda trace: len(trace.calls)) for step in STEPS}


def main() -> None:
    """Trace and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", choices=STEPS, help="also list the calls of a step")
    given = parser.parse_args()
    with PrivateRedis() as server:
        traces = traced(server.url)
    heads = list(traces["advance"].row())
    print("| step | " + " | ".join(heads) + " |")
    print("|---|" + "--:|" * len(heads))
    for step, trace in traces.items():
        print(f"| {step} | " + " | ".join(f"{figure:,}" for figure in trace.row().values()) + " |")
    if given.calls:
        for depth, place in traces[given.calls].calls:
            print(f"{'  ' * depth}{place.file.removesuffix('.py')}  {place.function}")


if __name__ == "__main__":
    main()
