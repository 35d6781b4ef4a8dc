"""``manage.py wheelbeat_import_redbeat``: take over the entries of redbeat."""

from __future__ import annotations

from typing import Any

from celery import current_app
from django.core.management.base import CommandError, CommandParser

from celery_wheelbeat.sources.entries import timezone_of
from django_wheelbeat.transfer.commands import ImportCommand
from django_wheelbeat.transfer.redbeat import redbeat_entries


class Command(ImportCommand):
    """May be repeated until the switch: it changes what differs, and redbeat's keys never."""

    help = "Import the entries of redbeat as monitors; run it again to keep both in step."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument(
            "--url", default=None, help="Redis of redbeat (default: redbeat_redis_url, else the broker)"
        )
        parser.add_argument("--prefix", default=None, help="default: redbeat_key_prefix, else redbeat:")
        super().add_arguments(parser)

    def handle(self, *_args: Any, url: str | None, prefix: str | None, **options: Any) -> None:
        """Import, and say what needs a look."""
        from redis import Redis, RedisError  # noqa: PLC0415 - an optional extra

        conf = current_app.conf
        current_app.finalize(auto=True)
        url = url or conf.get("redbeat_redis_url") or str(conf.broker_url)
        prefix = prefix or conf.get("redbeat_key_prefix") or "redbeat:"
        notes: dict[tuple[str, str], None] = {}
        options["reason"] = options["reason"] or "from redbeat"
        names = frozenset(conf.beat_schedule or {})

        def note(name: str, text: str) -> None:
            notes.setdefault((name, text))

        try:
            with Redis.from_url(url, decode_responses=True) as client:
                self.run_import(
                    lambda: redbeat_entries(client, prefix, timezone_of(current_app), names, note),
                    options,
                    despite_errors=True,
                )
        except (RedisError, ValueError) as error:
            raise CommandError(f"redbeat cannot be read: {error}") from error
        for name, text in notes:
            self.stdout.write(f"Note: {name}: {text}.")
