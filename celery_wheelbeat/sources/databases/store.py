"""The rows that a beat writes and reads back: status and marks, quarantine, finished monitors.

Writes are batched and idempotent: a write with an unknown outcome is repeated. Statements wait for locks only for a
bounded time. No run waits for a write.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.sources import BeatRow, ReportingBeat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_wheelbeat.jobs.definitions import Finished
    from celery_wheelbeat.sources.databases.session import Session

logger = logging.getLogger(__name__)

MAX_KEY = 250
"""Characters of the column ``job_key``; names of entries may be longer."""
MAX_REASON = 2_000


class SqlBeatStore:
    """``BeatStore`` on a ``Session``; vendors differ only in their SQL."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def namespace(self) -> str | None:
        """Return the installation's UUID; raises ``SourceError`` if the tables are missing."""
        found = self._session.rows("namespace")
        return str(found[0][0]) if found else None

    def marks(self, namespace: str) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """See ``BeatStore``."""
        found: dict[str, list[Mapping[str, Any]]] = {}
        for text, age_s in self._session.rows("marks", {"namespace": namespace}):
            for destination, document in _documents(text).items():
                found.setdefault(destination, []).append({**document, "age_s": float(age_s)})
        return found

    def later(self) -> Mapping[str, Any]:
        """See ``BeatStore``."""
        for (text,) in self._session.rows("marks_by_age"):
            for document in _documents(text).values():
                later = document.get("later")
                if later and isinstance(later, dict):
                    return later
        return {}

    def reporting(self, namespace: str, within_s: float) -> Sequence[ReportingBeat]:
        """See ``BeatStore``."""
        found = self._session.rows("reporting", {"namespace": namespace, "within_s": within_s})
        return [ReportingBeat._make(row) for row in found]

    def report(self, beat_id: str, row: Mapping[str, Any]) -> None:
        """Insert or replace this beat's status row."""
        with self._session.transaction("begin_write"):
            self._session.rows("report", {"beat_id": beat_id, **row})

    def quarantined(self) -> Mapping[str, tuple[str, str]]:
        """Return job key → (definition hash, reason) of all quarantined jobs."""
        return {key: (definition_hash, reason) for key, definition_hash, reason in self._session.rows("quarantined")}

    def quarantine(self, added: Mapping[str, tuple[str, str]], lifted: Sequence[str]) -> None:
        """Store job keys with (definition hash, reason) and delete the lifted ones."""
        with self._session.transaction("begin_write"):
            if lifted:
                self._session.write_many("lift", [{"job_key": stored_key(key)} for key in sorted(lifted)])
            if added:
                self._session.write_many(
                    "quarantine",
                    [
                        {
                            "job_key": stored_key(key),
                            "definition_hash": definition_hash,
                            "reason": _storable(reason, MAX_REASON),
                        }
                        for key, (definition_hash, reason) in sorted(added.items())
                    ],
                )

    def finish(self, finished: Mapping[int, Finished]) -> None:
        """Set ``finished_at`` of single-run monitors, ascending by id so that two beats cannot deadlock."""
        with self._session.transaction("begin_write"):
            self._session.write_many(
                "finish",
                [
                    {"id": job_id, "finished_ms": done.at_ms, "armed_ms": done.armed_ms}
                    for job_id, done in sorted(finished.items())
                ],
            )

    def beats(self) -> Sequence[BeatRow]:
        """Return the status rows of the last 100 beats, newest first; without those that hold no JSON object."""
        rows = [(*columns, float(age_s), _object(status)) for *columns, age_s, status in self._session.rows("beats")]
        return [BeatRow._make(row) for row in rows if row[-1] is not None]

    def id_of(self, name: str) -> int | None:
        """Return the primary key of the monitor with this name."""
        found = self._session.rows("id_of", {"name": name})
        return int(found[0][0]) if found else None


def stored_key(key: str) -> str:
    """Return ``key`` as the quarantine table stores it: names of entries may be longer than its column."""
    return _storable(key, MAX_KEY)


def _documents(text: str) -> dict[str, Mapping[str, Any]]:
    found = _object(text)
    if found is None or not all(isinstance(document, dict) for document in found.values()):
        logger.warning("mark.ignored: a status row holds marks that are not JSON objects: %.80r", text)
        return {}
    return found


def _object(text: str) -> dict[str, Any] | None:
    """Return a JSON object; None for any other text."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _storable(text: str, length: int) -> str:
    """Replace characters that some database cannot store: the write would be retried for ever."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")[:length]
