"""The rules of CONTRIBUTING that a machine can check: sizes, words, clocks, docstrings."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from celery_wheelbeat.engine.packing import Rows

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "celery_wheelbeat", ROOT / "django_app" / "django_wheelbeat")
MODULES = sorted(path for package in PACKAGES for path in package.rglob("*.py") if "migrations" not in path.parts)

MODULE_LINES_MAX = 350
FUNCTION_LINES_MAX = 70

BANNED_WORDS = {
    "next_run_at": "fire_ms: nothing about the next run is stored",
    "due_at": "fire_ms",
    "last_run_at": "the mark; Celery's ScheduleEntry is the only one that has a last_run_at",
}
WORD_EXCEPTIONS = {
    "last_run_at": {
        "sources/beat_schedule/celery_objects.py": "argument of Celery's BaseSchedule.is_due",
        "sources/beat_schedule/celery_schedules.py": "argument of Celery's BaseSchedule.is_due",
        "beat/schedule_view.py": "attribute of Celery's own ScheduleEntry",
        "transfer/celery_beat.py": "column of django-celery-beat",
        "transfer/celery_beat_tables.py": "column of django-celery-beat",
        "transfer/redbeat.py": "key of redbeat's meta",
    },
}
"""Per word: modules (path inside the package) that may use it, and why."""

FOLDER_MODULES_MAX = 12
ROOMS_MAX = 14
"""Twelve, ``later`` and ``membership``."""
LARGE_FOLDERS = {"dispatch/messages", "sources/databases", "admin"}
"""Folders whose modules are alternatives of one another (messages, databases, pages), so that more are easy to find."""

BANNED_FILES = {"utils.py", "helpers.py", "common.py", "misc.py"}

CLOCK_CALLS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "timezone.now", "datetime.datetime.now"}
CLOCK_EXCEPTIONS = {
    "runtime/clock.py": "the one clock",
    "sources/beat_schedule/celery_objects.py": "Celery asks its schedule objects without telling the time",
    "beat/schedule_view.py": "Celery's ScheduleEntry, handed out for a monitor, needs the time",
}
"""Modules of the engine's package that may read the wall clock, and why; others get the time as an argument."""


UNSAFE_WAITS = {"Queue", "LifoQueue", "PriorityQueue", "SimpleQueue", "Event", "Condition", "Semaphore", "Barrier"}
WAIT_EXCEPTIONS = {
    "sources/changelog/bulk_load.py": "the threads that read the initial load; the scheduling thread never comes here",
}
"""Modules that may use what a signal handler can leave locked (see ``mailbox``), and whose threads use it there."""

THREAD_EXCEPTIONS = {"sources/changelog/bulk_load.py": "readers without a loop: they end with the load"}
"""Modules beside ``runtime/owned_thread.py`` that start threads, and why."""


def _name(path: Path) -> str:
    """Path inside its package, with slashes."""
    package = next(package for package in PACKAGES if package in path.parents)
    return path.relative_to(package).as_posix()


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_module_is_short_and_says_its_job(path: Path) -> None:
    tree = _tree(path)
    assert len(path.read_text().splitlines()) <= MODULE_LINES_MAX
    assert ast.get_docstring(tree) or not tree.body, (
        f"{path} has no docstring: say the job, the invariant and what it must never do"
    )
    too_long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert too_long == []


@pytest.mark.parametrize("word", BANNED_WORDS)
def test_banned_word_is_not_used(word: str) -> None:
    allowed = WORD_EXCEPTIONS.get(word, {})
    users = [
        _name(path) for path in MODULES if re.search(rf"\b{word}\b", path.read_text()) and _name(path) not in allowed
    ]
    assert users == [], f"say {BANNED_WORDS[word]}"


def test_modules_are_named_after_what_they_hold() -> None:
    assert [_name(path) for path in MODULES if path.name in BANNED_FILES] == []


def test_a_folder_has_at_most_twelve_modules() -> None:
    folders = {path.parent for path in MODULES}
    counts = {
        folder.relative_to(package).as_posix(): len([path for path in folder.glob("*.py") if path.stem != "__init__"])
        for package in PACKAGES
        for folder in folders
        if folder.is_relative_to(package)
    }
    assert {name: count for name, count in counts.items() if count > FOLDER_MODULES_MAX}.keys() <= LARGE_FOLDERS
    files = [path for path in PACKAGES[0].glob("*.py") if path.stem != "__init__"]
    assert len([*PACKAGES[0].glob("*/__init__.py"), *files]) <= ROOMS_MAX


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_no_two_classes_have_one_name(package: Path) -> None:
    classes = [
        (node.name, _name(path))
        for path in MODULES
        if package in path.parents and "management" not in path.parts
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ClassDef) and node.name not in {"Meta", "Media"}
    ]
    counts = Counter(name for name, _ in classes)
    assert [found for found in classes if counts[found[0]] > 1] == []


def test_only_the_clock_reads_the_clock() -> None:
    readers = {
        _name(path): sorted(calls)
        for path in MODULES
        if PACKAGES[0] in path.parents
        and _name(path) not in CLOCK_EXCEPTIONS
        and (
            calls := {ast.unparse(node.func) for node in ast.walk(_tree(path)) if isinstance(node, ast.Call)}
            & CLOCK_CALLS
        )
    }
    assert readers == {}


def _enums(tree: ast.Module) -> dict[str, set[str]]:
    """Enum classes of a module, each with its bases."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = {node.name: {ast.unparse(base).removeprefix("enum.") for base in node.bases} for node in classes}
    kinds = {"Enum", "Flag", "IntEnum", "IntFlag", "StrEnum"}
    return {name: found for name, of in bases.items() if (found := of & kinds)}


def _members_in_expressions(tree: ast.Module, enums: set[str]) -> list[str]:
    """Members of ``enums`` that are operands (of anything but ``is`` and ``in``) or arguments of a numpy function."""
    identity = (ast.Is, ast.IsNot, ast.In, ast.NotIn)
    found = []
    for node in ast.walk(tree):
        operands: list[ast.expr] = []
        match node:
            case ast.BinOp(left, _, right):
                operands = [left, right]
            case ast.AugAssign(_, _, value):
                operands = [value]
            case ast.Compare(left, ops, comparators) if not all(isinstance(op, identity) for op in ops):
                operands = [left, *comparators]
            case ast.Call(ast.Attribute(ast.Name("np")), arguments, keywords):
                operands = [*arguments, *(keyword.value for keyword in keywords)]
        for operand in operands:
            match operand:
                case ast.Attribute(ast.Name(name), _) if name in enums:
                    found.append(f"line {operand.lineno}: {ast.unparse(operand)}")
    return found


def test_no_enum_member_is_an_operand() -> None:
    """Numpy clears what is raised while it looks at an operand: the SystemExit of a signal handler would vanish."""
    trees = {_name(path): _tree(path) for path in MODULES if PACKAGES[0] in path.parents}
    enums = {name: bases for tree in trees.values() for name, bases in _enums(tree).items()}
    assert {name for name, bases in enums.items() if bases != {"Enum"}} == set(), (
        "numbers are plain ints, see jobs.Kind"
    )
    found = {name: members for name, tree in trees.items() if (members := _members_in_expressions(tree, {*enums}))}
    assert found == {}, "use `is`, or the plain number"


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("flags & A.X", ["A.X"]),
        ("flags |= A.X", ["A.X"]),
        ("(kind == A.X).any()", ["A.X"]),
        ("np.where(more, A.X, less)", ["A.X"]),
        ("np.full(3, fill_value=A.X)", ["A.X"]),
        ("kind is A.X or kind in (A.X, A.Y) or flags & A.X.value or flags & B.X", []),
    ],
)
def test_members_in_expressions_are_found(text: str, members: list[str]) -> None:
    found = _members_in_expressions(ast.parse(text), {"A"})
    assert [place.split(": ")[1] for place in found] == members


COLUMNS = set(Rows._fields)


def _columns_written(tree: ast.Module) -> list[str]:
    """Find what writes to the columns of a table: to an element of one, also through a local name, or to all."""
    named = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def is_table(node: ast.expr) -> bool:
        """Whether ``node`` is all columns of a table; what ``Table.rows`` returns are views of them."""
        node = named.get(node.id, node) if isinstance(node, ast.Name) else node
        return isinstance(node, ast.Attribute) and node.attr in {"columns", "rows"}

    def is_column(node: ast.expr) -> bool:
        node = named.get(node.id, node) if isinstance(node, ast.Name) else node
        return isinstance(node, ast.Attribute) and node.attr in COLUMNS and is_table(node.value)

    found: list[ast.expr] = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Attribute(owner, "put")) if is_table(owner):
                found.append(node.func)
            case ast.Assign(targets=targets):
                found += [target for target in targets if isinstance(target, ast.Attribute) and is_table(target)]
        written = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found += [target for target in written if isinstance(target, ast.Subscript) and is_column(target.value)]
    return [f"line {node.lineno}: {ast.unparse(node)}" for node in found]


def test_only_the_table_writes_its_columns() -> None:
    engine = PACKAGES[0] / "engine"
    found = {path.name: written for path in engine.glob("*.py") if (written := _columns_written(_tree(path)))}
    assert found.keys() == {"table.py"}, "call a method of Table: arm, disable, move_texts"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("shard.table.columns.next_fire[rows] = fires", 1),
        ("shard.table.columns.flags[rows] &= mask", 1),
        ("fires = table.columns.next_fire; fires[rows] = 0", 1),
        ("rows = table.rows; rows.flags[1] = 0", 1),
        ("table.columns.put(rows, new)", 1),
        ("table.columns = other", 1),
        ("fires = table.columns.next_fire[rows]; fires[1] = 0; table.arm(rows, fires)", 0),
    ],
)
def test_writers_of_columns_are_found(text: str, count: int) -> None:
    assert len(_columns_written(ast.parse(text))) == count


def test_no_wait_can_be_left_locked_or_lengthened_by_a_signal() -> None:
    users = {
        _name(path): sorted(names)
        for path in MODULES
        if _name(path) not in WAIT_EXCEPTIONS
        and (names := {name for node in ast.walk(_tree(path)) for name in _names_in(node)} & UNSAFE_WAITS)
    }
    assert users == {}, "use wake.Wake and mailbox.Mailbox"


def test_threads_are_owned() -> None:
    starters = {
        _name(path)
        for path in MODULES
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"Thread", "threading.Thread"}
    }
    assert starters == {"runtime/owned_thread.py", *THREAD_EXCEPTIONS}, "use owned_thread.OwnedThread"


def _names_in(node: ast.AST) -> list[str]:
    """What a node takes from ``queue`` or ``threading``."""
    match node:
        case ast.ImportFrom(module="queue" | "threading", names=names):
            return [name.name for name in names]
        case ast.Attribute(ast.Name("queue" | "threading"), name):
            return [name]
    return []
