"""Write one-off runs into Redis: a hash for each second.

A script places each run by the server's clock, so nobody can write into a second that has passed. Every call is in
force when it returns; no transaction of the application takes part.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from celery_wheelbeat.later.connections.redis import KEPT_S, VERSION
from celery_wheelbeat.later.ring import LAST_MS, due_ms_of
from celery_wheelbeat.later.run import LaterRun
from celery_wheelbeat.later.writers import IN_FORCE_MS, Found, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery_wheelbeat.later.connections.redis import RedisSession

ROWS_OF_SCRIPT = 500
SECONDS_AT_ONCE = 500
_PLACE = re.compile(rb"([0-9]{1,15}):([0-9a-f-]{36})")

_NOW: Final = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000) "
_INSERT: Final = (
    _NOW
    + """
local prefix, kept = KEYS[1], ARGV[1]
for i = 2, #ARGV, 4 do
  local at, id, key, text = tonumber(ARGV[i]), ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local second = math.max(math.floor(at / 1000), math.floor(now / 1000) + 1)
  local name = string.format('%.0f', second)
  local hash, expiry = prefix .. 's:' .. name, string.format('%.0f', second + kept)
  redis.call('HSET', hash, id, text)
  redis.call('HINCRBY', hash, 'v', 1)
  redis.call('EXPIREAT', hash, expiry)
  redis.call('ZADD', prefix .. 'seconds', name, name)
  if key ~= '' then
    redis.call('SET', prefix .. 'k:' .. key, name .. ':' .. id)
    redis.call('EXPIREAT', prefix .. 'k:' .. key, expiry)
  end
end
"""
)
_CANCEL: Final = (
    _NOW
    + """
local prefix, second, id, in_force, kept = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local hash, list = prefix .. 's:' .. second, prefix .. 'c:' .. second
local text = redis.call('HGET', hash, id)
local at = text and tonumber(string.match(text, '^%[(%d+),'))
if not at or at < now + in_force then return 0 end
redis.call('HDEL', hash, id)
redis.call('HINCRBY', hash, 'v', 1)
redis.call('RPUSH', list, id)
redis.call('EXPIREAT', list, string.format('%.0f', second + kept))
return 1
"""
)


class RedisWriter:
    """``LaterWriter`` on Redis."""

    def __init__(self, session: RedisSession) -> None:
        self._session = session
        self._client = session.client
        self._keys = session.keys

    def insert(self, runs: Sequence[LaterRun]) -> None:
        """See ``LaterWriter``; up to 500 runs are written at once, or none of them."""
        script = self._client.register_script(_INSERT)
        for first in range(0, len(runs), ROWS_OF_SCRIPT):
            given: list[Any] = [KEPT_S]
            for run in runs[first : first + ROWS_OF_SCRIPT]:
                given += (run.at_ms, run.id, run.key or "", _text_of(run))
            script(keys=[self._keys.prefix], args=given)

    def cancel(self, run_id: str) -> bool:
        """See ``LaterWriter``."""
        due_ms = due_ms_of(run_id)
        if due_ms is None:
            return False
        script = self._client.register_script(_CANCEL)
        return bool(script(keys=[self._keys.prefix], args=[due_ms // 1000, run_id, IN_FORCE_MS, KEPT_S]))

    def of_id(self, run_id: str, *, lock: bool) -> Found | None:  # noqa: ARG002 - a cancel is one script
        """See ``LaterWriter``; a run that was due when it was inserted lies in a later second and is not found."""
        due_ms = due_ms_of(run_id)
        return None if due_ms is None else self._at(due_ms // 1000, run_id.encode())

    def of_key(self, key: str, *, lock: bool) -> Found | None:
        """See ``LaterWriter``; the run that was inserted last."""
        if lock:
            self._session.lock(key)
        place = _PLACE.fullmatch(self._client.get(self._keys.key(key)) or b"")
        return None if place is None else self._at(int(place[1]), place[2])

    def count(self, from_s: int, until_s: int) -> int:
        """See ``LaterWriter``."""
        total = 0
        for seconds in self._seconds(from_s, until_s):
            pipeline = self._client.pipeline(transaction=False)
            for second in seconds:
                pipeline.hlen(self._keys.second(second))
            total += sum(max(0, length - 1) for length in pipeline.execute())
        return total

    def listed(self, wanted: Wanted) -> Sequence[Found]:
        """See ``LaterWriter``."""
        found: list[Found] = []
        for seconds in self._seconds(wanted.from_s, wanted.until_s):
            for second in seconds:
                if len(found) >= wanted.limit:
                    return found[: wanted.limit]
                texts = self._client.hgetall(self._keys.second(second))
                texts.pop(VERSION, None)
                now_ms = self._now_ms()
                rows = [_found_in(run_id, text, now_ms) for run_id, text in texts.items()]
                wanted_rows = [row for row in rows if row is not None and _is_wanted(row, wanted)]
                found += sorted(wanted_rows, key=lambda row: row.run.at_ms)
        return found[: wanted.limit]

    def _at(self, second: int, run_id: bytes) -> Found | None:
        text = self._client.hget(self._keys.second(second), run_id)
        return None if text is None else _found_in(run_id, text, self._now_ms())

    def _now_ms(self) -> int:
        seconds, micros = self._client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def _seconds(self, from_s: int, until_s: int) -> Iterator[list[int]]:
        first, bounds = from_s, {"start": 0, "num": SECONDS_AT_ONCE, "withscores": True}
        while True:
            found = self._client.zrangebyscore(self._keys.seconds, first, until_s - 1, **bounds)
            if found:
                # Another client may have written members that are no seconds.
                yield sorted({int(second) for _, second in found})
            if len(found) < SECONDS_AT_ONCE:
                return
            first = int(found[-1][1]) + 1


def _text_of(run: LaterRun) -> str:
    """Return the text of a run; it begins with the due time, which a script reads."""
    return json.dumps([run.at_ms, run.key, run.task, run.args, run.kwargs, run.options], separators=(",", ":"))


def _found_in(run_id: bytes, text: bytes, now_ms: int) -> Found | None:
    """Return a row; None if another client has written what is no run, which a beat counts as an error."""
    try:
        run = LaterRun(run_id.decode(), *json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return None
    texts = (run.task, run.args, run.kwargs, run.options, run.key or "")
    if type(run.at_ms) is not int or not 0 <= run.at_ms < LAST_MS or not all(type(text) is str for text in texts):
        return None
    return Found(run, run.at_ms < now_ms + IN_FORCE_MS)


def _is_wanted(row: Found, wanted: Wanted) -> bool:
    return wanted.key in (None, row.run.key) and wanted.task in (None, row.run.task)
