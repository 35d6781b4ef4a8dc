"""Where runs in flight are kept: few containers, so that few places can disagree about a run.

A container is an attribute annotated as ``dict``, ``list``, ``set`` or ``deque`` of a class in ``dispatch``. It holds
runs in flight if the annotation names a run, a lease, its token or a batch. Mailboxes, which pass values between
threads, and queues of runs that wait are none.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import celery_wheelbeat.dispatch

ROOM = Path(celery_wheelbeat.dispatch.__file__).parent
CONTAINERS = {"dict", "list", "set", "deque"}
IN_FLIGHT = {"RunLease", "PendingRun", "PendingRuns", "Token", "_Retry", "Run", "Batch", "_OnTheWay"}
WAITING = {"Backlog._offered", "FairQueue._added"}


def containers() -> dict[str, set[str]]:
    """Class → its attributes that hold runs in flight."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in ROOM.rglob("*.py"):
        for one in ast.walk(ast.parse(path.read_text())):
            if isinstance(one, ast.ClassDef):
                for attribute, names in annotated_attributes(one):
                    if names & CONTAINERS and names & IN_FLIGHT and f"{one.name}.{attribute}" not in WAITING:
                        found[one.name].add(attribute)
    return found


def annotated_attributes(of: ast.ClassDef) -> list[tuple[str, set[str]]]:
    """(attribute, names in its annotation) for every ``self.attribute: annotation``."""
    return [
        (node.target.attr, {name.id for name in ast.walk(node.annotation) if isinstance(name, ast.Name)})
        for node in ast.walk(of)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute)
    ]


def test_runs_in_flight_are_in_ten_containers_of_five_classes_at_most() -> None:
    found = containers()
    assert {"_leases", "_parked"} <= found["RunLeases"], "the test sees what it counts"
    assert len(found) <= 5, dict(found)
    assert sum(map(len, found.values())) <= 10, dict(found)
