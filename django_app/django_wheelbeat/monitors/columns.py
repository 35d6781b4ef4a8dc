"""A point in time, stored as UTC whatever ``USE_TZ`` and ``TIME_ZONE`` say.

Django stores naive local time on databases without time zones when ``USE_TZ`` is off. A beat that reads the table
itself, and triggers that write "now", must not have to know that; and a local hour that comes twice is no instant.
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
    """The database's clock, in UTC on every vendor (MariaDB's ``CURRENT_TIMESTAMP`` is in the session's zone)."""

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """Render for SQLite, with six decimals as Django writes them: instants are compared as text there."""
        template = "STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f000', 'NOW')"
        return self.as_sql(compiler, connection, template=template, **context)

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """Render for MariaDB."""
        return self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **context)


class LocalTime(models.Func):
    """The column of an instant as local time of ``TIME_ZONE``, where ``USE_TZ`` is off and the column has no zone."""

    output_field = models.DateTimeField()
    arity = 1

    def as_sql(self, compiler: Any, connection: Any, **_context: Any) -> Any:  # noqa: ARG002 - Django's signature
        """Leave the column as it is: the session of PostgreSQL is in that zone."""
        return compiler.compile(self.source_expressions[0])

    def as_sqlite(self, compiler: Any, connection: Any, **_context: Any) -> Any:  # noqa: ARG002 - Django's signature
        """Render for SQLite, with the functions that Django installs for the case that ``USE_TZ`` is on."""
        column, parameters = compiler.compile(self.source_expressions[0])
        parts = [f"django_datetime_cast_{part}({column}, %s, 'UTC')" for part in ("date", "time")]
        return f"({' || CHAR(32) || '.join(parts)})", (*parameters, get_default_timezone_name()) * 2

    def as_mysql(self, compiler: Any, connection: Any, **_context: Any) -> Any:  # noqa: ARG002 - Django's signature
        """Render for MariaDB, whose tables of time zones Django needs as well where ``USE_TZ`` is on."""
        column, parameters = compiler.compile(self.source_expressions[0])
        return f"CONVERT_TZ({column}, '+00:00', %s)", (*parameters, get_default_timezone_name())


class InstantField(models.DateTimeField):
    """``DateTimeField`` whose column holds UTC. Python sees what Django shows elsewhere: aware, or naive local.

    Parts of it in look-ups (``once_at__date``) are local, too. Of ``TruncDay("once_at")``, ``ExtractHour``, ``dates()``
    and ``datetimes()`` that is true only where ``USE_TZ`` is on, and on PostgreSQL.
    """

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        """Turn an instant into the column's value: UTC, naive where the database knows no zones."""
        if not prepared:
            value = self.get_prep_value(value)
        if not isinstance(value, datetime):
            return super().get_db_prep_value(value, connection, prepared=True)
        aware = value.replace(tzinfo=get_default_timezone()) if value.tzinfo is None else value
        if connection.features.supports_timezones:
            return super().get_db_prep_value(aware, connection, prepared=True)
        return aware.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:  # noqa: ARG002 - Django's signature
        """Take back what the backend's own converter made of the column under another zone."""
        if connection.features.supports_timezones or not isinstance(value, datetime):
            return value
        instant = value.replace(tzinfo=UTC)
        return instant if settings.USE_TZ else instant.astimezone(get_default_timezone()).replace(tzinfo=None)

    def get_transform(self, lookup_name: str) -> Any:
        """Take the parts of an instant from its local time, where Django would take those of the column."""
        transform = super().get_transform(lookup_name)
        if transform is None or settings.USE_TZ:
            return transform
        return lambda lhs: transform(LocalTime(lhs))


class TagLookup(Lookup):
    """One tag of a column that holds several."""

    lookup_name = "tag"
    prepare_rhs = False

    def as_postgresql(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        """Look the tag up in the index."""
        column, column_parameters = self.process_lhs(compiler, connection)
        tag, tag_parameters = self.process_rhs(compiler, connection)
        return f"string_to_array({column}, ',') @> ARRAY[{tag}::text]", [*column_parameters, *tag_parameters]

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        """Search the text, with a comma at both ends of it and of the tag."""
        column, column_parameters = self.process_lhs(compiler, connection)
        tag, tag_parameters = self.process_rhs(compiler, connection)
        around = "CONCAT(',', {}, ',')" if connection.vendor == "mysql" else "(',' || {} || ',')"
        statement = f"INSTR({around.format(column)}, {around.format(tag)}) > 0"
        return statement, [*column_parameters, *tag_parameters]


def default_timezone() -> str:
    """Return ``CELERY_TIMEZONE`` where the project sets it, else the zone of its Celery app, else ``TIME_ZONE``.

    A zone that has no IANA name, like a ``datetime.timezone``, cannot be stored: it is passed over.
    """
    chosen = getattr(settings, "CELERY_TIMEZONE", None) or current_app.conf.timezone
    return zone_name(chosen or None) or str(settings.TIME_ZONE)
