"""Read one-off runs from Redis. A script places a run by the server's clock, so a second that has passed is complete.

The version of a second shows whether anything in it is new; ids are compared then.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.errors import SourceError, reason_of
from celery_wheelbeat.later.checks import LaterRow
from celery_wheelbeat.later.connections.redis import VERSION
from celery_wheelbeat.later.open_seconds import MARGIN_S, Resume
from celery_wheelbeat.later.readers import BACK_S, MAX_TEXTS, NO_LIMIT, PIECE, SECONDS_AT_ONCE, Read, size_of
from celery_wheelbeat.later.ring import DAY_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_wheelbeat.later.connections.redis import RedisKeys


class _RedisSecond:
    """An open second: what was read of it."""

    def __init__(self) -> None:
        self.version: bytes | None = None
        self.rows: set[bytes] = set()
        self.cancelled = 0
        """Number of cancelled ids that were read."""


class _RedisPoll:
    """A poll that may take several calls."""

    def __init__(self, now_s: int, until_s: int) -> None:
        self.now_s = now_s
        self.until_s = until_s
        self.wanted: deque[tuple[int, list[bytes]]] = deque()
        """(second, ids to be read)."""
        self.cancelled: list[LaterRow] = []


class RedisReader:
    """``LaterReader`` on Redis."""

    def __init__(
        self, connect: Callable[[], Any], keys: RedisKeys, resume: Resume | None, most_bytes: int = MAX_TEXTS
    ) -> None:
        """``most_bytes``: larger texts are not passed on."""
        self._connect = connect
        self._client: Any = None
        self._keys = keys
        self._most_bytes = most_bytes
        self._closed_s: int | None = None if resume is None else resume.closed_s
        """None before the first poll of a first start, which begins with the oldest row."""
        self._opened_s = 0 if resume is None else resume.closed_s
        self._open: dict[int, _RedisSecond] = {}
        self._poll: _RedisPoll | None = None
        """The poll that is not complete."""
        self._state: Resume | None = None
        """After the last complete poll."""

    def poll(self, ahead_s: int, room: int = NO_LIMIT) -> Read:
        """See ``LaterReader``."""
        try:
            return self._read(ahead_s, room)
        except Exception as error:
            self._poll = None
            for second in self._open.values():  # compared again: not everything that was read was returned
                second.version, second.cancelled = None, 0
            self.close()
            raise SourceError(f"one-off runs in Redis: {reason_of(error)}") from error

    def pause(self) -> None:
        """See ``LaterReader``; there are no transactions."""

    def drop(self, day: int) -> bool:
        """See ``LaterReader``; hashes disappear by themselves, and here their seconds are removed from the index."""
        try:
            return bool(self._connected().zremrangebyscore(self._keys.seconds, "-inf", (day + 1) * DAY_S - 1))
        except Exception as error:
            self.close()
            raise SourceError(f"one-off runs in Redis: {reason_of(error)}") from error

    def close(self) -> None:
        """See ``LaterReader``."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connected(self) -> Any:
        if self._client is None:
            self._client = self._connect()
        return self._client

    def _read(self, ahead_s: int, room: int) -> Read:
        poll = self._poll or self._begun(ahead_s)
        self._poll = poll
        rows, poll.cancelled = poll.cancelled, []
        pieces: list[tuple[int, list[bytes]]] = []
        while poll.wanted and room > 0:
            second, ids = poll.wanted[0]
            found = self._rows(second, ids[:PIECE])
            pieces.append((second, ids[:PIECE]))
            rows += found
            room -= sum(map(size_of, found))
            del ids[:PIECE]
            if not ids:
                poll.wanted.popleft()
        for second, ids in pieces:
            self._open[second].rows.update(ids)
        if poll.wanted:
            return Read(poll.now_s, rows, self._state, more=True)
        self._complete(poll)
        return Read(poll.now_s, rows, self._state)

    def _begun(self, ahead_s: int) -> _RedisPoll:
        client = self._connected()
        now_s = int(client.time()[0])
        if self._closed_s is None:
            oldest = client.zrangebyscore(self._keys.seconds, now_s - BACK_S, now_s, start=0, num=1, withscores=True)
            self._closed_s = self._opened_s = (int(oldest[0][1]) if oldest else now_s) - 1
        until_s = max(self._opened_s, min(now_s + ahead_s, self._opened_s + SECONDS_AT_ONCE))
        for second in range(self._opened_s + 1, until_s + 1):
            self._open.setdefault(second, _RedisSecond())
        poll = _RedisPoll(now_s, until_s)
        pipeline = client.pipeline(transaction=False)
        for second in self._open:
            pipeline.hget(self._keys.second(second), VERSION)
        # A key of another type is an error of its own, and not one of the poll.
        for second, version in zip(list(self._open), pipeline.execute(raise_on_error=False), strict=True):
            if isinstance(version, bytes) and version != self._open[second].version:
                self._compare(second, poll)
        return poll

    def _compare(self, second: int, poll: _RedisPoll) -> None:
        """Note what is new in a second; all three answers are of one moment."""
        known, name = self._open[second], self._keys.second(second)
        pipeline = self._connected().pipeline(transaction=True)
        pipeline.hget(name, VERSION).hkeys(name).lrange(self._keys.cancelled(second), known.cancelled, -1)
        # A list of cancelled ids that another client has made a key of another type is an error of its own, too.
        version, ids, found = pipeline.execute(raise_on_error=False)
        cancelled = found if isinstance(found, list) else []
        new = [run_id for run_id in ids if run_id != VERSION and run_id not in known.rows]
        if new:
            poll.wanted.append((second, new))
        poll.cancelled += [LaterRow(second, _text(run_id), second * 1000, "", "", "", "") for run_id in cancelled]
        known.version = version
        known.cancelled += len(cancelled)

    def _rows(self, second: int, ids: list[bytes]) -> list[LaterRow]:
        texts = self._connected().hmget(self._keys.second(second), ids)
        return [self._row(second, run_id, text) for run_id, text in zip(ids, texts, strict=True) if text is not None]

    def _row(self, second: int, run_id: bytes, text: bytes) -> LaterRow:
        """Return a row; any client may have written the text, and what cannot be read is refused later."""
        try:
            at_ms, _, task, args, kwargs, options = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            return LaterRow(second, _text(run_id), 0, "?", None, None, None)
        if len(text) > self._most_bytes:
            args = kwargs = options = None
        if task == "":
            at_ms = None  # no tombstone: those are in the list
        return LaterRow(second, _text(run_id), at_ms, task or "?", args, kwargs, options)

    def _complete(self, poll: _RedisPoll) -> None:
        self._poll = None
        self._opened_s = poll.until_s
        for second in [second for second in self._open if second + MARGIN_S <= poll.now_s]:
            del self._open[second]
        closed_s = max(self._closed_s or 0, min(poll.until_s, poll.now_s - MARGIN_S))
        self._closed_s = closed_s
        self._state = Resume(closed_s, max(closed_s, poll.until_s), None)


def _text(octets: bytes) -> str:
    return octets.decode(errors="surrogateescape")
