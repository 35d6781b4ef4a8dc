"""Builds wheel and sdist and runs the example project from each, in a fresh environment of every supported Python.

The example project starts its admin, a worker and a beat (``example_project/demo.py``). It passes when the worker has
executed runs that the beat sent, and when every process ended in good order. Neither the packages of this tree nor an
environment of it are importable then. ``python -m tools.package`` needs no server.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

from tools.pythons import find_pythons, line_of_absent

ROOT = Path(__file__).resolve().parent.parent
RUNS = 20
DEADLINE_S = 180.0
END_S = 60.0

WHERE = """
import celery_wheelbeat, django_wheelbeat
print(celery_wheelbeat.__file__, django_wheelbeat.__file__, sep="\\n")
"""


class Failed(Exception):
    """A step did not work; the message says which one, and shows what it printed."""


def step(what: str, *command: object, cwd: Path, seconds: float = 600.0) -> str:
    """Run a command that must succeed, and return what it printed."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env=environment(cwd), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=seconds, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode:
        raise Failed(f"{what}: {' '.join(words)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def environment(folder: Path) -> dict[str, str]:
    """Return the environment variables of a process that must not find the packages of this tree."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "WHEELBEAT_", "DJANGO_"))
    }
    return {**kept, "PYTHONUNBUFFERED": "1", "WHEELBEAT_EXAMPLE_VAR": str(folder / "var")}


def venv(interpreter: str, folder: Path) -> Path:
    """Make an environment and return its interpreter."""
    step("environment", interpreter, "-m", "venv", folder, cwd=folder.parent)
    return folder / "bin/python"


def built(interpreter: str, folder: Path) -> list[Path]:
    """Return the wheel and the sdist of this tree."""
    python = venv(interpreter, folder / "build")
    step("build tools", python, "-m", "pip", "install", "--quiet", "build", cwd=folder)
    step("build", python, "-m", "build", "--sdist", "--wheel", "--outdir", folder / "dist", ROOT, cwd=folder)
    (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    return [wheel, sdist]


def executed(database: Path) -> int:
    """Return how many probes the workers of the example project have recorded."""
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as rows:
        return int(rows.execute("SELECT count(*) FROM uptime_check").fetchone()[0])
    return 0


def run_example(python: Path, folder: Path) -> int:
    """Run the example project until its worker has executed enough; return the number of executed runs."""
    project = folder / "example_project"
    shutil.copytree(ROOT / "example_project", project, ignore=shutil.ignore_patterns("var", "__pycache__"))
    log = folder / "demo.log"
    with log.open("wb") as out:
        demo = subprocess.Popen(
            [python, "demo.py"], cwd=project, env=environment(folder), stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        deadline_s = time.monotonic() + DEADLINE_S
        while (runs := executed(folder / "var/example.sqlite3")) < RUNS:
            if demo.poll() is not None or time.monotonic() > deadline_s:
                raise Failed(f"the example project executed {runs} runs of {RUNS}:\n{log.read_text()}")
            time.sleep(0.2)
        demo.send_signal(signal.SIGTERM)
        if demo.wait(END_S):
            raise Failed(f"the example project ended with {demo.returncode}:\n{log.read_text()}")
    finally:
        if demo.poll() is None:
            demo.send_signal(signal.SIGTERM)  # it then ends what it started
            demo.wait(END_S)
    if "NOT ACCOUNTED" in log.read_text():
        raise Failed(f"runs are not accounted for:\n{log.read_text()}")
    return runs


def tried(distribution: Path, interpreter: str, folder: Path) -> int:
    """Install a distribution into a fresh environment and run the example project from it; return the executed runs."""
    folder.mkdir()
    python = venv(interpreter, folder / "venv")
    step("install", python, "-m", "pip", "install", "--quiet", f"{distribution}[django]", cwd=folder)
    step("dependencies", python, "-m", "pip", "check", cwd=folder)
    for path in step("import", python, "-c", WHERE, cwd=folder).split():
        if not Path(path).is_relative_to(folder / "venv"):
            raise Failed(f"{path} is not the installed package")
    return run_example(python, folder)


def main() -> int:
    """Try both distributions with every Python; return the exit code."""
    pythons = find_pythons()
    if absent := line_of_absent(pythons):
        print(absent)
    if not pythons:
        raise Failed("no supported Python with its module venv was found on PATH or among the versions of pyenv")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="wheelbeat-package-") as name:
        folder = Path(name)
        distributions = built(next(iter(pythons.values())), folder)
        for version, interpreter in pythons.items():
            for distribution in distributions:
                started_s = time.monotonic()
                try:
                    outcome = (
                        f"{tried(distribution, interpreter, folder / f'{version}-{distribution.suffix}')} runs executed"
                    )
                except Failed as error:
                    outcome, failed = f"FAILED: {error}", failed + 1
                print(
                    f"Python {version}, {distribution.name}: {outcome}, {time.monotonic() - started_s:.0f} s",
                    flush=True,
                )
    print(f"{len(pythons) * len(distributions) - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as error:
        sys.exit(f"package: {error}")
