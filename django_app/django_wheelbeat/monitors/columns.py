"""Column types and lookups of monitors: instants in UTC regardless of ``USE_TZ`` and ``TIME_ZONE``, and tags.

With ``USE_TZ`` off, Django stores naive local time on databases without time zones. Beats read the table and triggers
write "now" without knowing Django's settings, and a local hour that occurs twice is ambiguous; hence always UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from celery import current_app
from django.conf import settings
from django.db import models
from django.db.models import Lookup
from django.db.models.functions import Now
from django.utils.timezone import get_default_timezone, get_default_timezone_name

from celery_wheelbeat.sources.beat_schedule.celery_zones import zone_name


class UtcNow(Now):
    """The database's clock in UTC on every vendor (MariaDB's ``CURRENT_TIMESTAMP`` is in the session's zone)."""

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """Render for SQLite with six decimals, as Django writes them: SQLite compares instants as text."""
        template = "STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f000', 'NOW')"
        return self.as_sql(compiler, connection, template=template, **context)

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """Render for MariaDB."""
        return self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **context)


class LocalTime(models.Func):
    """An instant column as local time in ``TIME_ZONE``; for ``USE_TZ = False`` and columns without a zone."""

    output_field = models.DateTimeField()
    arity = 1

    def as_sql(self, compiler: Any, connection: Any, **_context: Any) -> Any:  # noqa: ARG002 - Django's signature
        """Return the column unchanged: the PostgreSQL session is already in that zone."""
        return compiler.compile(self.source_expressions[0])

    def as_sqlite(self, compiler: Any, connection: Any, **_context: Any) -> Any:  # noqa: ARG002 - Django's signature
        """Render for SQLite with the functions that Django installs for ``USE_TZ = True``."""
        column, parameters = compiler.compile(self.source_expressions[0])
        parts = [f"django_datetime_cast_{part}({column}, %s, 'UTC')" for part in ("date", "time")]
        return f"({' || CHAR(32) || '.join(parts)})", (*parameters, get_default_timezone_name()) * 2

    def as_mysql(self, compiler: Any, connection: Any, **_context: Any) -> Any:  # noqa: ARG002 - Django's signature
        """Render for MariaDB; needs its time zone tables, as Django does with ``USE_TZ = True``."""
        column, parameters = compiler.compile(self.source_expressions[0])
        return f"CONVERT_TZ({column}, '+00:00', %s)", (*parameters, get_default_timezone_name())


class InstantField(models.DateTimeField):
    """``DateTimeField`` whose column holds UTC. Python values follow ``USE_TZ``: aware, or naive local time.

    Lookups of a part (``once_at__date``) use local time, too. ``TruncDay("once_at")``, ``ExtractHour``, ``dates()`` and
    ``datetimes()`` do so only with ``USE_TZ = True`` or on PostgreSQL.
    """

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        """Convert an instant to the column's value: UTC, naive if the database has no time zones."""
        if not prepared:
            value = self.get_prep_value(value)
        if not isinstance(value, datetime):
            return super().get_db_prep_value(value, connection, prepared=True)
        aware = value.replace(tzinfo=get_default_timezone()) if value.tzinfo is None else value
        if connection.features.supports_timezones:
            return super().get_db_prep_value(aware, connection, prepared=True)
        return aware.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:  # noqa: ARG002 - Django's signature
        """Undo the backend's own conversion, which assumes that the column is in another zone."""
        if connection.features.supports_timezones or not isinstance(value, datetime):
            return value
        instant = value.replace(tzinfo=UTC)
        return instant if settings.USE_TZ else instant.astimezone(get_default_timezone()).replace(tzinfo=None)

    def get_transform(self, lookup_name: str) -> Any:
        """Apply transforms to the local time; with ``USE_TZ = False`` Django would apply them to the column."""
        transform = super().get_transform(lookup_name)
        if transform is None or settings.USE_TZ:
            return transform
        return lambda lhs: transform(LocalTime(lhs))


class TagLookup(Lookup):
    """``tags__tag="x"``: rows whose comma-separated tags contain exactly ``x``."""

    lookup_name = "tag"
    prepare_rhs = False

    def as_postgresql(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        """Render an array containment, which uses the index."""
        column, column_parameters = self.process_lhs(compiler, connection)
        tag, tag_parameters = self.process_rhs(compiler, connection)
        return f"string_to_array({column}, ',') @> ARRAY[{tag}::text]", [*column_parameters, *tag_parameters]

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        """Render a text search, with a comma added at both ends of column and tag."""
        column, column_parameters = self.process_lhs(compiler, connection)
        tag, tag_parameters = self.process_rhs(compiler, connection)
        around = "CONCAT(',', {}, ',')" if connection.vendor == "mysql" else "(',' || {} || ',')"
        statement = f"INSTR({around.format(column)}, {around.format(tag)}) > 0"
        return statement, [*column_parameters, *tag_parameters]


def default_timezone() -> str:
    """Return ``CELERY_TIMEZONE`` if the project sets it, else the zone of its Celery app, else ``TIME_ZONE``.

    A zone without an IANA name, such as a ``datetime.timezone``, cannot be stored and is ignored.
    """
    chosen = getattr(settings, "CELERY_TIMEZONE", None) or current_app.conf.timezone
    return zone_name(chosen or None) or str(settings.TIME_ZONE)
