"""Stored marks: what earlier processes left is read and judged, and the log says what cannot be used of it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.marks import InvalidMark, MarkDocument, choose

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

logger = logging.getLogger("celery.beat")


def known_marks(stored: Mapping[str, Sequence[Mapping[str, Any]]], now_ms: int) -> dict[str, MarkDocument]:
    """Return the mark of each destination of which there is a usable one."""
    known = {}
    for destination, documents in stored.items():
        readable = []
        for values in documents:
            try:
                readable.append(MarkDocument.from_json(values))
            except InvalidMark as error:
                logger.warning("beat: A mark of %s cannot be used: %s", destination, error)
        chosen = choose(readable, now_ms)
        if chosen.ignored:
            logger.warning("beat: %d marks of %s lie ahead of the clock: ignored", len(chosen.ignored), destination)
        if chosen.document is not None:
            known[destination] = chosen.document
    return known
