"""``celery -A proj wheelbeat later``: look at one-off runs, cancel them, move them.

Uses the database that the beats read. Every command is one transaction. Times are read and printed in the app's time
zone.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand, CeleryOption
from celery.utils.time import make_aware

from celery_wheelbeat import later
from celery_wheelbeat.errors import InvalidRequest, WheelbeatError
from celery_wheelbeat.later.connections import caller_of
from celery_wheelbeat.later.opening import command_connection
from celery_wheelbeat.later.writers import Wanted, writer_of
from celery_wheelbeat.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import tzinfo

    from celery_wheelbeat.later.run import LaterRun
    from celery_wheelbeat.later.writers import Found, LaterWriter

SHOWN = 100
"""Rows of a list by default."""
SHOWN_MAX = 10_000
PERIOD = timedelta(days=30)
"""Length of a list or count without ``--to``."""
_TIME = "2026-12-24T18:00, in the app's time zone, or with an offset: 2026-12-24T18:00+01:00"

_json_option = click.option("--json", "as_json", is_flag=True, cls=CeleryOption, help="Print JSON.")
_key_option = click.option("--key", default=None, cls=CeleryOption, help="Key of the run.")
_from_option = click.option("--from", "from_", default=None, cls=CeleryOption, help="First due time; default: now.")
_to_option = click.option(
    "--to", default=None, cls=CeleryOption, help="Due times before this one; default: 30 days after --from or now."
)


@click.group(name="later", help="Look at one-off runs, cancel them, move them.")
def later_group() -> None:
    """Group of commands."""


@later_group.command(name="list", cls=CeleryCommand)
@click.option("--key", default=None, cls=CeleryOption, help="Only runs with this key.")
@click.option("--task", default=None, cls=CeleryOption, help="Only runs of this task.")
@_from_option
@_to_option
@click.option(
    "--limit", type=click.IntRange(1, SHOWN_MAX), default=SHOWN, cls=CeleryOption, help="Most runs; default: 100."
)
@_json_option
@click.pass_context
def list_command(
    context: click.Context,
    *,
    key: str | None,
    task: str | None,
    from_: str | None,
    to: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List the runs that are due in a period, by due time. Rows of past days stay for two days, sent or not."""
    zone = context.obj.app.timezone
    with _writer(context) as writer:
        begin, end = _period(from_, to, zone)
        wanted = Wanted(int(begin.timestamp()), _seconds_up(end), limit, key, task)
        found = writer.listed(wanted)
    if as_json:
        click.echo(json.dumps([_document(row, zone) for row in found], indent=2))
        return
    for run, _ in found:
        click.echo("  ".join([_text_of(run.at, zone), run.id, run.task, *([f"key {run.key}"] if run.key else [])]))
    if not found:
        click.echo(f"No run is due from {_text_of(begin, zone)} to {_text_of(end, zone)}.", err=True)
    if len(found) == limit:
        click.echo(f"Only the first {limit:,} are shown; see --limit and --from.", err=True)


@later_group.command(name="show", cls=CeleryCommand)
@click.argument("run_id", metavar="[ID]", required=False)
@_key_option
@_json_option
@click.pass_context
def show_command(context: click.Context, run_id: str | None, key: str | None, as_json: bool) -> None:
    """Show the run with this ID or key, with its arguments and options; exit code 1 if there is none."""
    zone = context.obj.app.timezone
    with _writer(context) as writer:
        found = _find(writer, run_id, key)
    if as_json:
        click.echo(json.dumps(_document(found, zone), indent=2))
        return
    run = found.run
    click.echo(run.id)
    lines = {
        "due": _text_of(run.at, zone) + (" (can no longer be cancelled or moved)" if found.too_late else ""),
        "key": run.key or "none",
        "task": run.task,
        "args": run.args,
        "kwargs": run.kwargs,
        "options": run.options,
    }
    for label, text in lines.items():
        click.echo(f"  {label:<10} {text}")


@later_group.command(name="cancel", cls=CeleryCommand)
@click.argument("run_id", metavar="[ID]", required=False)
@_key_option
@_json_option
@click.pass_context
def cancel_command(context: click.Context, run_id: str | None, key: str | None, as_json: bool) -> None:
    """Cancel the run with this ID or key; exit code 1 if there is none, or if it is due within two seconds."""
    with _connection(context) as connection:
        found = _find(writer_of(caller_of(connection)), run_id, key)
        result = later.cancel(id=run_id, key=key, connection=connection)
        if result is not later.Cancelled.CANCELLED:
            raise InvalidRequest(_too_late(found.run, context))
    _print_changed(found.run.id, found.run, "cancelled", as_json, context)


@later_group.command(name="move", cls=CeleryCommand)
@click.argument("words", metavar="[ID] AT", nargs=-1, required=True)
@_key_option
@_json_option
@click.pass_context
def move_command(context: click.Context, words: tuple[str, ...], key: str | None, as_json: bool) -> None:
    """Move the run with this ID or key to AT and print its new id; exit code 1 as for cancel."""
    *ids, text = words
    if len(ids) > 1:
        raise click.UsageError(f"expected [ID] AT, got {len(words)} words")
    run_id = ids[0] if ids else None
    with _connection(context) as connection:
        at = _instant("AT", text, context.obj.app.timezone)
        found = _find(writer_of(caller_of(connection)), run_id, key)
        moved = later.move(at, id=run_id, key=key, connection=connection)
        if moved is None:
            raise InvalidRequest(_too_late(found.run, context))
    _print_changed(moved, found.run, f"moved to {_text_of(at, context.obj.app.timezone)}", as_json, context)


@later_group.command(name="count", cls=CeleryCommand)
@_from_option
@_to_option
@_json_option
@click.pass_context
def count_command(context: click.Context, from_: str | None, to: str | None, as_json: bool) -> None:
    """Count the runs that are due in a period, to the second."""
    zone = context.obj.app.timezone
    with _writer(context) as writer:
        begin, end = _period(from_, to, zone)
        runs = writer.count(int(begin.timestamp()), _seconds_up(end))
    document = {"runs": runs, "from": _text_of(begin, zone), "to": _text_of(end, zone)}
    click.echo(json.dumps(document, indent=2) if as_json else str(runs))


@contextmanager
def _connection(context: click.Context) -> Iterator[Any]:
    """Yield a connection, which commits at the end of the block; turn our errors into click's."""
    try:
        with command_connection(context.obj.app) as connection:
            yield connection
    except WheelbeatError as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def _writer(context: click.Context) -> Iterator[LaterWriter]:
    with _connection(context) as connection:
        yield writer_of(caller_of(connection))


def _find(writer: LaterWriter, run_id: str | None, key: str | None) -> Found:
    if (run_id is None) == (key is None):
        raise InvalidRequest("expected either ID or --key")
    found = writer.of_key(key, lock=False) if key is not None else writer.of_id(str(run_id), lock=False)
    if found is None:
        what = f"with key {key!r}" if key is not None else run_id
        raise InvalidRequest(f"no one-off run {what}: it was cancelled, moved or dropped, or never stored")
    return found


def _too_late(run: LaterRun, context: click.Context) -> str:
    due = _text_of(run.at, context.obj.app.timezone)
    return f"too late: {run.task} ({run.id}) was due at {due} or is due within two seconds; nothing was changed"


def _print_changed(run_id: str, run: LaterRun, what: str, as_json: bool, context: click.Context) -> None:
    if as_json:
        at = _text_of(run.at, context.obj.app.timezone)
        click.echo(json.dumps({"id": run_id, "was": {"id": run.id, "at": at}, "key": run.key, "task": run.task}))
    else:
        click.echo(f"{run_id} {what}")


def _document(found: Found, zone: tzinfo) -> dict[str, Any]:
    run = found.run
    texts = {name: json.loads(getattr(run, name)) for name in ("args", "kwargs", "options")}
    at = {"at": _text_of(run.at, zone), "at_ms": run.at_ms}
    return {"id": run.id, **at, "key": run.key, "task": run.task, **texts, "can_be_cancelled": not found.too_late}


def _period(from_: str | None, to: str | None, zone: tzinfo) -> Sequence[datetime]:
    now = datetime.fromtimestamp(SystemClock().wall_ms() // 1000, UTC)
    begin = now if from_ is None else _instant("--from", from_, zone)
    try:
        end = max(begin, now) + PERIOD if to is None else _instant("--to", to, zone)
    except OverflowError:
        raise InvalidRequest(f"--from: {_text_of(begin, zone)}: give --to: the default lies after 9999") from None
    if end <= begin:
        raise InvalidRequest(f"--to: {_text_of(end, zone)} is not after --from {_text_of(begin, zone)}")
    return begin, end


def _instant(what: str, text: str, zone: tzinfo) -> datetime:
    """Return the instant that ``text`` names; of a local time that occurs twice, the first."""
    try:
        given = datetime.fromisoformat(text)
        found = (given if given.tzinfo is not None else make_aware(given, zone)).astimezone(UTC)
        exists = given.tzinfo is not None or found.astimezone(zone).replace(tzinfo=None) == given
    except (ValueError, OverflowError):
        raise InvalidRequest(f"{what}: {text!r:.80}: expected a time such as {_TIME}") from None
    if not exists:
        raise InvalidRequest(f"{what}: {text}: the clocks of {zone} skip this time; give an offset")
    return found


def _seconds_up(instant: datetime) -> int:
    return -int(-instant.timestamp() // 1)


def _text_of(instant: datetime, zone: tzinfo) -> str:
    return instant.astimezone(zone).isoformat(" ", "milliseconds" if instant.microsecond else "seconds")
