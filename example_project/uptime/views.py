"""The status page: every monitor with its state, latency and recent checks; sites that are down come first."""

from __future__ import annotations

from collections import defaultdict, deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.http import HttpResponseBadRequest
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST

from django_wheelbeat.models import Monitor

from .alerts import remind
from .models import Alert, Check, Site

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

REMIND_MINUTES = (1, 10, 60)
WINDOW = timedelta(minutes=10)
BARS = 24
ALERTS = 5


def status_page(request: HttpRequest) -> HttpResponse:
    """Render the state of all monitors with four queries, regardless of their number."""
    now = timezone.now()
    recent: dict[int, deque[Check]] = defaultdict(lambda: deque(maxlen=BARS))
    for check in Check.objects.filter(fire_at__gte=now - WINDOW).order_by("fire_at"):
        recent[check.monitor_id].append(check)
    sites = {site.monitor_id: site for site in Site.objects.all()}
    monitors = Monitor.objects.filter(task="uptime.tasks.check_url").order_by("name").defer("headers", "options")
    rows = [_row(monitor, sites.get(monitor.pk), list(recent[monitor.pk]), now) for monitor in monitors]
    rows.sort(key=lambda row: row["rank"])
    down = sum(row["state"] == "down" for row in rows)
    context = {
        "rows": rows,
        "now": now,
        "down": down,
        "up": sum(row["state"] == "up" for row in rows),
        "alerts": Alert.objects.order_by("-at")[:ALERTS],
        "remind_minutes": REMIND_MINUTES,
    }
    return render(request, "uptime/status.html", context)


@require_POST
def remind_view(request: HttpRequest, monitor_id: int) -> HttpResponse:
    """Remind in some minutes that a site is down."""
    minutes = request.POST.get("minutes", "")
    if minutes not in map(str, REMIND_MINUTES):
        return HttpResponseBadRequest("minutes: expected one of the offered numbers")
    with transaction.atomic():
        site = get_object_or_404(Site, pk=monitor_id, up=False)
        remind(site, timezone.now() + timedelta(minutes=int(minutes)))
    return redirect("status")


def _row(monitor: Monitor, site: Site | None, checks: list[Check], now: Any) -> dict[str, Any]:
    state = "paused" if not monitor.enabled else "waiting" if site is None else "up" if site.up else "down"
    return {
        "monitor": monitor,
        "site": site,
        "checks": checks,
        "state": state,
        "rank": ("down", "up", "waiting", "paused").index(state),
        "incident": monitor.incident_until is not None and monitor.incident_until > now,
        "up_share": round(100 * sum(check.up for check in checks) / len(checks)) if checks else None,
    }
