"""``manage.py wheelbeat_import_redbeat``: import the entries of redbeat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import current_app
from django.core.management.base import CommandError, CommandParser

from celery_wheelbeat.errors import InvalidSetting
from celery_wheelbeat.settings.urls import split_url
from celery_wheelbeat.sources.beat_schedule.celery_zones import timezone_of
from django_wheelbeat.transfer.commands import ImportCommand
from django_wheelbeat.transfer.notes import Notes
from django_wheelbeat.transfer.redbeat import redbeat_entries, source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_wheelbeat.transfer.imports import Given


class Command(ImportCommand):
    """May be repeated until the switch: changes only differing monitors, and never redbeat's keys."""

    prunes = True
    help = "Import the entries of redbeat as monitors; run it again to import later changes."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument(
            "--url", default=None, help="Redis of redbeat (default: redbeat_redis_url, else the broker)"
        )
        parser.add_argument("--prefix", default=None, help="default: redbeat_key_prefix, else redbeat:")
        super().add_arguments(parser)

    def handle(self, *_args: Any, url: str | None, prefix: str | None, **options: Any) -> None:
        """Import and print the remarks."""
        from redis import Redis, RedisError  # noqa: PLC0415 - an optional extra

        conf = current_app.conf
        current_app.finalize(auto=True)
        url = url or conf.first("redbeat_redis_url", "REDBEAT_REDIS_URL") or str(conf.broker_url)
        prefix = prefix or conf.first("redbeat_key_prefix", "REDBEAT_KEY_PREFIX") or "redbeat:"
        notes = Notes()
        options["reason"] = options["reason"] or "from redbeat"
        names = frozenset(conf.beat_schedule or {})

        try:
            split_url("the URL of redbeat's Redis", url)
            with Redis.from_url(url, decode_responses=True) as client:
                origin = source(client, prefix, names)

                def entries() -> Iterator[Given]:
                    notes.clear()  # they are read twice
                    return redbeat_entries(client, prefix, timezone_of(current_app), names, notes.note)

                report = self.run_import(entries, options, despite_errors=True, source=origin.name)
                for line in notes.lines():
                    self.stdout.write(line)
                self.report_missing(origin, report, options)
        except (InvalidSetting, RedisError, ValueError) as error:
            raise CommandError(f"redbeat cannot be read: {error}") from error
