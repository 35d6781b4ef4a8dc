"""``celery -A proj wheelbeat dedup-check``: check that copies of runs are dropped, and advise what to change.

Queries the broker, the store, the settings and the running workers. Writes a few test claims, which expire within a
minute. An unreachable service is a finding; the checks that do not need it still run.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from celery.bin.base import CeleryCommand, CeleryOption
from kombu.exceptions import OperationalError

from celery_wheelbeat.dispatch.broker import driver_type, open_connection
from celery_wheelbeat.dispatch.messages.claim_headers import VISIBILITY_TIMEOUT_S, visibility_timeout_s
from celery_wheelbeat.errors import WheelbeatError
from celery_wheelbeat.settings import Settings
from celery_wheelbeat.worker.claims import ClaimRequest, Verdict
from celery_wheelbeat.worker.policy import Policy
from celery_wheelbeat.worker.stores.choice import choose_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from celery_wheelbeat.worker.stores import Store

logger = logging.getLogger(__name__)

PROBE_TTL_S = 60
COPIES = 8
CLAIM_BYTES = 150
"""Upper bound of a claim's memory in Redis; the conformance suite measures it."""
START_SERVER = "start the server, or correct its address"


class Finding(NamedTuple):
    """Result of one check."""

    good: bool
    text: str
    remedy: str = ""


class WorkerAnswers(NamedTuple):
    """Answers of the broker and of the workers."""

    broker: Finding
    reports: Mapping[str, Any]
    """Worker → report of its gate; None for a worker without a gate."""


@click.command(name="dedup-check", cls=CeleryCommand)
@click.option("--timeout", type=float, default=2.0, cls=CeleryOption, help="Seconds to wait for the workers' answers.")
@click.pass_context
def dedup_check(context: click.Context, timeout: float) -> None:
    """Check that workers drop copies of runs, and advise what to change; exit code 1 if a check fails."""
    app = context.obj.app
    try:
        settings = Settings.from_conf(app.conf)
        findings = list(find_all(app, settings, timeout_s=timeout))
    except WheelbeatError as error:
        raise click.ClickException(str(error)) from error
    for finding in findings:
        click.echo(f"{'ok  ' if finding.good else 'BAD '} {finding.text}")
        if finding.remedy:
            click.echo(f"     {finding.remedy}")
    context.exit(0 if all(finding.good for finding in findings) else 1)


def find_all(app: Any, settings: Settings, *, timeout_s: float) -> Iterator[Finding]:
    """Check the broker, the store, the time-outs and the workers, in this order."""
    broker, reports = _ask_workers(app, timeout_s)
    yield broker
    yield from _found("claims", _check_claims(app, settings, reports))
    if broker.good:
        yield from _found("time limits", _check_time_limits(app, settings))
        yield from _check_workers(reports)


def _found(what: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield ``findings``; an exception becomes the last one."""
    try:
        yield from findings
    except Exception as error:
        yield _broken(what, error)


def _broken(what: str, error: Exception) -> Finding:
    logger.debug("%s", what, exc_info=error)
    remedy = "" if isinstance(error, WheelbeatError) else START_SERVER  # our errors explain themselves
    expected = isinstance(error, (WheelbeatError, OperationalError, OSError))
    return Finding(False, f"{what}: {error if expected else repr(error)}", remedy)


def _check_claims(app: Any, settings: Settings, reports: Mapping[str, Any]) -> Iterator[Finding]:
    choice = choose_store(app, settings.dedup_url)
    if choice.store is None:
        yield Finding(
            False,
            f"{choice.where} cannot keep claims: every copy of a run is executed",
            "set wheelbeat_dedup_url to a redis://, postgresql://, mysql:// or sqlite:/// URL",
        )
    else:
        yield from _check_store(choice.store, choice.where)
        yield from _check_memory(choice.store, settings, reports)
        choice.store.close()


def _check_store(store: Store, where: str) -> Iterator[Finding]:
    try:
        store.prepare()
        key = os.urandom(16).hex()
        with ThreadPoolExecutor(COPIES) as pool:
            verdicts = list(pool.map(lambda _: store.claim(key, _copy(), PROBE_TTL_S), range(COPIES)))
    except WheelbeatError as error:
        yield Finding(False, f"claims in {where}: {error}", START_SERVER)
        return
    yield Finding(True, f"claims in {where}: reachable and writable")
    elected = verdicts.count(Verdict.ELECTED)
    yield Finding(
        elected == 1,
        f"{elected} of {COPIES} simultaneous copies elected",
        "" if elected == 1 else "the server does not decide atomically: use a single primary, not a proxy over several",
    )
    if store.best_effort:
        yield Finding(False, f"claims may be lost early: {store.best_effort}", "use Redis or a database")


def _copy() -> ClaimRequest:
    return ClaimRequest(os.urandom(8).hex(), os.urandom(4).hex(), "0" * 8, redelivered=False)


def _check_memory(store: Store, settings: Settings, reports: Mapping[str, Any]) -> Iterator[Finding]:
    info = getattr(store, "info", None)
    if info is None:
        return
    try:
        redis: Mapping[str, str] = info()
    except WheelbeatError:
        return  # reported above
    policy = redis.get("maxmemory_policy", "unknown")
    bounded = redis.get("maxmemory", "0") != "0"
    yield Finding(
        not bounded or policy == "noeviction",
        f"maxmemory-policy is {policy}" + ("" if bounded else " and no maxmemory is set"),
        ""
        if not bounded or policy == "noeviction"
        else "evicted claims let copies run: set maxmemory-policy noeviction",
    )
    if redis.get("role") != "master":
        yield Finding(False, "the server is a replica", "point the URL at the primary")
    ttl_s = settings.dedup_ttl
    rate = sum(report.get("elected_per_s", 0) for report in reports.values() if report)
    kept = rate * ttl_s * CLAIM_BYTES / 1e6
    yield Finding(
        True,
        f"{rate:.1f} runs/s now, claims kept for up to {ttl_s:,.0f} s: at most {kept:,.1f} MB "
        f"({1_000 * ttl_s * CLAIM_BYTES / 1e9:,.1f} GB at 1,000 runs/s, less where intervals are short)",
    )


def _check_time_limits(app: Any, settings: Settings) -> Iterator[Finding]:
    if driver_type(app) not in VISIBILITY_TIMEOUT_S:
        return
    timeout_s = visibility_timeout_s(app)
    default = Policy.of(settings)
    exposed = []
    for name, task in sorted(app.tasks.items()):
        if name.startswith("celery.") or not task.acks_late:
            continue
        policy = default.choose(name, getattr(task, "wheelbeat", None) or {}, acks_late=True)
        limit_s = task.time_limit or app.conf.task_time_limit
        if not policy.exclusive and (limit_s is None or limit_s >= timeout_s):
            exposed.append(name)
    text = f"visibility timeout {timeout_s:g} s"
    if not exposed:
        yield Finding(True, f"{text}: longer than the time limit of every task with acks_late")
        return
    shown = ", ".join(exposed[:5]) + (f" and {len(exposed) - 5} more" if len(exposed) > 5 else "")
    yield Finding(
        False,
        f"{text}: {shown} may run longer and would then be started a second time",
        "set a time_limit below it, a longer visibility_timeout, or wheelbeat={'exclusive': True}",
    )


def _check_workers(reports: Mapping[str, Any]) -> Iterator[Finding]:
    if not reports:
        yield Finding(False, "no worker answers", "start the workers, or enable worker_enable_remote_control")
    for name, report in sorted(reports.items()):
        hook = report["hook"] if report else "off"
        if hook == "off":
            text = f"{name} executes every copy"
            yield Finding(False, text, "call celery_wheelbeat.worker.install(app), or set wheelbeat_worker = True")
        elif hook == "trace":
            yield Finding(True, f"{name} drops copies; claims in {report['store']}")
        else:
            text = f"{name} drops copies by Task.before_start, after task_prerun and track_started"
            yield Finding(False, text, "its log gives the reason at start-up")


def _ask_workers(app: Any, timeout_s: float) -> WorkerAnswers:
    """Connect to the broker and query its workers."""
    broker, reports = "broker", {}
    try:
        broker = f"broker ({driver_type(app)})"
        with open_connection(app) as connection:
            connection.ensure_connection(max_retries=1, timeout=timeout_s)
            inspect = app.control.inspect(timeout=timeout_s, connection=connection)
            reports = dict.fromkeys(inspect.ping() or {})
            replies = app.control.broadcast(
                "wheelbeat_claims", connection=connection, reply=True, timeout=timeout_s, limit=len(reports) or None
            )
    except Exception as error:
        return WorkerAnswers(_broken(broker, error), reports)
    for name, report in ((name, report) for reply in replies or [] for name, report in reply.items()):
        if name in reports and isinstance(report, dict) and "hook" in report:
            reports[name] = report
    return WorkerAnswers(Finding(True, f"{broker}: reachable"), reports)
