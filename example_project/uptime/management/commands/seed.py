"""``manage.py seed``: 200 monitors of the target server, with many kinds of schedules."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand

from django_wheelbeat.models import Monitor

if TYPE_CHECKING:
    from collections.abc import Iterator

SHOPS = ["anchor", "birch", "cedar", "delta", "ember", "fjord", "grove", "harbor", "iris", "juniper"]
PAGES = ["home", "login", "search", "cart", "checkout", "account", "api/orders", "api/stock", "images", "health"]
PACES = [(10_000, 4), (30_000, 8), (60_000, 5), (300_000, 1)]
"""Interval in milliseconds → number of monitors, out of eighteen, that have it."""
CRONS = [
    ("* * * * *", "UTC"),
    ("*/2 * * * *", "UTC"),
    ("*/5 9-17 * * mon-fri", "Europe/Berlin"),
    ("0,30 * * * *", "Asia/Kolkata"),
    ("15 */3 * * *", "America/New_York"),
    ("0 7 * * mon-fri", "Asia/Tokyo"),
    ("30 2 * * *", "Europe/London"),
    ("0 0 1 * *", "Australia/Lord_Howe"),
    ("@hourly", "UTC"),
    ("45 23 L * *", "America/Sao_Paulo"),
]


class Command(BaseCommand):
    """Creates the monitors of the demo; existing ones keep their edits, except for the target's address."""

    help = __doc__

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--target", required=True, help="base URL of the target server")

    def handle(self, *args: Any, target: str, **options: Any) -> None:
        wanted = {monitor.name: monitor for monitor in monitors(target.rstrip("/"))}
        kept = list(Monitor.objects.filter(name__in=wanted))
        for monitor in kept:
            monitor.kwargs = wanted.pop(monitor.name).kwargs
        Monitor.objects.bulk_update(kept, ["kwargs"])
        for monitor in wanted.values():
            monitor.full_clean()
        Monitor.objects.bulk_create(wanted.values())
        self.stdout.write(f"{len(wanted)} monitors made, {len(kept)} kept")


def monitors(target: str) -> Iterator[Monitor]:
    """Return 180 interval monitors and 20 crons, unsaved."""
    paces = [pace for pace, share in PACES for _ in range(share)]
    for number in range(180):
        shop, page = SHOPS[number % 10], PAGES[number // 10 % 10]
        region = "eu" if number < 100 else "us"
        yield monitor(f"{shop} {page} ({region})", target, number, interval_ms=paces[number % len(paces)])
    for number in range(20):
        cron, zone = CRONS[number % 10]
        name = f"{SHOPS[number % 10]} {'report' if number < 10 else 'sitemap'}"
        yield monitor(name, target, 180 + number, cron=cron, timezone=zone)


def monitor(name: str, target: str, number: int, **schedule: Any) -> Monitor:
    """Return one monitor; every ninth site flaps, one is always down, one hangs up."""
    behaviour = {17: "down", 58: "hangup"}.get(
        number, "flap" if number % 9 == 4 else "slow" if number % 9 == 7 else "ok"
    )
    return Monitor(
        name=name,
        task="uptime.tasks.check_url",
        kwargs=json.dumps({"url": f"{target}/{behaviour}/{number}"}),
        expires_next=True,
        tags=behaviour,
        **schedule,
    )
