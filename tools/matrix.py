"""Runs the tests with supported versions of Python, Django and Celery: ``python -m tools.matrix oldest|newest|all``.

``all`` runs everything that needs no browser in each combination. ``newest`` runs what depends on the version of Django
in the newest one, and prints its output if a test fails.
``oldest`` only makes the environment of the oldest one, in which tests of ``make test`` start beats and workers.
Environments are made again when the dependencies in ``pyproject.toml`` or the interpreter change.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from tools.pythons import find_pythons, line_of_absent

ROOT = Path(__file__).resolve().parent.parent
OLDEST_CELERY = "5.5"

NEEDS_NO_BROWSER = ["tests/unit", "tests/property", "tests/integration", "tests/acceptance/test_whole_path.py"]
ADMIN = "tests/integration/admin"
ANY_DJANGO = ("any_row", "python_values", "transfer", "transfer_soak", "import_celery_beat", "agreement_celery_beat")
"""Tests of rows, values and files, which look the same to each version of Django."""
DEPENDS_ON_DJANGO = [
    ADMIN,
    *(f"--ignore={ADMIN}/test_{name}.py" for name in ANY_DJANGO),
    f"--deselect={ADMIN}/test_admin_list.py::test_a_hundred_thousand_monitors_cost_a_few_queries",
    "tests/acceptance/test_whole_path.py::test_a_monitor_fires_is_edited_and_is_deleted",
]
NO_SERVERS = ("postgres", "mysql", "redis", "amqp")


class Failed(Exception):
    """An environment could not be made."""


@dataclass(frozen=True)
class Combination:
    """Versions that are tested together."""

    python: str
    django: str
    celery: str

    @property
    def name(self) -> str:
        """Name of its environment."""
        return f"py{self.python}-django{self.django}-celery{self.celery}"

    @property
    def folder(self) -> Path:
        """Folder of its environment."""
        oldest = self.celery == OLDEST_CELERY
        return ROOT / (".venv-celery55" if oldest else f".venv-matrix/{self.name}")

    @property
    def allows_celery_beat(self) -> bool:
        """Whether django-celery-beat can be installed, which requires Django < 6."""
        return self.django.startswith("5.")

    @property
    def requirements(self) -> list[str]:
        """Return what pip installs: the package, every extra, what the tests need."""
        group = "test" if self.allows_celery_beat else "test-without-celery-beat"
        pins = (f"Django=={self.django}.*", f"celery=={self.celery}.*", f"kombu=={self.celery}.*")
        return ["--editable", ".[all]", "--group", group, "--group", "types", *pins]

    @property
    def left_out(self) -> tuple[str, ...]:
        """Markers of the tests that this combination cannot run."""
        celery57 = () if self.celery == "5.7" else ("celery57",)
        return celery57 if self.allows_celery_beat else (*celery57, "django_celery_beat")


@dataclass(frozen=True)
class Outcome:
    """Numbers of tests of one run."""

    passed: int
    failed: int
    skipped: int
    seconds: float


def combinations(pythons: list[str]) -> list[Combination]:
    """Return the oldest combination that these Python versions can run, one between, and the newest.

    Django 6 requires Python 3.12. With one Python, the combinations differ in the versions of Celery.
    """
    oldest, between, newest = pythons[0], pythons[len(pythons) // 2], pythons[-1]
    return [
        Combination(oldest, "5.2", OLDEST_CELERY),
        Combination(between, "5.2" if between == "3.11" else "6.0", "5.6"),
        Combination(newest, "5.2" if newest == "3.11" else "6.1", "5.7"),
    ]


def prepared(combination: Combination, interpreter: str) -> Path:
    """Return the interpreter of the combination's environment, which is made if there is none, or an outdated one."""
    python, stamp = combination.folder / "bin/python", combination.folder / "installed"
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = repr([interpreter, combination.requirements, declared["project"], declared["dependency-groups"]])
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"Installing {combination.name} …", flush=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in (
        [interpreter, "-m", "venv", "--clear", str(combination.folder)],
        [*pip, "--upgrade", "pip>=25.1"],
        [*pip, *combination.requirements],
    ):
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            raise Failed(f"{combination.name}: {' '.join(command)} failed")
    stamp.write_text(wanted)
    return python


def tested(python: Path, tests: list[str], left_out: tuple[str, ...], *, quiet: bool) -> Outcome:
    """Run the tests that have none of the markers ``left_out``. ``quiet``: print their output only if one fails."""
    report = python.parent.parent / "results.xml"
    report.unlink(missing_ok=True)
    without = " and ".join(f"not {marker}" for marker in left_out)
    options = ["-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider", "-m", without]
    started_s = time.monotonic()
    done = subprocess.run(
        [str(python), "-m", "pytest", *options, f"--junitxml={report}", *tests],
        cwd=ROOT,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
        check=False,
    )
    ended = done.returncode
    seconds = time.monotonic() - started_s
    if quiet and ended:
        print(done.stdout, flush=True)
    suite = ET.parse(report).find("testsuite") if report.exists() else None
    if suite is None:
        raise Failed(f"{python}: pytest ended with {ended} and wrote no report")
    count = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    failed = count["failures"] + count["errors"]
    return Outcome(
        passed=count["tests"] - failed - count["skipped"],
        failed=failed or int(ended != 0),
        skipped=count["skipped"],
        seconds=seconds,
    )


def table(outcomes: dict[Combination, Outcome]) -> str:
    """Return the outcomes as text, a combination a line."""
    rows = [f"{'combination':<32}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}"]
    for combination, outcome in outcomes.items():
        numbers = f"{outcome.passed:>8}{outcome.failed:>8}{outcome.skipped:>9}{outcome.seconds:>9.0f}"
        without = ", ".join(combination.left_out)
        rows.append(f"{combination.name:<32}{numbers}" + (f"  without the tests marked {without}" if without else ""))
    return "\n".join(rows)


def main(which: str) -> int:
    """Make and test the environments; return the exit code."""
    pythons = find_pythons()
    if not pythons:
        raise Failed("no supported Python with its module venv was found on PATH or among the versions of pyenv")
    oldest, between, newest = combinations([*pythons])
    if which == "oldest":
        prepared(oldest, pythons[oldest.python])
        return 0
    absent = line_of_absent(pythons)
    if which == "newest" and newest.python == "3.11":
        print(f"{absent} The main environment has the newest versions that Python 3.11 can run.")
        return 0
    if absent:
        print(absent)
    chosen = [newest] if which == "newest" else [oldest, between, newest]
    outcomes = {}
    for combination in chosen:
        python = prepared(combination, pythons[combination.python])
        if which == "newest":
            left_out = ("soak", *NO_SERVERS, *combination.left_out)
            outcomes[combination] = tested(python, DEPENDS_ON_DJANGO, left_out, quiet=True)
        else:
            left_out = ("soak", "browser", *combination.left_out)
            outcomes[combination] = tested(python, NEEDS_NO_BROWSER, left_out, quiet=False)
    print(f"\n{table(outcomes)}")
    return int(any(outcome.failed for outcome in outcomes.values()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=["oldest", "newest", "all"])
    try:
        sys.exit(main(parser.parse_args().which))
    except Failed as error:
        sys.exit(f"matrix: {error}")
