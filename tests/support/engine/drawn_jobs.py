"""Definitions drawn by Hypothesis for property tests of the engine: every kind, around one instant."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from celery_wheelbeat.jobs.definitions import Misfire
from celery_wheelbeat.schedules.cron import Cron
from celery_wheelbeat.schedules.kinds import ALWAYS_MS, NEVER_MS, Kind
from support.engine.definitions import Job

SPRING_FORWARD_MS = 1_774_745_700_000
"""2026-03-29 00:55 UTC, five minutes before Berlin skips an hour."""
FALL_BACK_MS = 1_792_889_700_000
"""2026-10-25 00:55 UTC, five minutes before Berlin repeats an hour."""

IDS = st.integers(-3, 24)
INTERVALS = st.sampled_from(
    [1_000, 2_000, 7_000, 10_000, 30_000, 60_000, 61_000, 300_000, 3_600_000, 5, 400, 1_500, 61_700]
)
CRONS = st.sampled_from(
    [
        Cron("* * * * *"),
        Cron("*/5 * * * *"),
        Cron("1-59/7 * * * *"),
        Cron("30 2 * * *", "Europe/Berlin"),
        Cron("*/20 2 * * *", "Europe/Berlin"),
        Cron("0 4 * * *"),
        Cron("59 0 29 2 *"),
    ]
)
INCIDENTS = st.sampled_from([1_000, 3_000, 10_000, 70, 1_250])


@st.composite
def jobs(draw: st.DrawFn, now_ms: int) -> Job:
    """Draw a definition whose instants lie around ``now_ms``."""
    near = st.integers(-200_000, 400_000).map(lambda ms: now_ms + ms)
    job = Job(
        draw(IDS),
        enabled=draw(st.sampled_from([True, True, True, False])),
        misfire=draw(st.sampled_from(Misfire)),
        effective_from_ms=draw(st.sampled_from([0, 0, now_ms - 30_000, now_ms])),
    )
    kind = draw(st.sampled_from([Kind.INTERVAL, Kind.INTERVAL, Kind.INTERVAL, Kind.CRON, Kind.ONCE]))
    if kind == Kind.INTERVAL:
        interval_ms = draw(INTERVALS)
        anchor_ms = draw(st.sampled_from([0, 0, now_ms + 123, 250]))
        offset_ms = draw(st.sampled_from([None, None, 0, 700])) if not anchor_ms else 0
        job = replace(job, interval_ms=interval_ms, anchor_ms=anchor_ms, offset_ms=offset_ms)
    elif kind == Kind.CRON:
        job = replace(job, cron=draw(CRONS), offset_ms=draw(st.sampled_from([0, 17_000, 29_000])))
    else:
        job = replace(job, at_ms=draw(near))
    if draw(st.integers(0, 3)) == 0:
        job = replace(
            job, start_ms=draw(st.one_of(st.just(ALWAYS_MS), near)), end_ms=draw(st.one_of(st.just(NEVER_MS), near))
        )
    if kind != Kind.ONCE and draw(st.integers(0, 3)) == 0:
        incident_ms = draw(INCIDENTS)
        if not job.interval_ms or incident_ms < job.interval_ms:
            job = replace(job, incident_interval_ms=incident_ms, incident_until_ms=draw(near))
    return job
