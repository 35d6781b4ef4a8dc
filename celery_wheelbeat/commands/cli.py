"""``celery -A proj wheelbeat …``: questions about a beat, answered from the database, the mark file and the app.

No command talks to the running process. Only ``run`` sends a message, from its own process; only ``later`` and
``migrate`` write to the database.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand, CeleryOption

from celery_wheelbeat.commands.dedup_check import dedup_check
from celery_wheelbeat.commands.explain import Beats, explanation
from celery_wheelbeat.commands.later import later_group
from celery_wheelbeat.commands.migrate import migrate
from celery_wheelbeat.commands.run_now import new_request, read_request, send_now
from celery_wheelbeat.errors import InvalidMonitor, WheelbeatError
from celery_wheelbeat.observe.status_text import status_text
from celery_wheelbeat.runtime.clock import SystemClock
from celery_wheelbeat.schedules.fire_times import fires_after
from celery_wheelbeat.settings import Settings
from celery_wheelbeat.sources.databases.open import database_of
from celery_wheelbeat.sources.files.mark_file import MarkFile
from celery_wheelbeat.sources.lookup import definition_of, look_up
from celery_wheelbeat.sources.namespaces import namespace_of
from celery_wheelbeat.worker.hooks.autoinstall import install_where_wanted

if TYPE_CHECKING:
    from collections.abc import Mapping

install_where_wanted()  # ``celery`` imports its commands, this module included, before it sets up a worker

ALIVE_S = 10.0
"""A status row older than this belongs to a beat that has stopped or hangs."""


@click.group(name="wheelbeat", help="Ask about monitors, entries and running beats (celery-wheelbeat).")
@click.pass_context
def wheelbeat(context: click.Context) -> None:
    """Group of commands; registered through the entry point ``celery.commands``."""
    # As beat does at its start: sets up Django, which registers the database of monitors.
    context.obj.app.loader.init_worker()


wheelbeat.add_command(dedup_check)
wheelbeat.add_command(later_group)
wheelbeat.add_command(migrate)


_of_beat = click.option(
    "-s",
    "--schedule",
    "path",
    default=None,
    cls=CeleryOption,
    help="Schedule path of the beat, as passed to beat with -s.",
)


@wheelbeat.command(name="next", cls=CeleryCommand)
@click.argument("name")
@click.option(
    "-n", "count", type=click.IntRange(1, 1000), default=10, cls=CeleryOption, help="Number of fire times to show."
)
@click.pass_context
def next_command(context: click.Context, name: str, count: int) -> None:
    """Print the next fire times of the monitor or entry NAME, in UTC."""
    app = context.obj.app
    now = datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC)
    try:
        settings = Settings.from_conf(app.conf)
        schedule = definition_of(app, settings, look_up(app, settings, name)).schedule
        if schedule is None:
            raise InvalidMonitor("schedule", "is polled at run time: its fire times are not known in advance")
    except WheelbeatError as error:
        raise click.ClickException(str(error)) from error
    for fire in fires_after(schedule, now, count):
        click.echo(fire.isoformat(timespec="milliseconds" if fire.microsecond else "seconds"))


@wheelbeat.command(cls=CeleryCommand)
@click.argument("name")
@_of_beat
@click.pass_context
def explain(context: click.Context, name: str, path: str | None) -> None:
    """Explain when the monitor or entry NAME fires, and what prevents its runs from being sent."""
    app = context.obj.app
    try:
        settings = Settings.from_conf(app.conf)
        stored = look_up(app, settings, name)
        beats = Beats(namespace_of(app, settings, stored.installation), _reports(app, path))
        lines = list(explanation(app, settings, stored, beats, SystemClock().wall_ms()))
    except WheelbeatError as error:
        raise click.ClickException(str(error)) from error
    click.echo(name)
    for label, text in lines:
        click.echo(f"  {label:<10} {text}")


@wheelbeat.command(cls=CeleryCommand)
@click.argument("name")
@click.option(
    "--request", "text", default=None, cls=CeleryOption, help="Earlier request to repeat: workers drop the copy."
)
@click.pass_context
def run(context: click.Context, name: str, text: str | None) -> None:
    """Send one run of the monitor or entry NAME now, regardless of its schedule and state, and print its id."""
    app = context.obj.app
    now_ms = SystemClock().wall_ms()
    try:
        settings = Settings.from_conf(app.conf)
        request = new_request(now_ms) if text is None else read_request(text, now_ms)
        stored = look_up(app, settings, name)
        namespace = namespace_of(app, settings, stored.installation)
        sent_as = send_now(app, settings, definition_of(app, settings, stored), namespace=namespace, request=request)
    except WheelbeatError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{sent_as} (request {request})")


@wheelbeat.command(cls=CeleryCommand)
@click.option("--json", "as_json", is_flag=True, cls=CeleryOption, help="Print the status documents as JSON.")
@_of_beat
@click.pass_context
def status(context: click.Context, as_json: bool, path: str | None) -> None:
    """Show the status of the beats of this installation; exit code 1 if none reports."""
    app = context.obj.app
    try:
        reports = _reports(app, path)
    except WheelbeatError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(reports, indent=2))
    else:
        for report in reports:
            click.echo(status_text(report, alive_s=ALIVE_S))
    alive = [report for report in reports if report["age_s"] <= ALIVE_S]
    zones = {report["status"].get("tzdata", "unknown") for report in alive}
    if len(zones) > 1:
        click.echo(
            f"Beats read different time zone databases: {', '.join(sorted(zones))}; install the same version for all.",
            err=True,
        )
    if not alive:
        if not as_json:
            click.echo("No beat has reported within the last 10 seconds.", err=True)
        context.exit(1)


def _reports(app: Any, path: str | None) -> list[Mapping[str, Any]]:
    database = database_of(app, Settings.from_conf(app.conf))
    if database is None:
        return _reports_of_file(path or app.conf.beat_schedule_filename)
    try:
        return [beat._asdict() for beat in database.store.beats()]
    finally:
        database.source.close()


def _reports_of_file(path: str) -> list[Mapping[str, Any]]:
    row = MarkFile(path).row()
    if row is None:
        return []
    age_s = max(0.0, (SystemClock().wall_ms() - row["seen_ms"]) / 1000)
    names = ("beat_id", "namespace", "host", "pid", "version", "status")
    return [{**{name: row[name] for name in names}, "age_s": age_s}]
