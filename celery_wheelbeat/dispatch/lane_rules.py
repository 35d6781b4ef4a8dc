"""Reasons for which a job takes the celery lane, and limits of the fast lane.

Each reason is a sentence about one job; docs/howto/lanes.md gives the remedy for each. ``fast_lane.lane_choice``
decides which of them applies.
"""

from __future__ import annotations

ENTRY = "it is an entry of beat_schedule, whose objects are the user's and may change at any moment"
ONE_OFF = "it is a one-off job, done after its first confirmed run"
EXPIRES_NEXT = "it expires at its next fire time, which differs from run to run"
HANDED_OUT = "somebody asked the scheduler for its entry, and may write to it"
UNFIT = "its arguments do not render"
FORMS_MAX = 1_000
"""Most message forms with an envelope; each costs some milliseconds and some kilobytes."""
TOO_MANY_FORMS = f"more than {FORMS_MAX:,} kinds of messages are in use, which differ in exchange or other options"
CHECKED_IN = "Sentry checks in for its runs (monitor_beat_tasks; exclude_beat_tasks leaves jobs out)"

KIND_SHIFT = 2
"""Low bits of a kind: the overlap policy, which is a header of the message. The high bits are the route index."""
