"""Parts of messages that are used once: those of one-off runs, rendered by columns and not cached.

A monitor's parts are the same in every run, so a step per job is paid once. A one-off run would pay it each time, and
fill the cache with what nobody reads again. Runs that have no quick way are rendered one by one, as monitors are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from celery_wheelbeat.dispatch.messages.byte_ranges import ByteRanges
from celery_wheelbeat.dispatch.messages.part_cache import merged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from celery_wheelbeat.dispatch.messages.envelope import Envelope
    from celery_wheelbeat.dispatch.messages.part_cache import PartColumns
    from celery_wheelbeat.dispatch.messages.patterns import Form
    from celery_wheelbeat.engine.payloads import Text

RUNS_MIN = 16
"""With fewer runs, a step per run costs less."""


def used_once(
    form: Form, envelope: Envelope, texts: Sequence[Text], pieces_of: Callable[[NDArray[np.intp]], PartColumns]
) -> PartColumns:
    """Return the parts of one-off runs with ``texts``.

    ``pieces_of``: renders those at some positions one by one; its exceptions pass to the caller.
    """
    every = np.arange(len(texts))
    names = {text.name for text in texts}
    if form.has_own or len(texts) < RUNS_MIN or len(names) > 1:
        return pieces_of(every)
    (name,) = names
    payloads = [text.payload for text in texts]
    ranges = ByteRanges.of(payloads)
    flat = envelope.body.flat(ranges)
    if not flat.any():
        return pieces_of(every)
    quick = ranges if flat.all() else ByteRanges.of([payloads[at] for at in np.flatnonzero(flat).tolist()])
    encoded = envelope.body.of_ranges(quick)
    columns = None if encoded is None else envelope.columns(encoded, name.decode())
    if columns is None:
        return pieces_of(every)
    return columns if quick is ranges else merged((every[flat], columns), (every[~flat], pieces_of(every[~flat])))
