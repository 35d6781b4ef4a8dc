"""One one-off run as it lies in the store, and how a call of the application becomes one.

The checks are those of a monitor's fields, so a run that is accepted here can be sent. Never: I/O, a clock.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from kombu.utils import json as kombu_json

from celery_wheelbeat.errors import InvalidMonitor, InvalidRequest
from celery_wheelbeat.jobs import names
from celery_wheelbeat.jobs.json_fields import parse_list, parse_object
from celery_wheelbeat.jobs.send_options import compose
from celery_wheelbeat.later import canvas
from celery_wheelbeat.later.checks import sending_of
from celery_wheelbeat.later.ring import LAST_MS, due_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_wheelbeat.jobs.rows import Limits

MAX_KEY = 250
"""Characters of a key."""

_dumps: Callable[[Any], str] = kombu_json.dumps
_loads: Callable[[str], Any] = kombu_json.loads
_COLUMNS = ("queue", "exchange", "routing_key", "priority")
_TIMES = ("eta", "countdown")


class LaterRun(NamedTuple):
    """One row: a task to be sent once, at ``at_ms``."""

    id: str
    """Task id, a UUIDv7 of the due time."""
    at_ms: int
    key: str | None
    task: str
    args: str
    """JSON list."""
    kwargs: str
    """JSON object."""
    options: str
    """JSON object of ``apply_async`` options; ``expires`` is an instant."""

    @property
    def at(self) -> datetime:
        """The due time, aware, in UTC; of a row that another client wrote, within the range of ``datetime``."""
        return datetime.fromtimestamp(min(max(0, self.at_ms), LAST_MS) / 1000, UTC)

    def moved(self, at_ms: int) -> LaterRun:
        """Return the same run at another due time; raises ``InvalidRequest``."""
        problems: list[str] = []
        run_id = due_id(_placed(at_ms, 0.0, None, problems))
        if problems:
            raise InvalidRequest(f"{self.task} cannot be moved: {'; '.join(problems)}")
        return self._replace(id=str(run_id), at_ms=at_ms)


def later_run(
    signature: Any,
    at_ms: int,
    *,
    now_ms: int,
    key: str | None = None,
    spread_s: float = 0.0,
    limits: Limits,
) -> LaterRun:
    """Return the row for ``signature`` (a Celery ``Signature``); raises ``InvalidRequest`` with every problem.

    ``spread_s``: the run is moved later by less than this, by its key or else at random, so that many runs of one
    instant do not come at once.
    ``limits``: those of a beat, which checks them again.
    ``now_ms``: from which a relative ``expires`` counts, as in ``apply_async``.
    """
    problems: list[str] = []
    placed_ms = _placed(at_ms, spread_s, key, problems)
    task = str(signature.get("task") or "")
    if signature.get("subtask_type"):
        problems.append(f"task: a {signature['subtask_type']} cannot be stored; expected the signature of one task")
    if key is not None and not (isinstance(key, str) and 0 < len(key) <= MAX_KEY and not names.name_problem(key)):
        problems.append(f"key: {key!r:.80}: expected a text of 1 to {MAX_KEY} printable characters")
    args = _json("args", list(signature.get("args") or ()), problems)
    kwargs = _json("kwargs", dict(signature.get("kwargs") or {}), problems)
    size = len(args.encode()) + len(kwargs.encode())
    if size > limits.max_payload_bytes:
        problems.append(f"args and kwargs have {size:,} bytes, at most {limits.max_payload_bytes:,} are possible")
    options = _options(dict(signature.get("options") or {}), now_ms, problems)
    problems += sending_of(task, options, limits).problems
    if problems:
        raise InvalidRequest(f"{task or 'a one-off run'} cannot be stored: {'; '.join(problems)}")
    return LaterRun(str(due_id(placed_ms)), placed_ms, key, task, args, kwargs, options)


def _placed(at_ms: int, spread_s: float, key: str | None, problems: list[str]) -> int:
    if not 0 <= at_ms < LAST_MS:
        problems.append(f"at: {at_ms} ms since 1970: expected an instant from 1970 to 9998")
        return 0
    if not 0 <= spread_s <= 86_400:
        problems.append(f"spread: {spread_s!r}: expected 0 to 86400 seconds")
        return at_ms
    seed = os.urandom(8) if key is None else blake2b(str(key).encode(errors="replace"), digest_size=8).digest()
    return at_ms + int.from_bytes(seed, "big") % max(1, round(spread_s * 1000))


def _json(field: str, value: Any, problems: list[str]) -> str:
    """Return ``value`` as Celery's JSON serializer writes it."""
    try:
        text = _dumps(value)
        (parse_list if field == "args" else parse_object)(field, text, _loads)
    except InvalidMonitor as problem:
        problems.append(str(problem))
    except Exception as error:  # encoders registered with kombu are user code
        problems.append(f"{field}: JSON cannot carry it: {error}")
    else:
        return text
    return ""


def _options(given: dict[str, Any], now_ms: int, problems: list[str]) -> str:
    if not given:
        return "{}"
    problems += [f"{name}: belongs to the due time; use at=" for name in _TIMES if given.pop(name, None) is not None]
    expires = given.pop("expires", None)
    columns = {name: given.pop(name, None) for name in _COLUMNS}
    headers = given.pop("headers", None)
    rest = {name: value for name, value in given.items() if value is not None}
    try:
        of_canvas = _plain({name: rest.pop(name) for name in canvas.NAMES if name in rest})
        found = compose(
            _loads,
            **columns,
            headers=_dumps(headers) if headers else None,
            expires_s=None,
            options=_dumps(rest) if rest else None,
        )
    except Exception as error:  # an option that JSON cannot carry, or that cannot be hashed
        problems.append(f"options: JSON cannot carry them: {error}")
        return "{}"
    problems += map(str, found.problems)
    options: dict[str, Any] = {**json.loads(found.text), **of_canvas}
    if expires is not None:
        options["expires"] = _instant(expires, now_ms, problems)
    return json.dumps(options, sort_keys=True)


def _plain(options: Mapping[str, Any]) -> Any:
    """Return what a beat will read; raises if an option contains what only Celery's JSON can carry."""
    read = _loads(_dumps(options)) if options else {}
    json.dumps(read)
    return read


def _instant(expires: Any, now_ms: int, problems: list[str]) -> str | None:
    """Return ``expires`` (seconds from now, a timedelta, a datetime or its text) as an instant."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    try:
        if isinstance(expires, (int, float)) and not isinstance(expires, bool):
            return (now + timedelta(seconds=expires)).isoformat()
        if isinstance(expires, timedelta):
            return (now + expires).isoformat()
        found = datetime.fromisoformat(expires) if isinstance(expires, str) else expires
        aware = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return str(aware.astimezone(UTC).isoformat())
    except (OverflowError, ValueError, AttributeError, TypeError):
        problems.append(f"expires: {expires!r:.80}: expected seconds, a timedelta or a datetime")
        return None
