"""The few rows that a beat writes and reads back: status and marks, quarantine, finished one-offs.

Batched and idempotent, so that a write whose outcome is unknown is simply made again. The statements bound how long
they wait for a lock; nothing here is on the way of a run.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_wheelbeat.sources.session import Session

logger = logging.getLogger(__name__)

CLOCK_TOLERANCE_MS = 5_000


class Store:
    """``BeatStore`` on a ``Session``; the SQL of the vendor makes the difference."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def namespace(self) -> str | None:
        """Return the installation's UUID; raises ``SourceError`` where the tables are missing."""
        found = self._session.rows("namespace")
        return str(found[0][0]) if found else None

    def marks(self, namespace: str) -> Mapping[str, Mapping[str, Any]]:
        """Return per destination the document with the latest ``mark_ms`` of any beat of ``namespace``."""
        latest: dict[str, Mapping[str, Any]] = {}
        for text, now_ms in self._session.rows("marks", {"namespace": namespace}):
            for destination, document in _documents(text).items():
                mark_ms = document["mark_ms"]
                if mark_ms > now_ms + CLOCK_TOLERANCE_MS:
                    logger.warning(
                        "mark.ignored: destination %s has a mark %.1f s ahead of the database's clock",
                        destination, (mark_ms - now_ms) / 1000,
                    )  # fmt: skip
                elif destination not in latest or mark_ms > latest[destination]["mark_ms"]:
                    latest[destination] = document
        return latest

    def report(self, beat_id: str, row: Mapping[str, Any]) -> None:
        """Insert or replace this beat's status row."""
        with self._session.transaction("begin_write"):
            self._session.rows("report", {"beat_id": beat_id, **row})

    def quarantine(self, added: Mapping[str, tuple[str, str]], lifted: Sequence[str]) -> None:
        """Record job keys with (definition hash, reason), and remove the lifted ones."""
        with self._session.transaction("begin_write"):
            if lifted:
                self._session.write_many("lift", [{"job_key": key} for key in sorted(lifted)])
            if added:
                self._session.write_many(
                    "quarantine",
                    [
                        {"job_key": key, "definition_hash": definition_hash, "reason": reason}
                        for key, (definition_hash, reason) in sorted(added.items())
                    ],
                )

    def finish(self, finished: Mapping[int, int]) -> None:
        """Set ``finished_at`` of one-off monitors, ascending by id so that two beats cannot deadlock."""
        with self._session.transaction("begin_write"):
            self._session.write_many(
                "finish", [{"id": job_id, "finished_ms": at_ms} for job_id, at_ms in sorted(finished.items())]
            )


def _documents(text: str) -> dict[str, Mapping[str, Any]]:
    try:
        documents = json.loads(text)
        return {
            destination: document
            for destination, document in documents.items()
            if isinstance(document, dict) and isinstance(document.get("mark_ms"), int)
        }
    except (ValueError, AttributeError):
        logger.warning("mark.ignored: a status row holds marks that are not JSON objects: %.80r", text)
        return {}
