"""Matrix: which versions are tested together on a machine, and which interpreters count."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tools.matrix import Combination, combinations
from tools.pythons import SUPPORTED, find_pythons, line_of_absent

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("pythons", "chosen"),
    [
        (["3.11", "3.12", "3.13"], [("3.11", "5.2", "5.5"), ("3.12", "6.0", "5.6"), ("3.13", "6.1", "5.7")]),
        (["3.11", "3.13"], [("3.11", "5.2", "5.5"), ("3.13", "6.0", "5.6"), ("3.13", "6.1", "5.7")]),
        (["3.12"], [("3.12", "5.2", "5.5"), ("3.12", "6.0", "5.6"), ("3.12", "6.1", "5.7")]),
        (["3.11"], [("3.11", "5.2", "5.5"), ("3.11", "5.2", "5.6"), ("3.11", "5.2", "5.7")]),
    ],
)
def test_a_machine_tests_the_oldest_and_newest_versions_that_its_pythons_can_run(
    pythons: list[str], chosen: list[tuple[str, str, str]]
) -> None:
    assert combinations(pythons) == [Combination(*versions) for versions in chosen]


def test_what_a_combination_cannot_run_is_left_out_by_name() -> None:
    oldest, between, newest = combinations(["3.11", "3.12", "3.13"])
    assert "test" in oldest.requirements
    assert oldest.left_out == ("celery57",)
    assert between.left_out == ("celery57", "django_celery_beat")
    assert "test-without-celery-beat" in newest.requirements
    assert newest.left_out == ("django_celery_beat",)


def test_an_interpreter_counts_only_if_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = next(version for version in SUPPORTED if version != f"{sys.version_info.major}.{sys.version_info.minor}")
    for folder, line in (("shims", "exit 127"), ("bin", f"echo {other} /opt/python"), ("late", f"echo {other} /late")):
        (tmp_path / folder).mkdir()
        program = tmp_path / folder / f"python{other}"
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", ":".join(str(tmp_path / folder) for folder in ("shims", "bin", "late")))
    assert find_pythons()[other] == "/opt/python"


def test_absent_versions_are_named_in_one_line() -> None:
    assert line_of_absent(["3.12"]) == "Not on this machine, so left out: Python 3.11, 3.13."
    assert line_of_absent(SUPPORTED) == ""
