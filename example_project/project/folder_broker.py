"""kombu's filesystem transport with messages that appear whole.

kombu creates a message's file first and fills it then; a worker that looks in between reads nothing and stops. Here a
file gets the name that workers look for when it is complete. For the embedded demo; real brokers need nothing of this.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

from kombu.transport import filesystem
from kombu.utils.json import dumps

READ_AGAIN_S = 0.01
READ_AGAIN_MAX = 100


class Channel(filesystem.Channel):
    """Channel whose files are never seen half-written."""

    def _put(self, queue: str, payload: Any, **_kwargs: Any) -> None:
        name = f"{round(time.monotonic() * 1000)}_{uuid.uuid4()}.{queue}.msg"
        partial = Path(self.data_folder_out, f"{name}.partial")
        partial.write_text(dumps(payload), encoding="utf-8")
        partial.rename(partial.with_name(name))

    def get_table(self, exchange: str) -> Any:
        """Read the bindings of an exchange, again while their file is being created."""
        for _ in range(READ_AGAIN_MAX):
            try:
                return super().get_table(exchange)
            except ValueError:
                time.sleep(READ_AGAIN_S)
        return super().get_table(exchange)


class Transport(filesystem.Transport):
    """Registered for ``filesystem://`` in the settings."""

    Channel = Channel
