"""Job messages: from runs and their jobs' columns to what a batch is made of.

Reads the payloads as they are now and keeps the rendered pieces; sends nothing and decides nothing. What does not
render is named with its reason, and never stops the others.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from kombu.utils.json import loads

from celery_wheelbeat.bodies import Bodies, Columns
from celery_wheelbeat.errors import reason_of
from celery_wheelbeat.monitors import key_of
from celery_wheelbeat.pairs import STEP_SHIFT
from celery_wheelbeat.publishers.batch_maker import Load
from celery_wheelbeat.publishers.envelope_maker import Arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from celery_wheelbeat.engine import Engine
    from celery_wheelbeat.jobs import Int64s, UInt32s
    from celery_wheelbeat.pairs import Pairs
    from celery_wheelbeat.payloads import Payloads
    from celery_wheelbeat.publishers.envelope import Envelope
    from celery_wheelbeat.publishers.forms import Forms
    from celery_wheelbeat.runs import Octets, RunIds
    from celery_wheelbeat.shards import JobColumns

_SHORT_BYTES = 1_000
"""Where no text is longer it is not worth a look how long each of them is."""
_loads: Callable[[bytes], Any] = loads


class Runs(NamedTuple):
    """Runs that are about to be sent, in columns of equal length."""

    pairs: Pairs
    jobs: JobColumns
    ids: Octets
    """Run ids, n × 36."""


class Rendered(NamedTuple):
    """What the messages of some runs are made of, and the runs that have none."""

    load: Load
    """To be made at once: its pieces may lie in a cache."""
    positions: NDArray[np.intp]
    """Of the runs in ``load``."""
    unfit: dict[int, str]
    """Position → why its job does not render."""


class Unfit(Exception):
    """Jobs that do not render: position → why."""

    def __init__(self, reasons: dict[int, str]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


class JobMessages:
    """See the module. Owned by the scheduling thread."""

    def __init__(self, engine: Engine, forms: Forms, *, limit_bytes: int) -> None:
        """``limit_bytes``: memory for rendered pieces."""
        self.bodies = Bodies(limit_bytes)
        self._limit_bytes = limit_bytes
        self._engine = engine
        self._forms = forms
        self._payloads: Payloads | None = None
        """Whose refs the pieces are kept by; the engine has others after each of its starts."""

    def render(self, envelope: Envelope, positions: NDArray[np.intp], runs: Runs) -> Rendered:
        """Look up what the messages of the runs at ``positions`` need; their jobs have ``envelope``."""
        payloads, number = self._followed(), self._forms.number_of(envelope)
        pairs, jobs, ids = runs
        unfit: dict[int, str] = {}
        while True:
            refs, job_ids = jobs.ref[positions], pairs.ids[positions]

            def pieces_of(missing: NDArray[np.intp], refs: UInt32s = refs, ids: Int64s = job_ids) -> Columns:
                keys = map(key_of, ids[missing].tolist()) if envelope.names_key else repeat("")
                return columns_of(envelope, payloads, refs, missing, keys)

            try:
                columns = self.bodies.columns(refs, number, envelope.opening_width, pieces_of)
            except Unfit as found:
                unfit.update((int(positions[at]), reason) for at, reason in found.reasons.items())
                positions = np.delete(positions, list(found.reasons))
                continue
            every = len(positions) == len(ids)
            ids, fire_ms = (ids, pairs.fire_ms) if every else (ids[positions], pairs.fire_ms[positions])
            return Rendered(Load(envelope, columns, ids, fire_ms), positions, unfit)

    def _followed(self) -> Payloads:
        payloads = self._engine.shards.payloads
        if payloads is not self._payloads:
            self._payloads, self.bodies = payloads, Bodies(self._limit_bytes)
            payloads.on_release = self.bodies.forget
        return payloads

    def sizes(self, jobs: JobColumns) -> Int64s:
        """Return about how many bytes the pieces of each of ``jobs`` have; nothing is rendered for it."""
        payloads = self._followed()
        sizes = self.bodies.sizes(jobs.ref)
        (unknown,) = np.nonzero(jobs.enabled & (sizes == 0))
        if len(unknown):
            short = payloads.longest <= _SHORT_BYTES
            sizes[unknown] = payloads.longest if short else payloads.lengths(jobs.ref[unknown])
        return sizes

    def arguments(self, refs: UInt32s) -> list[Arguments]:
        """Return the arguments of some jobs, without those that are not JSON."""
        found = []
        for text in self._engine.shards.payloads.read(refs):
            try:
                found.append(Arguments(*_loads(text.payload)))
            except (ValueError, TypeError):
                continue
        return found

    def names(self, refs: UInt32s) -> Iterable[str]:
        """Return the plain names of some jobs."""
        return (text.name.decode() for text in self._engine.shards.payloads.read(refs))


def ids_of(run_ids: RunIds, pairs: Pairs) -> Octets:
    """Return the run ids of monitors; a fire time that is lived through again has an id of its own."""
    steps = pairs.tag >> STEP_SHIFT
    if not steps.any():
        return run_ids.of_monitors(pairs.ids, pairs.fire_ms)
    suffixes = [b"~%d" % step if step else b"" for step in steps.tolist()]
    rows = zip(pairs.ids.tolist(), pairs.fire_ms.tolist(), suffixes, strict=True)
    return run_ids.of_names([b"monitor:%d@%d%b" % row for row in rows])


def columns_of(
    envelope: Envelope, payloads: Payloads, refs: UInt32s, positions: NDArray[np.intp], keys: Iterable[str]
) -> Columns:
    """Return the pieces of the jobs at ``positions`` of ``refs``; ``keys``: theirs, or no end of empty ones.

    Raises ``Unfit`` for all that do not render.
    """
    texts = payloads.read(refs[positions])
    encoded = envelope.body.of_payloads([text.payload for text in texts])
    pieces, reasons = [], {}
    for position, text, one, key in zip(positions.tolist(), texts, encoded, keys, strict=False):
        if isinstance(one, Exception):
            reasons[position] = reason_of(one)
            continue
        try:
            pieces.append(envelope.pieces(one, text.name.decode(), key))
        except Exception as error:
            reasons[position] = reason_of(error)
    if reasons:
        raise Unfit(reasons)
    return Columns.of(pieces)
