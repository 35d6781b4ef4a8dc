"""Which stored rows can be sent. A call of the application and the read of a beat ask the same questions.

A row may have been written by any SQL client, so each is checked alone: whatever is wrong with one, or raises, affects
only that one. Never: I/O, a clock.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_wheelbeat.errors import InvalidMonitor
from celery_wheelbeat.jobs import names
from celery_wheelbeat.jobs.definitions import Route
from celery_wheelbeat.jobs.json_fields import parse_list, parse_object
from celery_wheelbeat.jobs.send_options import MAX_TEXT, SendOptions, compose
from celery_wheelbeat.jobs.validation import Addressed, allowance_problems
from celery_wheelbeat.later.canvas import taken_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_wheelbeat.jobs.rows import Limits

MAX_TASK = 255
"""Characters of the name of a task."""
OLDEST_S = 400 * 86_400
"""A row whose second passed longer ago than this is refused: a beat would have to remember that second."""
ROW_BYTES = 1_000
"""Memory of a run in the wheel beside its texts."""
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_COLUMNS = ("queue", "exchange", "routing_key", "priority")


class LaterRow(NamedTuple):
    """A row as a beat reads it. SQLite stores any value in any column."""

    second: int
    id: str
    at_ms: int
    task: str
    """Empty for a tombstone: the run with this id was cancelled."""
    args: str | None
    """None if the texts of the row are too large to be read."""
    kwargs: str | None
    options: str | None


class DueRun(NamedTuple):
    """A row that can be sent."""

    run_id: str
    second: int
    fire_ms: int
    route: Route
    payload: bytes

    @property
    def size(self) -> int:
        """Return about how many bytes of memory the run needs."""
        return ROW_BYTES + len(self.payload) + len(self.route.options)


class Checked(NamedTuple):
    """The rows of one read."""

    runs: Sequence[DueRun]
    cancelled: Sequence[str]
    """Task ids."""
    problems: Sequence[tuple[str, str]]
    """(task id, reason) of every row that cannot be sent."""


def checked(rows: Sequence[LaterRow], now_s: int, limits: Limits) -> Checked:
    """Check each of ``rows``; never raises. ``now_s``: the database's clock."""
    runs: dict[str, DueRun] = {}
    cancelled: list[str] = []
    problems: list[tuple[str, str]] = []
    for row in rows:
        try:
            if row.task == "":
                cancelled.append(row.id)
                continue
            run = _due_run(row, now_s, limits)
            if runs.setdefault(run.run_id, run) is not run:
                problems.append((run.run_id, "id: another row that was read with this one has the same"))
        except Exception as error:
            problems.append((f"{row.id!s:.40}", f"{error!s:.500}"))
    return Checked(list(runs.values()), cancelled, problems)


def _due_run(row: LaterRow, now_s: int, limits: Limits) -> DueRun:
    second, at_ms = row.second, row.at_ms
    if type(second) is not int or type(at_ms) is not int:
        raise InvalidMonitor("at_ms", f"{at_ms!r:.40} in second {second!r:.40}: expected whole numbers")
    if at_ms // 1000 > second or second < now_s - OLDEST_S:
        raise InvalidMonitor("second", f"{second}: a run that is due at {at_ms} ms does not lie there")
    if not _UUID.fullmatch(row.id):
        raise InvalidMonitor("id", "expected a UUID in lower case")
    if row.id[14] == str(names.RUN_ID_VERSION) and (problem := names.id_problem(row.id)):
        raise InvalidMonitor("id", problem)
    if row.args is None or row.kwargs is None or row.options is None:
        raise InvalidMonitor("args", f"too large: at most {limits.max_payload_bytes:,} bytes are possible")
    sending = sending_of(row.task, row.options, limits)
    if sending.problems:
        raise InvalidMonitor("route", "; ".join(sending.problems))
    parse_list("args", row.args, limits.decode)
    parse_object("kwargs", row.kwargs, limits.decode)
    payload = f"[{row.args.strip() or '[]'}, {row.kwargs.strip() or '{}'}]".encode()
    if len(payload) > limits.max_payload_bytes + 4:
        raise InvalidMonitor("args", f"{len(payload):,} bytes: at most {limits.max_payload_bytes:,} are possible")
    # A run that was due when it was inserted fires in the second that it was given.
    return DueRun(row.id, second, max(at_ms, second * 1000), Route(row.task, sending.text), payload)


class Sending(NamedTuple):
    """How one run is sent."""

    text: str
    """Options of ``apply_async`` as canonical JSON text, whatever form the row has."""
    problems: Sequence[str]
    """What is wrong with the task or the options, also by the limits."""


@lru_cache(maxsize=512)
def sending_of(task: str, options: str, limits: Limits) -> Sending:
    """Check a task and the JSON text of its options; raises ``InvalidMonitor`` for what is no JSON object.

    Cached: many rows share few combinations.
    """
    problems: list[str] = []
    if not task.strip() or len(task) > MAX_TASK or names.name_problem(task):
        problems.append(f"task: {task!r:.80}: expected the name of a task of at most {MAX_TASK} characters")
    if len(options) > 2 * MAX_TEXT + 2_000:
        return Sending("{}", [*problems, "options: too large"])
    given = parse_object("options", options, limits.decode)
    expires = given.pop("expires", None)
    columns = {name: given.pop(name, None) for name in _COLUMNS}
    types = (str, str, str, int)
    if any(type(columns[name]) not in (kind, type(None)) for name, kind in zip(_COLUMNS, types, strict=True)):
        return Sending(
            "{}", [*problems, "options: queue, exchange and routing_key: expected texts, priority: a number"]
        )
    headers = given.pop("headers", None)
    canvas = taken_from(given)
    composed = compose(
        limits.decode,
        **columns,
        headers=json.dumps(headers) if headers else None,
        expires_s=None,
        options=json.dumps(given) if given else None,
    )
    problems += map(str, composed.problems)
    problems += canvas.problems
    merged = {**json.loads(composed.text), **canvas.options}
    if expires is not None:
        merged["expires"] = expires
        if not _is_instant(expires):
            problems.append(f"expires: {expires!r:.80}: expected an instant with a time zone")
    text = json.dumps(merged, sort_keys=True)
    if not problems:
        at = Addressed(task, columns["queue"], columns["exchange"], columns["routing_key"])
        problems += map(str, allowance_problems(at, SendOptions(text, ()), limits))
    return Sending(text, problems)


def _is_instant(value: Any) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False
