"""Log lines, headers and errors are an API: the pages of the reference name all of them, as the code has them."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import NamedTuple

import celery_wheelbeat
from celery_wheelbeat import errors
from celery_wheelbeat.jobs import headers
from celery_wheelbeat.settings import PREFIX, specifications

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PACKAGES = (ROOT / "celery_wheelbeat", ROOT / "django_app" / "django_wheelbeat")
LEVELS = {"info": "INFO", "warning": "WARNING", "error": "ERROR", "critical": "CRITICAL", "exception": "ERROR"}
OUTAGE = re.compile(r"^%s: (%s; trying again|works again after %\.1f s)$")


class Line(NamedTuple):
    level: str
    text: str


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def logged_lines() -> set[Line]:
    """Return level and template of every line that the code can log at INFO or above."""
    calls = [
        node
        for package in PACKAGES
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args
    ]
    templates = [
        Line(LEVELS[call.func.attr], ast.literal_eval(call.args[0]))
        for call in calls
        if call.func.attr in LEVELS and ast.unparse(call.func.value).endswith("logger")
    ]
    events = re.findall(
        r'Outage\("([^"]+)"', (PACKAGES[0] / "sources" / "changelog" / "reader.py").read_text(encoding="utf-8")
    )
    lines = {line for line in templates if not OUTAGE.match(line.text)}
    return lines | {
        line._replace(text=line.text.replace("%s", event, 1))
        for line in templates
        if OUTAGE.match(line.text)
        for event in events
    }


def shown_lines() -> set[Line]:
    """Return level and text of every line in the page, those of Celery's own excepted."""
    rows = re.findall(r"^\| ([A-Z]+) \| `([^`]+)` \| (.*) \|$", page("log-events.md"), flags=re.MULTILINE)
    return {Line(level, text) for level, text, meaning in rows if "Celery's own line" not in meaning}


def fits(shown: Line, logged: Line) -> bool:
    pattern = ".*".join(re.escape(part) for part in shown.text.split("…"))
    return shown.level == logged.level and re.fullmatch(pattern, logged.text) is not None


def test_every_line_that_is_logged_is_in_the_page() -> None:
    shown = shown_lines()
    missing = {line for line in logged_lines() if not any(fits(one, line) for one in shown)}
    # Celery has the same words for one run; the fast lane says them in its place
    assert missing == {Line("INFO", "Scheduler: Sending due task %s (%s)")}


def test_the_page_shows_no_line_that_nothing_logs() -> None:
    logged = logged_lines()
    assert {one for one in shown_lines() if not any(fits(one, line) for line in logged)} == set()


def test_every_header_is_in_the_page() -> None:
    ours = {value for name, value in vars(headers).items() if name.isupper() and str(value).startswith("wheel")}
    literals = {
        node.value
        for path in (PACKAGES[0] / "dispatch").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.fullmatch(r"wheelbeat_(fire_ms|nonce|[a-z]+_header)|celery_beat_task|periodic_task_name", node.value)
    }
    shown = set(re.findall(r"`([a-z_]+)`", page("headers.md")))
    assert len(ours) >= 8
    assert ours | literals <= shown
    settings = {f"{PREFIX}{name}" for name in specifications()}
    assert {name for name in shown if name.startswith("wheelbeat_")} <= ours | settings


def test_every_field_about_the_source_is_in_the_status_page() -> None:
    keys = {
        key.value
        for path in ("sources/changelog/reader.py", "sources/files/file_io.py")
        for function in ast.walk(ast.parse((PACKAGES[0] / path).read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef) and function.name == "status"
        for node in ast.walk(function)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    }
    assert {"kind", "path", "lag_s", "drift_found"} <= keys
    assert set(re.findall(r"`source\.(\w+)`", page("status.md"))) == keys


def test_every_error_is_in_the_page_under_its_parents() -> None:
    for module in pkgutil.walk_packages(celery_wheelbeat.__path__, "celery_wheelbeat."):
        importlib.import_module(module.name)
    found: set[type[Exception]] = set()
    waiting: list[type[Exception]] = [errors.WheelbeatError]
    while waiting:
        one = waiting.pop()
        found.add(one)
        waiting += [sub for sub in one.__subclasses__() if sub.__module__.startswith("celery_wheelbeat")]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", page("exceptions.md"), flags=re.MULTILINE))
    public = {one for one in found if not one.__name__.startswith("_")}
    assert set(rows) == {one.__name__ for one in public}
    for one in public:
        assert re.findall(r"`(\w+)`", rows[one.__name__]) == [parent.__name__ for parent in one.__bases__]
        assert inspect.getdoc(one)
