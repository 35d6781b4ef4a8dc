"""Export and import of files: what goes out comes in again, errors by line, nothing half done, nothing unchecked."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LIST = "/admin/wheelbeat/monitor/"
PAGE = f"{LIST}import/"


def fill() -> None:
    from django_wheelbeat.models import Monitor

    make = Monitor.objects.create
    texts = {"args": '[1, "é,;\\n"]', "tags": "eu,prod", "description": 'two,\n"lines"'}
    make(name='Zürich, "shop" 😀', task="t", interval_ms=90_000, **texts)
    make(
        name="cron", task="t", cron="30 2 * * mon", timezone="Asia/Tokyo", day_rule="or", expires_next=True, priority=3
    )
    make(name="once", task="t", once_at=datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC), enabled=False, jitter_s=0)
    make(name="sun", task="t", solar_event="sunset", solar_latitude=52.5, solar_longitude=-13.4)
    busy = make(name="busy", task="t", interval_ms=3_600_000, expires_s=12.5, queue="q", headers='{"a": {"b": null}}')
    busy.speed_up("10s", timedelta(hours=1))


def columns() -> list[tuple[Any, ...]]:
    from django_wheelbeat.models import Monitor

    names = [field.attname for field in Monitor._meta.fields if field.attname not in ("id", "effective_from")]
    return list(Monitor.objects.order_by("name").values_list(*names))


def run(command: str, *words: str, **options: Any) -> str:
    from django.core.management import call_command

    out = io.StringIO()
    call_command(command, *words, stdout=out, stderr=out, **options)
    return out.getvalue()


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_what_is_exported_is_imported_as_it_was(any_vendor: Any, tmp_path: Path, form: str) -> None:
    from django_wheelbeat.models import Change, Monitor

    fill()
    path = str(tmp_path / f"monitors.{form}")
    before, changes = columns(), Change.objects.count()
    run("wheelbeat_export", path)
    assert "0 new, 0 changed, 5 unchanged, 0 refused" in run("wheelbeat_import", path)
    assert Change.objects.count() == changes, "nothing differs, nothing is written"
    Monitor.objects.all().delete()
    assert "5 new" in run("wheelbeat_import", path, reason="restored")
    assert columns() == before
    assert Change.objects.latest("id").reason == "restored"


def test_an_import_runs_nothing_that_was_due_before(any_vendor: Any, tmp_path: Path) -> None:
    from django.utils import timezone

    from django_wheelbeat.models import Monitor

    path, later = tmp_path / "monitors.jsonl", (datetime.now(UTC) + timedelta(days=1)).isoformat()
    lines = [("past", "2020-01-02T03:04:05Z"), ("ahead", later)]
    path.write_text("".join(json.dumps({"name": name, "task": "t", "once_at": at}) + "\n" for name, at in lines))
    assert "2 new" in run("wheelbeat_import", str(path))
    past = Monitor.objects.get(name="past")
    assert past.finished_at == past.once_at
    assert Monitor.objects.get(name="ahead").finished_at is None
    assert "2 unchanged" in run("wheelbeat_import", str(path))
    Monitor.objects.update(once_at=timezone.now())
    assert "2 changed" in run("wheelbeat_import", str(path))
    assert Monitor.objects.get(name="past").finished_at is None, "another instant is another run"


def test_an_import_changes_what_differs_and_nothing_else(either: Any, tmp_path: Path) -> None:
    from django_wheelbeat.models import Change, Monitor

    fill()
    path = tmp_path / "some.jsonl"
    path.write_text(
        json.dumps({"name": "cron", "queue": "new", "tags": ["b", "a", "b"]})
        + "\n\n"
        + json.dumps({"name": "added", "task": "t", "interval": "5m", "kwargs": {"url": "x"}, "expires": "1m"})
    )
    changes = Change.objects.count()
    output = run("wheelbeat_import", str(path), dry_run=True)
    assert "Would import: 1 new, 1 changed, 0 unchanged, 0 refused." in output
    assert "+ added" in output
    assert "~ cron: queue: '' → 'new', tags: '' → 'a,b'" in output
    assert Change.objects.count() == changes
    run("wheelbeat_import", str(path))
    cron, added = Monitor.objects.get(name="cron"), Monitor.objects.get(name="added")
    assert (cron.queue, cron.tags, cron.cron, cron.priority) == ("new", "a,b", "30 2 * * mon", 3)
    assert (added.interval_ms, added.kwargs, added.expires_s, added.enabled) == (300_000, '{"url": "x"}', 60.0, True)
    assert Change.objects.count() == changes + 2


BAD = [
    ("not json", "is not valid JSON"),
    ("[1]", "is not a JSON object"),
    ('{"task": "t"}', "is missing"),
    ('{"name": "a", "task": "t"}', "expected exactly one of interval"),
    ('{"name": "b", "task": "t", "interval": "5"}', "has no unit"),
    ('{"name": "c", "task": "t", "cron": "0 0 31 2 *"}', "cron"),
    ('{"name": "d", "task": "t", "interval": "5m", "args": {"a": 1}}', "args"),
    ('{"name": "e", "task": "t", "interval": "5m", "intervall": 1}', "did you mean 'interval'?"),
    ('{"name": "f", "task": "t", "once_at": "2030-01-01T00:00:00"}', "no offset"),
    ('{"name": "g", "task": "t", "interval": "5m", "enabled": "perhaps"}', "neither true nor false"),
    ('{"name": "h", "task": "t", "interval": "5m", "priority": 700}', "outside 0"),
    ('{"name": "i", "task": "t", "interval": "5m", "misfire": "maybe"}', "misfire"),
    ('{"name": "j", "task": "t", "interval": "5m", "queue": 5}', "is not a text"),
    ('{"name": "k", "task": "t", "interval": "5m", "queue": "\\u0000"}', "cannot be stored"),
    ('{"name": "l", "task": "t", "interval": "5m", "description": "\\ud800"}', "cannot be stored"),
    ('{"name": "m", "task": "t", "interval": "5m", "tags": "' + "x" * 300 + '"}', "at most 255"),
    ('{"name": "good", "task": "t", "interval": "5m"}', "is already on line 1"),
    ('{"name": "n", "task": "t", "interval": "5m", "jitter_s": 1000}', "jitter_s"),
    ('{"name": "o", "task": "t", "interval": "5m", "effective_from": "x"}', "is not a field"),
    ('{"name": "p", "task": "t", "interval": "5m", "id": 7}', "is not a field"),
]


def test_errors_are_reported_by_line_and_nothing_is_imported(either: Any, tmp_path: Path) -> None:
    from django.core.management.base import CommandError

    from django_wheelbeat.models import Monitor

    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(['{"name": "good", "task": "t", "interval": "5m"}', *(line for line, _ in BAD)]))
    out = io.StringIO()
    from django.core.management import call_command

    with pytest.raises(CommandError, match="--skip-errors"):
        call_command("wheelbeat_import", str(path), stdout=out, stderr=out)
    output = out.getvalue().splitlines()
    for number, (line, reason) in enumerate(BAD, start=2):
        assert any(text.startswith(f"{number}: ") and reason in text for text in output), (
            number,
            line,
            output[number - 2],
        )
    assert not Monitor.objects.exists()
    assert f"1 new, 0 changed, 0 unchanged, {len(BAD)} refused" in run("wheelbeat_import", str(path), skip_errors=True)
    assert list(Monitor.objects.values_list("name", flat=True)) == ["good"]


def test_csv_knows_its_own_errors(db: Any, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text('\ufeffname,task,interval,args\na,t,5m,"[1,2]"\nb,t\n"c,t,5m\n', encoding="utf-8")
    output = run("wheelbeat_import", str(path), dry_run=True)
    assert "1 new" in output
    assert "3: line: has 2 cells, the first line has 4" in output
    assert "cannot be read" in output


def test_a_million_lines_need_no_more_memory_than_a_block(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from django_wheelbeat.models import Monitor
    from django_wheelbeat.transfer import files, imports

    monkeypatch.setattr(imports, "BLOCK_RECORDS", 10)
    monkeypatch.setattr(files, "EXPORT_ROWS", 10)
    taken = []

    def records() -> Any:
        for number in range(100):
            taken.append(number)
            yield number, {"name": f"m{number:03}", "task": "t", "interval": "1m"}

    importer, blocks = imports.Importer("default"), []
    monkeypatch.setattr(importer, "_write_all", lambda planned: blocks.append((len(planned), len(taken))))
    importer.apply(records())
    assert blocks == [(10, 10 * (block + 1)) for block in range(10)], "each block is written before the next is read"
    imports.Importer("default").apply(records())
    pieces = list(files.export(Monitor.objects.all(), "jsonl"))
    assert [piece.count("\n") for piece in pieces] == [10] * 10


def test_names_are_kept_with_the_line_of_their_first_appearance() -> None:
    from django_wheelbeat.transfer.names import Names

    with Names() as names:
        assert [names.first_line(name, line) for line, name in enumerate(["a", "É", "a", "É", "e"], start=1)] == [
            1, 2, 1, 2, 5,
        ]  # fmt: skip


def test_a_name_that_somebody_else_adds_meanwhile_is_an_error_of_its_line(
    any_vendor: Any, login: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_wheelbeat.models import Monitor
    from django_wheelbeat.transfer import imports

    looked = imports.Importer._planned
    passes = []

    def look_and_lose(importer: Any, *given: Any) -> Any:
        planned = looked(importer, *given)
        passes.append(planned)
        if len(passes) == 2:  # the pass that writes
            Monitor.objects.create(name="second", task="theirs", interval_ms=1_000)
        return planned

    monkeypatch.setattr(imports.Importer, "_planned", look_and_lose)
    text = "".join(f'{{"name": "{name}", "task": "t", "interval": "5m"}}\n' for name in ("first", "second", "third"))
    response = upload(login(), text, **{"import": "1", "reason": "race"})
    assert response.status_code == 200, "it is shown, not lost"
    report = response.context["report"]
    assert [(problem.line, problem.name) for problem in report.problems] == [(2, "second")]
    assert "added during this import" in report.problems[0].reason
    assert (report.created, report.refused) == (2, 1)
    tasks = dict(Monitor.objects.values_list("name", "task"))
    assert tasks == {"first": "t", "second": "theirs", "third": "t"}


def upload(browser: Any, text: str | bytes, name: str = "monitors.jsonl", **more: Any) -> Any:
    from django.core.files.uploadedfile import SimpleUploadedFile

    content = text.encode() if isinstance(text, str) else text
    return browser.post(PAGE, {"file": SimpleUploadedFile(name, content)} | more)


def test_the_page_looks_first_and_then_imports(either: Any, login: Callable[..., Any]) -> None:
    from django.contrib.admin.models import LogEntry

    from django_wheelbeat.models import Change, Monitor

    fill()
    browser = login()
    text = '{"name": "cron", "queue": "<b>"}\n{"name": "<i>new", "task": "t", "interval": "5m"}\nbroken <u>\n'
    page = upload(browser, text, look="1").content.decode()
    assert "1 new, 1 changed, 0 unchanged, 1 lines with errors." in page
    assert "&lt;i&gt;new" in page
    assert "queue:  → &lt;b&gt;" in page or "queue: – → &lt;b&gt;" in page
    assert "<td>3</td>" in page
    changes = Change.objects.count()
    assert upload(browser, text, **{"import": "1"}).status_code == 200, "errors stop it"
    assert Change.objects.count() == changes
    done = upload(browser, text, **{"import": "1", "skip_errors": "on", "reason": "move"}).content.decode()
    assert "Imported, except for the lines with errors" in done
    assert "<td>3</td>" in done
    assert Monitor.objects.get(name="cron").queue == "<b>"
    assert set(Change.objects.order_by("id")[changes:].values_list("actor", "reason")) == {("ann", "move")}
    (line,) = LogEntry.objects.all()
    assert (line.user.get_username(), line.object_repr, line.object_id) == ("ann", "2 monitors", None)
    assert line.get_change_message() == "Imported: 1 new, 1 changed. move"
    assert upload(browser, '{"name": "cron", "queue": "<b>"}', **{"import": "1"}).status_code == 302
    assert LogEntry.objects.count() == 1, "nothing changed"


def test_the_page_refuses_what_is_too_much_or_no_text(
    db: Any, login: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_wheelbeat.admin import transfer_page

    browser = login()
    assert "UTF-8" in str(upload(browser, b"\xff\xfe\x00").context["form"].errors)
    monkeypatch.setattr(transfer_page, "LINES_MAX", 2)
    assert "wheelbeat_import" in str(upload(browser, "\n\n\n").context["form"].errors)
    monkeypatch.setattr(transfer_page, "BYTES_MAX", 3)
    assert "wheelbeat_import" in str(upload(browser, "{}{}").context["form"].errors)
    assert browser.post(PAGE, {"dry-run": "1"}).context["form"].errors["file"]


@pytest.mark.parametrize(
    ("only", "may"),
    [
        (("view_monitor",), False),
        (("import_monitor",), False),
        (("import_monitor", "add_monitor"), False),
        (("add_monitor", "change_monitor"), False),
        (("import_monitor", "add_monitor", "change_monitor"), True),
    ],
)
def test_importing_needs_its_permission_and_those_of_its_effects(
    db: Any, login: Callable[..., Any], only: tuple[str, ...], may: bool
) -> None:
    from django_wheelbeat.models import Monitor

    browser = login(only=only)
    assert browser.get(PAGE).status_code == (200 if may else 403)
    upload(browser, '{"name": "a", "task": "t", "interval": "5m"}', **{"import": "1"})
    assert Monitor.objects.exists() is may


def test_a_selection_is_exported(either: Any, login: Callable[..., Any]) -> None:
    from django_wheelbeat.models import Monitor

    fill()
    keys = list(Monitor.objects.filter(name__in=["cron", "once"]).values_list("pk", flat=True))
    browser = login("v", only=("view_monitor",))
    data = {"_selected_action": keys, "index": "0"}
    response = browser.post(LIST, data | {"action": "export_as_json_lines"})
    lines = b"".join(response.streaming_content).decode().splitlines()
    assert {json.loads(line)["name"] for line in lines} == {"cron", "once"}
    response = browser.post(f"{LIST}?tag=eu", data | {"action": "export_as_csv", "select_across": "1"})
    assert 'filename="monitors.csv"' in response["Content-Disposition"]
    (row,) = csv.DictReader(io.StringIO(b"".join(response.streaming_content).decode(), newline=""))
    assert (row["name"], row["interval"], row["description"]) == ('Zürich, "shop" 😀', "1m30s", 'two,\n"lines"')


@given(st.text(alphabet="'=+-@＝\t\r\n ax", max_size=6))
@example('=HYPERLINK("http://evil")')
@example("'=1")
@example("-90")
def test_no_cell_of_csv_is_a_formula_and_every_text_comes_back(text: str) -> None:
    from django_wheelbeat.models import Monitor
    from django_wheelbeat.transfer import files
    from django_wheelbeat.transfer.records import columns_of, record_of

    written = Monitor(name="m", task="t", description=text, queue=text, solar_latitude=-33.5)
    record = record_of(written)
    file = files._csv([files.FIELDS, [files._cell(field, record[field]) for field in files.FIELDS]])
    ((_, read),) = files.read(io.StringIO(file, newline=""), "csv")
    columns = columns_of(read)
    assert (columns["description"], columns["queue"]) == (text, text)
    assert columns["solar_latitude"] == -33.5
    (_, cells) = csv.reader(io.StringIO(file, newline=""))
    cell = cells[files.FIELDS.index("description")]
    assert not cell.strip(" ").startswith(("=", "+", "-", "@", "＝", "\t", "\r", "\n"))


DEEP = "[" * 200_000


@pytest.mark.parametrize(
    "line",
    [
        DEEP,
        '{"name": "m", "args": ' + DEEP + "}",
        '{"name": "m", "args": "' + DEEP + '"}',
        '{"name": "m", "jitter_s": 1e400}',
        '{"name": "m", "expires": NaN}',
        '{"name": "m", "priority": 1' + "0" * 30 + "}",
        '{"name": "m", "interval": "' + "9" * 5_000 + 'd"}',
        '{"name": "m", "start_at": "9999-12-31T23:59:59-23:59"}',
    ],
    ids=lambda line: line[:40],
)
def test_what_no_monitor_can_hold_is_an_error_of_its_line(either: Any, line: str) -> None:
    from django_wheelbeat.models import Monitor
    from django_wheelbeat.transfer.files import read
    from django_wheelbeat.transfer.imports import Importer

    Monitor.objects.create(name="m", task="t", interval_ms=60_000)
    report = Importer("default").apply(read([line, '{"name": "good", "task": "t", "interval": "5m"}'], "jsonl"))
    assert (report.refused, report.created, report.changed) == (1, 1, 0), report.problems
    assert report.problems[0].line == 1
