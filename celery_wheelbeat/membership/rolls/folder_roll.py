"""A roll in a folder of one machine: one file a beat, replaced atomically.

The name of a file holds the seniority of its beat: one more than the greatest that was there. Two beats that start in
the same instant may get the same one. All times are those that the file system notes, so no clock is read. Waits for
the file system are not bounded: use a local disk.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from celery_wheelbeat.errors import RollDown, reason_of
from celery_wheelbeat.membership import Heard, Peer

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_SUFFIX = ".line"


class _Said(NamedTuple):
    written_ns: int
    counter: int
    line: str


class FolderRoll:
    """``Roll`` in ``folder``, which is made if it is missing."""

    def __init__(self, folder: str | os.PathLike[str], namespace: str, beat_id: str) -> None:
        self._folder = Path(folder)
        self._namespace = namespace
        self._beat_id = beat_id
        self._order = 0
        self._counter = 0

    def beat(self, text: str) -> Heard:
        """See ``Roll``."""
        with self._errors():
            now_ns = self._write(text)
            return Heard(list(self._others(now_ns)), self._order, now_ns // 1_000_000)

    def leave(self, text: str) -> None:
        """See ``Roll``."""
        with self._errors():
            self._write(text)

    def fence(self, beat_id: str) -> bool:  # noqa: ARG002 - a folder does not know the connections to the broker
        """See ``Roll``."""
        return False

    def forget(self, beat_ids: Collection[str]) -> None:
        """See ``Roll``."""
        with self._errors():
            for _, beat_id, path in self._files():
                if beat_id in beat_ids and self._said(path) is not None:
                    path.unlink(missing_ok=True)

    def close(self) -> None:
        """See ``Roll``; nothing is open."""

    def _write(self, text: str) -> int:
        """Write the line and return when the file system did, in ns."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if not self._order:
            taken = {beat_id: order for order, beat_id, _ in self._files()}
            self._order = taken.get(self._beat_id) or max(taken.values(), default=0) + 1
        self._counter += 1
        name = f"{self._order}-{self._beat_id}"
        said = {"namespace": self._namespace, "counter": self._counter, "line": text}
        draft, file = self._folder / f"{name}.draft", self._folder / f"{name}{_SUFFIX}"
        draft.write_text(json.dumps(said), encoding="utf-8")
        draft.replace(file)
        return file.stat().st_mtime_ns

    def _files(self) -> Iterator[tuple[int, str, Path]]:
        """Yield seniority and id of each beat, and its file."""
        for path in self._folder.glob(f"*-*{_SUFFIX}"):
            order, _, beat_id = path.name.removesuffix(_SUFFIX).partition("-")
            if order.isascii() and order.isdigit():
                yield int(order), beat_id, path

    def _others(self, now_ns: int) -> Iterator[Peer]:
        for order, beat_id, path in self._files():
            said = None if beat_id == self._beat_id else self._said(path)
            if said is not None:
                yield Peer(beat_id, order, said.counter, (now_ns - said.written_ns) / 1e9, said.line)

    def _said(self, path: Path) -> _Said | None:
        """Return what a file says; None if it is gone, no beat wrote it, or its beat has another namespace."""
        try:
            with path.open(encoding="utf-8") as file:
                values, written_ns = json.load(file), os.fstat(file.fileno()).st_mtime_ns
            said = _Said(written_ns, int(values["counter"]), str(values["line"]))
            return said if values["namespace"] == self._namespace else None
        except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
            return None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise RollDown(f"roll in folder {self._folder}: {reason_of(error)}") from error
