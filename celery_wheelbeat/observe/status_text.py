"""Render a status document as a few lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def status_text(report: Mapping[str, Any], *, alive_s: float) -> str:
    """Return one beat's report (a status row with its age in seconds) as indented lines."""
    status = report["status"]
    runs, lateness, jobs = status["runs"], status["lateness"], status["jobs"]
    silent = report["age_s"] > alive_s and status["state"] != "stopped"
    skipped = ", ".join(f"{reason} {count:,}" for reason, count in runs["skipped"].items()) or "none"
    lines = [
        (
            f"{report['host']} pid {report['pid']}: {status['state']}{' (silent)' if silent else ''},"
            f" reported {report['age_s']:.0f} s ago, version {report['version']}"
        ),
        f"  namespace  {report['namespace']}",
        f"  jobs       {jobs['monitors']:,} monitors, {jobs['entries']:,} entries, {jobs['refused']:,} quarantined",
        (
            f"  runs       {runs['sent']:,} sent, {runs['pending']:,} pending, {runs['expected']:,} expected,"
            f" skipped: {skipped}"
        ),
        (
            f"  lateness   p50 {lateness['p50_s']:.3f} s, p99 {lateness['p99_s']:.3f} s, max {lateness['max_s']:.3f} s"
            f" ({lateness['runs']:,} runs)"
        ),
    ]
    if status.get("later"):  # missing in documents of older versions
        lines.append(_later(status["later"]))
    for name, state in status["destinations"].items():
        away = "closed" if status["state"] == "stopped" else f"not connected: {state['last_error'] or 'no attempt yet'}"
        link = "connected" if state["connected"] else away
        lines.append(f"  {name:<10} {link}, {state['waiting']:,} waiting, {state['in_flight']:,} in flight")
    names = jobs.get("names", {})  # missing in documents of older versions
    for key, reason in jobs["reasons"].items():
        named = f"{key}, {names[key]!r}" if key in names else key
        lines.append(f"  quarantine {named}: {reason}")
    if status["wedged"]:
        lines.append(f"  WEDGED     hung threads: {', '.join(status['wedged'])}")
    if runs["difference"]:
        lines.append(f"  ACCOUNT    differs by {runs['difference']:,} runs")
    return "\n".join(lines)


def _later(later: Mapping[str, Any]) -> str:
    """Return the line about one-off runs."""
    about = {"estimate": "about ", "at least": "at least "}.get(later["precision"], "")
    ahead = "not counted yet" if later["ahead"] is None else f"{about}{later['ahead']:,} ahead"
    return f"  one-off    {ahead}, {later['cancelled']:,} cancelled, oldest unsent {later['oldest_s']:,} s"
