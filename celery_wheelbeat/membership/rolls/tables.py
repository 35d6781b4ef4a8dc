"""The statements that make and drop the table of the roll, for migrations and for the command line."""

from __future__ import annotations

from celery_wheelbeat.runtime.statements import read_statements


def statement_of(vendor: str, name: str) -> str:
    """Return a statement for ``vendor`` (``postgresql mysql sqlite``); ``name``: ``create_table`` or ``drop_table``."""
    return read_statements("celery_wheelbeat.membership.rolls", f"sql/{vendor}.sql")[name]
