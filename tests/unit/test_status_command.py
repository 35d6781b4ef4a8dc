"""``celery -A proj wheelbeat status``: what it says beside the reports themselves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from celery_wheelbeat.commands import cli


def a_report(version: str, age_s: float = 1.0) -> dict[str, Any]:
    return {"age_s": age_s, "status": {"tzdata": version}}


@pytest.mark.parametrize(
    ("reports", "reply"),
    [
        ([a_report("2025b"), a_report("2026a")], "Beats read different time zone databases: 2025b, 2026a"),
        ([a_report("2025b"), a_report("2025b")], ""),
        ([a_report("2025b"), a_report("2026a", age_s=3_600)], ""),
    ],
)
def test_beats_that_read_different_zone_databases_are_reported(
    reports: list[dict[str, Any]], reply: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B22: they disagree about when a job is due, and so about its run ids."""
    monkeypatch.setattr(cli, "_reports", lambda *_: reports)
    monkeypatch.setattr(cli, "status_text", lambda *_, **__: "one beat")
    done = CliRunner().invoke(cli.status, obj=SimpleNamespace(app=None))
    assert done.exit_code == 0, done.output
    assert done.output.count("one beat") == len(reports)
    assert done.stderr[: len(reply)] == reply
    assert bool(reply) == bool(done.stderr)
