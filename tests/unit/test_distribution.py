"""The distribution: what the wheel contains, that it works installed, and the types that user code sees."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "celery_wheelbeat", ROOT / "django_app" / "django_wheelbeat")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distribution that users install."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_holds_both_packages_with_their_data(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        f"{package.name}/{path.relative_to(package).as_posix()}"
        for package in PACKAGES
        for path in package.rglob("*")
        if "__pycache__" not in path.parts and path.suffix != ".po" and path.is_file()
    }
    assert wanted - held == set()
    assert {"celery_wheelbeat/py.typed", "django_wheelbeat/py.typed", "django_wheelbeat/models.py"} <= held
    packages = {name.split("/")[0] for name in held if not name.split("/")[0].endswith(".dist-info")}
    assert packages == {"celery_wheelbeat", "django_wheelbeat"}


USER_CODE = """
from datetime import timedelta
from celery_wheelbeat import run_id
from django_wheelbeat.database.actors import acting
from django_wheelbeat.models import Monitor

with acting("ann", "maintenance"):
    monitor: Monitor = Monitor.objects.create(name="a", args=("x",), kwargs={"site": 1}, tags={"eu"})
    paused: int = Monitor.objects.tagged("eu").filter(name="a").pause("maintenance")
monitor.speed_up("10s", timedelta(hours=1))
text: str = run_id("monitor:1", 0, "site") + monitor.run_now()
wrong: int = monitor.run_now()
"""
PLUGIN = """
[mypy]
plugins = mypy_django_plugin.main
[mypy.plugins.django-stubs]
django_settings_module = support.site.settings
"""


@pytest.mark.parametrize("config", ["[mypy]", PLUGIN], ids=["plain", "with the plug-in of django-stubs"])
def test_user_code_sees_the_types_of_both_packages(tmp_path: Path, config: str) -> None:
    (tmp_path / "mypy.ini").write_text(config)
    (tmp_path / "user.py").write_text(USER_CODE)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", ".cache", "user.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    (error, _count) = done.stdout.splitlines()
    assert error.startswith("user.py:12: error: Incompatible types in assignment"), done.stdout + done.stderr


PROBE = """
import celery_wheelbeat, django, django_wheelbeat, importlib.metadata
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_wheelbeat"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    USE_TZ=True,
)
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django_wheelbeat.models import Change, Monitor
Monitor.objects.create(name="probe", task="tasks.probe", interval_ms=1000)
assert Change.objects.count() == 1, "the trigger is missing"
(scheduler,) = importlib.metadata.entry_points(group="celery.beat_schedulers", name="wheelbeat")
print(celery_wheelbeat.__file__, django_wheelbeat.__file__, scheduler.load().__name__, sep="\\n")
"""


def test_installed_wheel_works_without_the_source_tree(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", str(target), str(wheel)], check=True)
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    engine, app, scheduler = done.stdout.split()
    assert Path(engine).is_relative_to(target)
    assert Path(app).is_relative_to(target)
    assert scheduler == "WheelScheduler"
