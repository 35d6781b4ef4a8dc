"""A beat's own decisions, at times that the test chooses: the database that does not answer, the clock that steps."""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from celery.schedules import crontab
from kombu import Queue
from support.beat.bench import Bench
from support.changelog.table import PLAIN
from support.engine.definitions import Job, batch_of

from celery_wheelbeat import run_id
from celery_wheelbeat.beat.marks import MarkDocument
from celery_wheelbeat.beat.startup import OPENING_S
from celery_wheelbeat.engine.sharing.shard_marks import UNKNOWN_MS, ShardMarks
from celery_wheelbeat.errors import InvalidMonitor
from celery_wheelbeat.jobs.compile import compile_rows
from celery_wheelbeat.jobs.definitions import ChangeBatch, Misfire, Route
from celery_wheelbeat.observe.status import REFUSED_SHOWN
from celery_wheelbeat.schedules.cron import Cron, CronTable
from celery_wheelbeat.sources.files.installation_file import InstallationFile
from celery_wheelbeat.sources.messages import Changed, Opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from celery import Celery


NOWHERE = {"wheelbeat_database_url": "postgresql://postgres@127.0.0.1:9/nowhere?connect_timeout=1"}
INSTALLATION = "5d2b2a0e-7c0f-4b51-9a52-1f6a3f1f0c11"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**conf: Any) -> Bench:
        made.append(Bench(tmp_path, **conf))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


def test_a_database_that_does_not_answer_delays_the_entries_by_ten_seconds(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make(**NOWHERE)
    bench.turn_until(lambda: bench.beat.sources.status()["failures"])
    assert bench.beat.state == "starting"
    assert bench.ledger.expected == 0
    bench.clock.passed_s += OPENING_S
    bench.turn_until(lambda: bench.ledger.sent)
    assert bench.beat.state == "loading"
    assert "starting without its record of earlier runs" in caplog.text
    assert bench.beat.mark_document() is None, "a mark that was never read is not overwritten"


@pytest.mark.parametrize(("zone", "lines"), [("Asia/Kolkata", 0), (timezone(timedelta(hours=5, minutes=30)), 1)])
def test_a_zone_without_a_name_is_named_at_the_start(
    zone: Any, lines: int, make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make(timezone=zone, beat_schedule={"nightly": {"task": "t", "schedule": crontab(hour=9, minute=30)}})
    assert caplog.text.count("Celery's time zone is not an IANA zone") == lines
    bench.turn_until(lambda: bench.beat.state == "running")
    assert len(bench.engine.poll_lane.jobs) == lines


def ids_of_messages(app: Celery) -> dict[str, int]:
    """Return id → fire time of the messages in the queue."""
    found = {}
    with app.connection_for_read() as connection:
        queue = Queue("celery")(connection.default_channel)
        queue.declare()
        while (message := queue.get(no_ack=True)) is not None:
            found[str(message.headers["id"])] = int(message.headers["wheelbeat_fire_ms"])
    return found


@pytest.mark.promise("same-run-same-id")
def test_no_run_is_sent_under_another_id_than_the_database_would_give_it(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make(**NOWHERE, wheelbeat_namespace=None)
    ids_of_messages(bench.app)  # the memory transport is one for the whole process
    bench.clock.passed_s += OPENING_S
    bench.turn_until(lambda: bench.beat.state == "loading")
    bench.clock.passed_s += 60
    bench.turn_until(lambda: bench.ledger.expected >= 60)
    bench.turn_until(lambda: bench.ledger.skipped["backlog"] >= 59)
    assert "Runs wait for the database" in caplog.text
    assert (bench.ledger.sent, bench.dispatcher.pending) == (
        0,
        bench.ledger.expected - bench.ledger.skipped.total(),
    )
    assert ids_of_messages(bench.app) == {}
    bench.beat._apply_message(Opened(INSTALLATION, {}, loading=True), bench.clock.wall_ms())
    bench.turn_until(lambda: bench.ledger.sent)
    sent = ids_of_messages(bench.app)
    assert list(sent) == [run_id("entry:a", fire_ms, INSTALLATION) for fire_ms in sent.values()] != []
    skipped = bench.ledger.skipped["backlog"]
    assert f"beat: {skipped} runs were skipped as backlog while run ids waited for the database" in caplog.text


def test_the_installation_is_remembered_for_a_start_without_its_database(
    make: Callable[..., Bench], tmp_path: Path
) -> None:
    InstallationFile(tmp_path / "schedule").write(INSTALLATION)
    bench = make(**NOWHERE, wheelbeat_namespace=None)
    ids_of_messages(bench.app)
    bench.clock.passed_s += OPENING_S
    bench.turn_until(lambda: bench.ledger.sent)
    sent = ids_of_messages(bench.app)
    assert list(sent) == [run_id("entry:a", fire_ms, INSTALLATION) for fire_ms in sent.values()] != []


def test_a_file_that_holds_no_installation_is_none_and_is_replaced(tmp_path: Path) -> None:
    file = InstallationFile(tmp_path / "schedule")
    assert file.read() is None
    file.path.write_bytes(b"\xff\x00 half of a")
    assert file.read() is None
    file.write(INSTALLATION)
    assert file.read() == INSTALLATION
    assert [path.name for path in tmp_path.iterdir()] == ["schedule.wheelbeat-installation"]
    InstallationFile(tmp_path / "missing" / "schedule").write(INSTALLATION)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["schedule.wheelbeat-installation"]


def test_a_row_with_the_id_of_an_entry_leaves_the_entry_alone(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.turn_until(lambda: "a" in bench.beat.entries.in_force)
    job_id = bench.beat.entries.in_force.id_of("a")
    compiled = compile_rows([PLAIN._replace(id=job_id, name="m")], crons=CronTable())
    problem = compiled.refused[job_id]
    changes = ChangeBatch(compiled.batch, np.array([job_id]))
    bench.beat._apply_message(Changed(changes, {job_id: problem}), 0)
    assert bench.engine.lookup([job_id])[0] is not None
    assert bench.beat.quarantine.monitors == {f"monitor:{job_id}": problem}


def test_a_listener_is_called_with_every_change_of_definitions(make: Callable[..., Bench]) -> None:
    bench = make()
    seen: list[list[int]] = []
    bench.beat.listeners.append(SimpleNamespace(redefined=lambda changes: seen.append(changes.ids.tolist())))
    bench.turn_until(lambda: "a" in bench.beat.entries.in_force)
    compiled = compile_rows([PLAIN._replace(id=5, name="m")], crons=CronTable())
    bench.beat._apply_message(Changed(ChangeBatch(compiled.batch, np.array([7])), {}), 0)
    bench.scheduler.add(name="b", task="t", schedule=5.0)
    bench.turn_until(lambda: "b" in bench.beat.entries.in_force)
    assert seen == [[5, 7], [bench.beat.entries.in_force.id_of("b")]]


def test_the_status_names_refused_jobs_by_key_and_counts_them_all(make: Callable[..., Bench]) -> None:
    bench = make(beat_schedule={"a": {"task": "t", "schedule": 1.0}, "bad": {"task": "t", "schedule": "never"}})
    bench.turn_until(lambda: "a" in bench.beat.entries.in_force)
    problem = InvalidMonitor("cron", "never fires", name="nightly")
    bench.beat.quarantine.monitors.update((f"monitor:{number}", problem) for number in range(1_000))
    bench.dispatcher.quarantined[bench.beat.entries.in_force.id_of("a")] = "too large"
    jobs = bench.supervision.observe(bench.clock.wall_ms()).jobs
    assert jobs.refused_total == 1_002
    assert len(jobs.refused) == REFUSED_SHOWN
    assert (next(iter(jobs.refused)), jobs.refused["monitor:7"]) == ("entry:bad", "cron: never fires")
    assert jobs.names == dict.fromkeys(jobs.refused.keys() - {"entry:bad"}, "nightly")
    bench.beat.quarantine.monitors.clear()
    compiled = compile_rows([PLAIN._replace(id=5, name="too large a monitor")], crons=CronTable())
    bench.beat._apply_message(Changed(ChangeBatch(compiled.batch, np.array([], np.int64)), {}), 0)
    bench.dispatcher.quarantined[5] = "too large"
    jobs = bench.supervision.observe(bench.clock.wall_ms()).jobs
    assert jobs.refused["entry:a"] == jobs.refused["monitor:5"] == "too large"
    assert jobs.names == {"monitor:5": "too large a monitor"}


def test_the_status_says_when_an_entry_was_due_last(make: Callable[..., Bench]) -> None:
    bench = make(beat_schedule={"a": {"task": "t", "schedule": 1.0}, "b": {"task": "t", "schedule": crontab("0", "0")}})
    bench.turn_until(lambda: bench.ledger.expected >= 2)
    entries = bench.supervision.observe(bench.clock.wall_ms()).schedule
    often, nightly = entries
    assert often.last_fire_ms == often.next_fire_ms - 1_000
    assert nightly.last_fire_ms is None, "not since it has this schedule"
    bench.turn_until(lambda: bench.ledger.expected >= 3)
    later, _ = bench.supervision.observe(bench.clock.wall_ms()).schedule
    assert later.last_fire_ms > often.last_fire_ms


def test_a_task_that_runs_inside_beat_is_seen_and_does_not_look_wedged(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make(task_always_eager=True)
    begun, end = threading.Event(), threading.Event()

    @bench.app.task(name="t", shared=False)
    def slow() -> None:
        begun.set()
        end.wait(60)

    try:
        bench.turn_until(begun.is_set)
        bench.clock.passed_s += bench.scheduler.settings.live_timeout + 10
        bench.turn_until(lambda: "A task has been running inside beat for 30 s" in caplog.text)
        bench.turn_until(lambda: not bench.supervision.wedged)  # the I/O thread has to turn first, after such a leap
        seen = bench.supervision.observe(bench.clock.wall_ms())
        assert seen.wedged == []
        assert seen.threads["publisher"] > 30
    finally:
        end.set()
    bench.turn_until(lambda: "The task that was running inside beat has ended" in caplog.text)


@pytest.mark.promise("missed-runs-follow-one-rule")
def test_a_stall_is_replayed_and_a_longer_one_goes_by_the_policy(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.turn_until(lambda: bench.ledger.sent)
    bench.clock.passed_s += 60
    bench.turn_until(lambda: bench.dispatcher.pending == 0 and bench.ledger.sent > 55)
    assert bench.ledger.skipped.total() == 0
    bench.clock.passed_s += 3600
    before = bench.ledger.sent
    bench.turn_until(lambda: bench.ledger.skipped["stall"])
    bench.turn_until(lambda: bench.dispatcher.pending == 0)
    assert bench.ledger.skipped["stall"] >= 3590
    assert bench.ledger.sent - before < 60
    assert bench.ledger.difference(0) == 0


class Line(NamedTuple):
    """What the log says of missed time."""

    length_s: float
    replayed: int
    skipped: int
    reasons: dict[str, int]


def missed(caplog: pytest.LogCaptureFixture, what: str) -> list[Line]:
    """Read the lines about missed time that begin with ``what``."""
    found = []
    for text in caplog.messages:
        line = re.fullmatch(rf"beat: {what}(?: (?:\w+ )?([\d.]+) s)?: replayed (\S+) runs?, skipped (\S+)(.*)", text)
        if line is not None:
            numbers = [int(number.replace(",", "")) for number in line.groups()[1:3]]
            reasons = {reason: int(count.replace(",", "")) for reason, count in re.findall(r"(\w+) ([\d,]+)", line[4])}
            reasons.pop("offered", None)
            assert sum(reasons.values()) == numbers[1]
            found.append(Line(float(line[1] or 0), *numbers, reasons))
    return found


@pytest.mark.promise("missed-runs-follow-one-rule")
@pytest.mark.parametrize(("passed_s", "skips"), [(60, False), (3_600, True)])
@pytest.mark.parametrize("step", [False, True], ids=["Stall", "Clock set forward"])
def test_after_a_stall_one_line_says_what_was_replayed_and_skipped(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture, passed_s: int, skips: bool, step: bool
) -> None:
    bench = make()
    ledger = bench.ledger
    bench.turn_until(lambda: ledger.sent)
    before, expected = ledger.skipped.copy(), ledger.expected
    if step:
        bench.clock.wall_s += passed_s
    else:
        bench.clock.passed_s += passed_s
    bench.turn_until(lambda: ledger.expected > expected + passed_s // 2)
    (line,) = missed(caplog, "Clock set forward" if step else "Stall")
    assert passed_s <= line.length_s < passed_s + 60
    assert line.reasons == dict(ledger.skipped - before)
    assert line.replayed + line.skipped == ledger.expected - expected
    assert (line.reasons.keys() == {"clock" if step else "stall"}) == skips
    assert (line.replayed > 55) != skips


def test_a_stall_that_takes_many_turns_to_catch_up_with_is_one_line(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make()
    ledger = bench.ledger
    bench.turn_until(lambda: ledger.sent)
    object.__setattr__(bench.engine, "config", replace(bench.engine.config, runs_per_advance=10))
    expected = ledger.expected
    bench.clock.passed_s += 100
    bench.turn_until(lambda: missed(caplog, "Stall"))
    (line,) = missed(caplog, "Stall")
    assert line.replayed == ledger.expected - expected >= 100


def test_every_start_says_in_one_line_what_was_replayed_and_skipped(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="celery.beat")
    first = make()
    first.turn_until(lambda: first.ledger.sent >= 2)
    assert [line[1:] for line in missed(caplog, "First start")] == [(0, 0, {})]
    first.close()
    second = make(
        later_s=1_000, beat_schedule={"a": {"task": "t", "schedule": 1.0}, "b": {"task": "t", "schedule": 7.0}}
    )
    ledger = second.ledger
    second.turn_until(lambda: missed(caplog, "Restart"))
    (line,) = missed(caplog, "Restart")
    assert 1_000 <= line.length_s < 1_060
    assert line.reasons == {"restart": ledger.skipped["restart"]} == {"restart": line.skipped}
    assert line.replayed == 1, "latest: the newest run of a; b is new"
    assert line.skipped >= 990
    assert re.search(r"skipped \S+ \(restart \S+\), offered 5 again$", caplog.text, re.MULTILINE)


def test_a_clock_set_back_is_followed_with_other_ids_and_the_number_is_kept(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make()
    bench.turn_until(lambda: bench.ledger.sent)
    bench.clock.wall_s -= 3600
    with caplog.at_level(logging.CRITICAL):
        bench.turn_until(lambda: bench.engine.relived.step)
    reached = datetime.fromtimestamp(bench.engine.relived.until_ms / 1000, UTC)
    assert re.search(r"The clock was set back by 3\d{3}\.\d s; following it", caplog.text)
    assert f"Crons and one-time jobs fire again after {reached:%Y-%m-%d %H:%M:%S}+00:00" in caplog.text
    sent = bench.ledger.sent
    bench.turn_until(lambda: bench.ledger.sent >= sent + 2)
    document = bench.beat.mark_document()
    assert document is not None
    assert document.steps == 1
    assert document.relived_until_ms > document.mark_ms
    assert bench.ledger.difference(bench.dispatcher.pending) == 0


MINUTELY = {"a": {"task": "t", "schedule": 1.0}, "cron": {"task": "t", "schedule": crontab()}}


def set_ahead(bench: Bench, seconds: float) -> None:
    bench.turn_until(lambda: bench.ledger.sent)
    before_ms = bench.clock.wall_ms()
    bench.clock.wall_s += seconds
    bench.turn_until(lambda: bench.engine.cursor_ms > before_ms + 1_000 * (seconds - 2))


def correct(bench: Bench, seconds: float) -> None:
    bench.clock.wall_s -= seconds
    bench.turn_until(lambda: bench.engine.cursor_ms <= bench.clock.wall_ms() and bench.beat.state == "running")


def cron_waits_s(bench: Bench) -> float:
    views = bench.engine.lookup(bench.beat.entries.in_force.ids())
    (next_ms,) = [view.next_fire_ms for view in views if view is not None and view.name == "cron"]
    assert next_ms is not None
    return (next_ms - bench.clock.wall_ms()) / 1000


@pytest.mark.promise("missed-runs-follow-one-rule")
@pytest.mark.parametrize("restart", ["none", "after", "while ahead", "before corrected"])
def test_a_clock_that_was_a_day_ahead_for_a_moment_does_not_silence_crons(
    make: Callable[..., Bench], restart: str
) -> None:
    bench = make(beat_schedule=MINUTELY)
    set_ahead(bench, 86_400)
    if restart in ("while ahead", "before corrected"):
        bench.close()
        bench = make(beat_schedule=MINUTELY)
        bench.clock.wall_s += 86_400 if restart == "while ahead" else 0
        bench.turn_until(lambda: bench.beat.state == "running")
    if restart != "before corrected":
        correct(bench, 86_400)
    if restart == "after":
        bench.close()
        bench = make(beat_schedule=MINUTELY)
        bench.turn_until(lambda: bench.beat.state == "running")
    assert bench.engine.relived.step == 1
    assert bench.engine.relived.until_ms > bench.clock.wall_ms() + 80_000_000, "intervals have ids of their own"
    assert -1 <= cron_waits_s(bench) <= 60


def test_a_clock_that_was_ahead_for_longer_was_right(make: Callable[..., Bench]) -> None:
    bench = make(beat_schedule=MINUTELY)
    set_ahead(bench, 86_400)
    bench.clock.passed_s += 61
    bench.turn_until(lambda: (bench.beat.mark.mark_ms or 0) > bench.clock.wall_ms() - 5_000)
    correct(bench, 86_400)
    assert 86_300 < cron_waits_s(bench) < 86_520


def test_the_mark_of_a_step_forward_waits_until_it_has_held(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.turn_until(lambda: bench.ledger.sent)
    before_ms = bench.clock.wall_ms()
    bench.clock.wall_s += 7200
    bench.turn_until(lambda: bench.engine.cursor_ms > before_ms + 7_000_000)
    assert bench.beat.mark.mark_ms is not None
    assert bench.beat.mark.mark_ms < before_ms + 60_000
    bench.clock.passed_s += 61
    bench.turn_until(lambda: (bench.beat.mark.mark_ms or 0) > before_ms + 7_000_000)


def test_a_mark_ahead_of_the_clock_falls_back_to_where_the_engine_begins(make: Callable[..., Bench]) -> None:
    """Not to the clock: what is due between the last whole tick and now is not settled yet."""
    bench = make()
    now_ms = bench.clock.wall_ms() // 1000 * 1000 + 846
    ahead = MarkDocument(now_ms + 2_000).to_json()
    bench.beat.startup._begin(Opened(None, {"broker": [ahead]}, loading=True), now_ms)
    assert bench.beat.mark.mark_ms == bench.engine.cursor_ms == now_ms - 846


@pytest.mark.promise("missed-runs-follow-one-rule")
def test_a_start_offers_what_came_after_the_mark_of_each_shard(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    """Two beats had half of the shards each; one of them died an hour ago, and one shard has no mark at all."""
    bench = make(wheelbeat_shards=4)
    now_ms = bench.clock.wall_ms()
    hour_ms = now_ms // 3_600_000 * 3_600_000
    shards = ShardMarks(np.array([hour_ms + 1, hour_ms - 1, hour_ms - 1, UNKNOWN_MS]))
    document = MarkDocument(hour_ms - 1, shards=shards).to_json()
    bench.beat.startup._begin(Opened(None, {"broker": [document]}, loading=False), now_ms)
    assert "A mark is missing: 1 shards of broker have none" in caplog.text
    bench.engine.routes.intern(Route("probe"))
    jobs = [Job(number, cron=Cron("0 * * * *"), misfire=Misfire.LATEST) for number in range(8)]
    bench.beat.startup.load(batch_of(jobs, bench.engine.crons))
    offered = {job_id for due in bench.beat.startup.take_due() for job_id in due.ids.tolist()}
    assert offered == {1, 2, 3, 5, 6, 7}


def test_a_start_without_a_usable_mark_goes_on_counting_clock_steps(make: Callable[..., Bench]) -> None:
    bench = make()
    ahead = MarkDocument(bench.clock.wall_ms() + 60_000, steps=3).to_json()
    bench.beat.startup._begin(Opened(None, {"broker": [ahead]}, loading=False), bench.clock.wall_ms())
    bench.beat.read_clock()
    bench.clock.wall_s -= 3_600
    bench.beat.read_clock()
    assert bench.engine.relived.step == 4


def test_a_schedule_that_raises_is_named_and_the_others_continue(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    from celery.schedules import schedule

    class Broken(schedule):
        def is_due(self, last_run_at: Any) -> Any:
            raise RuntimeError("no idea")

    bench = make()
    bench.scheduler.add(name="broken", task="t", schedule=Broken(1))
    bench.turn_until(lambda: bench.ledger.sent)
    assert "The schedule of broken failed" in caplog.text
    assert "no idea" in caplog.text
