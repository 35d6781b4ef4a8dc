"""``tags__tag="eu"``: monitors that carry exactly this tag; tags are stored as ``a,b,c``.

On PostgreSQL in the words of the index ``wheelbeat_monitor_by_tag``; the other databases read the column.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Lookup


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
