"""The demo's status line, read from the row that the beat writes every two seconds."""

from __future__ import annotations

import json
from typing import Any

SILENT_S = 6.0


def status_line(pid: int) -> str | None:
    """Return the latest status line of the beat with process id ``pid``, or None until it reports that it runs."""
    from django.utils import timezone

    from django_wheelbeat.models import Beat

    row = Beat.objects.filter(pid=pid).order_by("-seen_at").first()
    status = json.loads(row.status) if row else {}
    if status.get("state") in (None, "starting", "loading"):
        return None
    now = timezone.now()
    age_s = (now - row.seen_at).total_seconds()
    silent = f" · last heard {age_s:.0f} s ago" if age_s > SILENT_S else ""
    return f"{now:%H:%M:%S}  {describe(status)}{silent}"


def describe(status: dict[str, Any]) -> str:
    """Return a status document (``docs/reference/status.md``) as one line."""
    jobs, runs, lateness = status["jobs"], status["runs"], status["lateness"]
    skipped = runs["skipped"]
    parts = [
        f"{jobs['monitors'] + jobs['entries']} jobs",
        f"sent {runs['sent']}",
        f"skipped {sum(skipped.values())}" + (f" ({_counts(skipped)})" if skipped else ""),
        f"pending {runs['pending']}",
        f"lateness p50 {_span(lateness['p50_s'])} p99 {_span(lateness['p99_s'])}",
        f"lag {_span(status['source'].get('lag_s', 0.0))}",
        f"watchdog {sum(status['watchdog'].values())}",
    ]
    if runs["difference"]:
        parts.append(f"NOT ACCOUNTED {runs['difference']}")
    down = [name for name, state in status["destinations"].items() if not state["connected"]]
    if down:
        parts.append(f"no connection to {', '.join(down)}")
    return " · ".join(parts)


def _counts(skipped: dict[str, int]) -> str:
    return ", ".join(f"{reason} {runs}" for reason, runs in sorted(skipped.items()))


def _span(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
