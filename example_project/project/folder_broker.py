"""kombu's filesystem transport, with atomic writes and atomic reads of messages.

kombu creates the file of a message and fills it afterwards; a worker that reads in between gets an empty message and
stops. Here a file is renamed to its final name once it is complete. If the folder for temporary files is on another
disk, kombu takes a message by copying it, which two workers can do at the same time; here taking is a rename, which
succeeds once. For the embedded demo only; real brokers do not need this.
"""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any

from kombu.transport import filesystem
from kombu.utils.json import dumps, loads

if TYPE_CHECKING:
    from collections.abc import Callable

READ_AGAIN_S = 0.01
READ_AGAIN_MAX = 100


class Channel(filesystem.Channel):
    """Channel whose files are never read half-written."""

    def _put(self, queue: str, payload: Any, **_kwargs: Any) -> None:
        name = f"{round(time.monotonic() * 1000)}_{uuid.uuid4()}.{queue}.msg"
        partial = Path(self.data_folder_out, f"{name}.partial")
        partial.write_text(dumps(payload), encoding="utf-8")
        partial.rename(partial.with_name(name))

    def _get(self, queue: str) -> Any:
        folder = Path(self.data_folder_in)
        for name in sorted(name for name in os.listdir(folder) if name.partition(".")[2] == f"{queue}.msg"):
            taken = folder / f"{name}.taken"
            try:
                (folder / name).rename(taken)
            except FileNotFoundError:
                continue  # another worker took it
            payload = loads(taken.read_text(encoding="utf-8"))
            taken.unlink()
            return payload
        raise Empty

    def get_table(self, exchange: str) -> Any:
        """Read the bindings of an exchange."""
        return _once_it_is_written(super().get_table, exchange)

    def _queue_bind(self, *binding: Any) -> None:
        _once_it_is_written(super()._queue_bind, *binding)


def _once_it_is_written(read: Callable[..., Any], *arguments: Any) -> Any:
    """Read the file of an exchange; retry while another process is creating it."""
    for _ in range(READ_AGAIN_MAX):
        try:
            return read(*arguments)
        except ValueError:
            time.sleep(READ_AGAIN_S)
    return read(*arguments)


class Transport(filesystem.Transport):
    """Registered for ``filesystem://`` in the settings."""

    Channel = Channel
