"""Records in files: JSON lines and CSV, both UTF-8, both streamed line by line.

In CSV the first line names the fields, and an empty cell is an empty value. In JSON lines each line is an object. In
CSV, texts that a spreadsheet would evaluate as a formula are prefixed with an apostrophe; reading removes it.
"""

from __future__ import annotations

import csv
import io
import json
import re
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.errors import InvalidMonitor
from django_wheelbeat.database.chunks import chunks_of_ids
from django_wheelbeat.transfer.records import FIELDS, JSON_FIELDS, json_text, record_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from django_wheelbeat.transfer.imports import Given

FORMATS = ("jsonl", "csv")
EXPORT_ROWS = 1_000
CELL_MAX = 16 * 1024 * 1024
"""Maximum characters of one cell; Python's default limit is below that of ``args``."""
_FORMULA = re.compile(r"'*\s*[=+\-@＝＋－＠\t\r\n]")
"""Start of a cell that a spreadsheet may evaluate as a formula, with or without leading apostrophes."""
CONTENT_TYPES = {"jsonl": "application/jsonl; charset=utf-8", "csv": "text/csv; charset=utf-8"}


def format_of(name: str) -> str:
    """Return the format for a file name; JSON lines if its suffix is unknown."""
    return "csv" if name.lower().endswith(".csv") else "jsonl"


def export(monitors: Any, form: str) -> Iterator[str]:
    """Yield the text of a file with all ``monitors`` (a queryset), in parts of EXPORT_ROWS lines."""
    if form == "csv":
        yield _csv([FIELDS])
    every = monitors.model._default_manager.using(monitors.db)
    for ids in chunks_of_ids(monitors, EXPORT_ROWS):
        records = [record_of(monitor) for monitor in every.filter(pk__in=ids).order_by("pk")]
        if form == "csv":
            yield _csv([[_cell(field, record[field]) for field in FIELDS] for record in records])
        else:
            yield "".join(json_text(record) + "\n" for record in records)


def read(lines: Iterable[str], form: str) -> Iterator[Given]:
    """Yield line number and record of each line, or its problem instead of the record; skips empty lines."""
    return _read_csv(lines) if form == "csv" else _read_json(lines)


def _read_json(lines: Iterable[str]) -> Iterator[Given]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield number, InvalidMonitor("line", f"is not valid JSON: {error}")
            continue
        yield number, record if isinstance(record, dict) else InvalidMonitor("line", "is not a JSON object")


def _read_csv(lines: Iterable[str]) -> Iterator[Given]:
    csv.field_size_limit(CELL_MAX)
    reader = csv.reader(lines, strict=True)
    names: list[str] | None = None
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield reader.line_num, InvalidMonitor("line", f"cannot be read: {error}")
            continue
        if not cells:
            continue
        if names is None:
            names = [cell.strip() for cell in cells]
        elif len(cells) != len(names):
            yield reader.line_num, InvalidMonitor("line", f"has {len(cells)} cells, the first line has {len(names)}")
        else:
            yield reader.line_num, dict(zip(names, map(_without_apostrophe, cells), strict=True))


def _cell(field: str, value: Any) -> Any:
    if field in JSON_FIELDS and not isinstance(value, str):
        return json_text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{value}" if _FORMULA.match(value) else value
    return "" if value is None else value


def _without_apostrophe(cell: str) -> str:
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def _csv(rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)  # RFC 4180; both characters are then quoted in a cell
    return text.getvalue()
