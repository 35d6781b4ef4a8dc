"""Interval jobs with offset, bounds and incident, against sets written out fire by fire."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_wheelbeat import Interval
from celery_wheelbeat.schedules.fire_times import fires
from celery_wheelbeat.schedules.intervals import ALWAYS_MS, NEVER_MS, Bounded, count_grid_fires

SPAN_MS = 600
instants = st.integers(-SPAN_MS, SPAN_MS)


def written_out(job: Bounded, base: Interval, until_ms: int) -> list[int]:
    """The definition as a set: incident points up to their end, then base points after the last of them."""
    phase = base.anchor_ms + base.offset_ms + job.offset_ms
    low = -3 * SPAN_MS
    incident = [
        at
        for at in range(low, until_ms + 1)
        if job.incident_interval_ms and (at - phase) % job.incident_interval_ms == 0 and at <= job.incident_until_ms
    ]
    last = incident[-1] if incident else low
    ordinary = [at for at in range(last + 1, until_ms + 1) if (at - phase) % base.interval_ms == 0]
    return [at for at in incident + ordinary if job.start_ms <= at < job.end_ms]


@pytest.mark.promise("a-schedule-is-a-pure-function")
@settings(max_examples=200)
@given(
    interval_ms=st.integers(1, 200),
    anchor_ms=instants,
    offset_ms=st.integers(0, 200),
    start_ms=st.one_of(st.just(ALWAYS_MS), instants),
    end_ms=st.one_of(st.just(NEVER_MS), instants),
    incident_interval_ms=st.one_of(st.just(0), st.integers(1, 100)),
    incident_until_ms=instants,
    after_ms=instants,
)
def test_fires_are_exactly_the_set(
    *,
    interval_ms: int,
    anchor_ms: int,
    offset_ms: int,
    start_ms: int,
    end_ms: int,
    incident_interval_ms: int,
    incident_until_ms: int,
    after_ms: int,
) -> None:
    base = Interval(interval_ms / 1000, anchor_ms=anchor_ms)
    job = Bounded(base, offset_ms, start_ms, end_ms, incident_interval_ms, incident_until_ms)
    until_ms = 2 * SPAN_MS
    expected = [at for at in written_out(job, base, until_ms) if at > after_ms]
    found = []
    for fire_ms in fires(job, after_ms):
        if fire_ms > until_ms:
            break
        found.append(fire_ms)
    assert found == expected
    plain = Bounded(base, offset_ms)
    if job == plain:
        assert count_grid_fires(after_ms, until_ms, interval_ms, anchor_ms, offset_ms) == len(expected)
