"""A million lines in and out: memory that does not grow with their number. Minutes of real time."""

from __future__ import annotations

import io
import json
import logging
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

LINES = int(os.environ.get("WHEELBEAT_SOAK_LINES", "1000000"))
WARM_LINES = 5_000
GROWTH_MAX_BYTES = 48 * 1024 * 1024
"""A name and its line would take more than 150 bytes in memory: three times this for a million lines."""


def run(command: str, *words: str, **options: Any) -> str:
    from django.core.management import call_command

    out = io.StringIO()
    call_command(command, *words, stdout=out, stderr=out, **options)
    return out.getvalue()


def write(path: Path, first: int, count: int) -> None:
    with path.open("w") as file:
        for number in range(first, first + count):
            name = f"monitor number {number:09d} of a shop with a long name.example"
            record = {"name": name, "task": "shop.check", "interval": "5m", "kwargs": {"url": f"https://{number}.x/"}}
            file.write(json.dumps(record) + "\n")


def resident_bytes(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


@contextmanager
def bounded_growth(what: str) -> Iterator[None]:
    """Fail where the peak of the block lies too far above what was resident before."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident_bytes("VmRSS")
    yield
    grown = resident_bytes("VmHWM") - before
    logger.info("%s: %.1f MB more at its peak, for %d lines", what, grown / 1024 / 1024, LINES)
    assert grown < GROWTH_MAX_BYTES, f"{what}: {grown} bytes"


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.postgres
def test_a_million_lines_go_in_and_out_in_bounded_memory(pg: Any, tmp_path: Path) -> None:
    from django_wheelbeat.models import Monitor

    warm, given, exported = (tmp_path / name for name in ("warm.jsonl", "given.jsonl", "exported.jsonl"))
    write(warm, 0, WARM_LINES)
    write(given, WARM_LINES, LINES)
    assert f"{WARM_LINES} new" in run("wheelbeat_import", str(warm))
    run("wheelbeat_export", str(exported))
    with bounded_growth("import"):
        output = run("wheelbeat_import", str(given))
    assert f"Imported: {LINES} new, 0 changed, 0 unchanged, 0 refused." in output
    assert Monitor.objects.count() == LINES + WARM_LINES
    with bounded_growth("export"):
        run("wheelbeat_export", str(exported))
    with exported.open() as file:
        assert sum(1 for _ in file) == LINES + WARM_LINES
    with bounded_growth("look through what was exported"):
        output = run("wheelbeat_import", str(exported), dry_run=True)
    assert f"0 new, 0 changed, {LINES + WARM_LINES} unchanged, 0 refused." in output
