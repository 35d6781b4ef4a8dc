"""An invalid setting under a ``celery`` command: the message and exit code 1 instead of a traceback."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from celery_wheelbeat.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def plain_refusal() -> Iterator[None]:
    """Raise ``SystemExit`` with the message of an ``InvalidSetting``; outside of a command, the error itself.

    Celery's beat logs every other exception with its traceback.
    """
    try:
        yield
    except InvalidSetting as error:
        if click.get_current_context(silent=True) is None:
            raise
        raise SystemExit(f"Error: {error}") from None
