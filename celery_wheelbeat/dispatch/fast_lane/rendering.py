"""Renders the messages of a batch: from runs and their jobs' columns to the fillings of an envelope.

Parts are rendered from the current payloads and cached (``part_cache``). A job that does not render is reported with
the reason and never stops the others. Sends nothing and decides nothing.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from kombu.utils.json import loads

from celery_wheelbeat.dispatch.fast_lane.batches import Draft, Load, block_ends, in_order, make, stretches
from celery_wheelbeat.dispatch.lane_rules import FORMS_MAX
from celery_wheelbeat.dispatch.messages.envelope_maker import Arguments
from celery_wheelbeat.dispatch.messages.part_cache import SKELETONS_MAX, PartCache, PartColumns
from celery_wheelbeat.dispatch.messages.patterns import NOTHING, Own, own_of
from celery_wheelbeat.dispatch.messages.run_ids import rows_of
from celery_wheelbeat.dispatch.messages.single_use import used_once
from celery_wheelbeat.dispatch.messages.template import Unsendable
from celery_wheelbeat.dispatch.pending import STEP_SHIFT
from celery_wheelbeat.errors import reason_of
from celery_wheelbeat.jobs.identity import LATER_IDS_FROM
from celery_wheelbeat.jobs.rows import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from numpy.typing import NDArray

    from celery_wheelbeat.dispatch.fast_lane.envelope_registry import Group
    from celery_wheelbeat.dispatch.messages.envelope import Envelope
    from celery_wheelbeat.dispatch.messages.patterns import Form
    from celery_wheelbeat.dispatch.messages.run_ids import Octets, RunIds
    from celery_wheelbeat.dispatch.pending import PendingRuns
    from celery_wheelbeat.engine.engine import Engine
    from celery_wheelbeat.engine.payloads import Payloads
    from celery_wheelbeat.engine.shards import JobColumns
    from celery_wheelbeat.jobs.definitions import Route
    from celery_wheelbeat.schedules.kinds import Int64s, UInt32s

_NO_ID = "0" * 36
"""In place of the id of a run whose job has left; it is not sent."""
_SHORT_BYTES = 1_000
"""If no payload is longer than this, sizes are taken as the longest instead of being read one by one (1.1 µs each)."""
_loads: Callable[[bytes], Any] = loads


class Runs(NamedTuple):
    """Runs to be sent, as columns of equal length."""

    pairs: PendingRuns
    jobs: JobColumns
    ids: Octets
    """Run ids, n × 36."""

    @classmethod
    def of(cls, run_ids: RunIds, pairs: PendingRuns, jobs: JobColumns) -> Runs:
        """Return runs with their ids."""
        return cls(pairs, jobs, ids_of(run_ids, pairs))


class Rendered(NamedTuple):
    """The columns of some runs' messages, and the runs that have no message."""

    load: Load
    """Has to be rendered before the next call: its parts may lie in the cache."""
    positions: NDArray[np.intp]
    """Positions of the runs in ``load``."""
    unfit: dict[int, str]
    """Position → why its job does not render."""
    unsendable: dict[int, str]
    """Position → why no broker takes the message of its job, from either lane."""


class Composed(NamedTuple):
    """The messages of runs, by block, and the runs that have no message."""

    drafts: Sequence[Draft]
    """One for each block that has a message."""
    unfit: dict[int, str]
    unsendable: dict[int, str]
    expired: list[int]
    """Positions of runs whose expiry has passed."""
    forms: dict[Form, NDArray[np.intp]]
    """Forms in use → positions of some of their runs."""


class Unfit(Exception):
    """Jobs that do not render: position → exception."""

    def __init__(self, errors: dict[int, Exception]) -> None:
        super().__init__(errors)
        self.errors = errors


class JobMessages:
    """Renders messages with a part cache."""

    def __init__(self, engine: Engine, *, limit_bytes: int) -> None:
        """``limit_bytes``: memory for cached parts."""
        self._limit_bytes = limit_bytes
        self._engine = engine
        self._payloads = engine.shards.payloads
        self.bodies = self._new_cache()
        self._numbers: dict[object, int] = {}
        """Identity of an envelope → its number in the cache. A number is never reused within one cache."""
        self._given = 0

    def compose(self, groups: Iterable[Group], runs: Runs, ends: Sequence[int], now: datetime) -> Composed:
        """Render the messages of ``groups``, whose answers are envelopes, into one draft per block.

        ``ends``: position behind the last run of each block.
        """
        drafts = [Draft() for _ in ends]
        composed = Composed(drafts, {}, {}, [], {})
        for group in (part for whole in groups for part in _by_use(whole, runs.pairs)):
            ordered = in_order(group.positions, ends, group.placed)
            rendered = self.render(group.form, group.answer, ordered, runs)  # type: ignore[arg-type]
            composed.unfit.update(rendered.unfit)
            composed.unsendable.update(rendered.unsendable)
            load, expired = rendered.load.split_expired(now)
            positions = rendered.positions
            if expired is not None:
                composed.expired.extend(positions[expired].tolist())
                positions = positions[~expired]
            if not len(positions):
                continue
            composed.forms[group.form] = positions
            made = make(load, now)
            for block, where, key in stretches(positions, ends, group.placed):
                drafts[block].add(made, where, positions[where], key)
        return composed._replace(drafts=[draft for draft in drafts if draft.parcels])

    def block_ends(self, jobs: JobColumns, most_runs: int) -> list[int]:
        """Return where the blocks of a batch each end; see ``batches.block_ends``."""
        return block_ends(self._sizes(jobs), most_runs)

    def render(self, form: Form, envelope: Envelope, positions: NDArray[np.intp], runs: Runs) -> Rendered:
        """Return the columns for the messages of the runs at ``positions``, whose jobs all have ``form``."""
        number, payloads = self._number_of(envelope), self._payloads
        pairs, jobs, ids = runs
        unfit: dict[int, str] = {}
        unsendable: dict[int, str] = {}
        while True:
            refs = jobs.ref[positions]

            def pieces_of(
                missing: NDArray[np.intp], refs: UInt32s = refs, positions: NDArray[np.intp] = positions
            ) -> PartColumns:
                at = positions[missing]
                keys = map(key_of, pairs.ids[at].tolist()) if envelope.names_key else repeat("")
                owns = self._owns(form, jobs.route[at])
                return columns_of(
                    envelope, payloads, refs, missing, zip(owns, keys, strict=False), links=form.has_links
                )

            try:
                if len(positions) and (pairs.ids[positions] >= LATER_IDS_FROM).all():
                    columns = used_once(form, envelope, payloads.read(refs), pieces_of)
                else:
                    columns = self.bodies.columns(refs, number, envelope.opening_width, pieces_of)
            except Unfit as found:
                for at, error in found.errors.items():
                    if isinstance(error, Unsendable):
                        unsendable[int(positions[at])] = str(error)
                    else:
                        unfit[int(positions[at])] = reason_of(error)
                positions = np.delete(positions, list(found.errors))
                continue
            every = len(positions) == len(ids)
            ids, fire_ms = (ids, pairs.fire_ms) if every else (ids[positions], pairs.fire_ms[positions])
            return Rendered(Load(envelope, columns, ids, fire_ms), positions, unfit, unsendable)

    def _owns(self, form: Form, routes: UInt32s) -> Iterable[Own | Exception]:
        """Yield the job-specific values of each route under ``form``, or the exception of reading them."""
        if not form.has_own:
            return repeat(NOTHING)
        return (_own_of(self._engine.routes[index], form) for index in routes.tolist())

    def _number_of(self, envelope: Envelope) -> int:
        """Return the number of an envelope; envelopes that make the same messages share one."""
        number = self._numbers.get(envelope.identity)
        if number is None:
            if len(self._numbers) >= 2 * FORMS_MAX:
                self._numbers.clear()
            if self._given > SKELETONS_MAX:
                self.bodies, self._given = self._new_cache(), 0  # all numbers are free in it
                self._numbers.clear()
            number = self._numbers[envelope.identity] = self._given
            self._given += 1
        return number

    def _new_cache(self) -> PartCache:
        """Return an empty cache that forgets the payloads that are released."""
        cache = PartCache(self._limit_bytes)
        self._payloads.on_release = cache.forget
        return cache

    def _sizes(self, jobs: JobColumns) -> Int64s:
        """Estimate the bytes of the parts of each job, from the cache or its payload; renders nothing."""
        payloads = self._payloads
        sizes = self.bodies.sizes(jobs.ref)
        (unknown,) = np.nonzero(jobs.enabled & (sizes == 0))
        if len(unknown):
            short = payloads.longest <= _SHORT_BYTES
            sizes[unknown] = payloads.longest if short else payloads.lengths(jobs.ref[unknown])
        return sizes

    def arguments(self, form: Form, jobs: JobColumns, positions: NDArray[np.intp]) -> list[Arguments]:
        """Return the arguments of some jobs with ``form``; jobs whose arguments are not valid JSON are left out."""
        found = []
        texts = self._engine.shards.payloads.read(jobs.ref[positions])
        for text, own in zip(texts, self._owns(form, jobs.route[positions]), strict=False):
            with suppress(Exception):  # reported when the job's first message is rendered
                args, kwargs = _loads(text.payload)
                found.append(Arguments(args, kwargs, _sound(own)))
        return found

    def names(self, refs: UInt32s) -> Iterable[str]:
        """Yield the plain names of jobs, by payload ref."""
        return (text.name.decode() for text in self._engine.shards.payloads.read(refs))


def _by_use(group: Group, pairs: PendingRuns) -> Iterator[Group]:
    """Yield the runs of ``group`` whose parts are used once apart from the others."""
    once = pairs.ids[group.positions] >= LATER_IDS_FROM
    if once.all() or not once.any():
        yield group
        return
    yield group._replace(positions=group.positions[once])
    yield group._replace(positions=group.positions[~once])


def ids_of(run_ids: RunIds, pairs: PendingRuns) -> Octets:
    """Return the run ids (n × 36): those of later runs were stored, the others are computed."""
    later = pairs.ids >= LATER_IDS_FROM
    if not later.any():
        return _computed_ids(run_ids, pairs)
    ids = np.empty((len(pairs.ids), len(_NO_ID)), np.uint8)
    if not later.all():
        ids[~later] = _computed_ids(run_ids, pairs.at(~later))
    ids[later] = rows_of([run_ids.own.get(job_id, _NO_ID).encode() for job_id in pairs.ids[later].tolist()])
    return ids


def _computed_ids(run_ids: RunIds, pairs: PendingRuns) -> Octets:
    """Return the run ids of monitors; those of ``step`` n have the suffix ``~n``, see ``DueBatch.step``."""
    steps = pairs.tag >> STEP_SHIFT
    if not (steps > 0).any():
        return run_ids.of_monitors(pairs.ids, pairs.fire_ms)
    suffixes = [b"~%d" % step if step > 0 else b"" for step in steps.tolist()]
    rows = zip(pairs.ids.tolist(), pairs.fire_ms.tolist(), suffixes, strict=True)
    return run_ids.of_names([b"monitor:%d@%d%b" % row for row in rows])


def _own_of(route: Route, form: Form) -> Own | Exception:
    try:
        return own_of(route, form)
    except Exception as error:  # concerns one job
        return error


def _sound(own: Own | Exception) -> Own:
    if isinstance(own, Exception):
        raise own
    return own


def columns_of(
    envelope: Envelope,
    payloads: Payloads,
    refs: UInt32s,
    positions: NDArray[np.intp],
    owns: Iterable[tuple[Own | Exception, str]] = repeat((NOTHING, "")),
    *,
    links: bool = False,
) -> PartColumns:
    """Render the parts of the jobs at ``positions`` of ``refs``. ``owns``: (job-specific values, key) per job.

    ``links``: whether the job-specific values include signatures, which are part of the body. Raises ``Unfit`` with
    every job that does not render.
    """
    texts = payloads.read(refs[positions])
    each = list(islice(owns, len(texts)))
    linked = [own if isinstance(own, Own) else NOTHING for own, _ in each] if links else []
    encoded = envelope.body.of_payloads([text.payload for text in texts], linked)
    pieces, errors = [], {}
    for position, text, one, (own, key) in zip(positions.tolist(), texts, encoded, each, strict=True):
        if isinstance(one, Exception):
            errors[position] = one
            continue
        try:
            pieces.append(envelope.pieces(one, text.name.decode(), _sound(own)._replace(key=key)))
        except Exception as error:
            errors[position] = error
    if errors:
        raise Unfit(errors)
    return PartColumns.of(pieces)
