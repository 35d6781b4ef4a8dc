"""The settings of a beat: a frozen, typed table of every ``wheelbeat_*`` key.

Job: the table holds default, bounds and meaning of each key. ``Settings.from_conf`` reads and validates ``app.conf``
once, at start; ``urls`` parses URLs of servers without showing them. A ``Settings`` object is valid as a whole and
immutable, so any thread may read it.

Never: guess. An unknown key or a value out of bounds is an error that names the key, the value and the remedy.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.errors import InvalidSetting
from celery_wheelbeat.settings.setting import Setting
from celery_wheelbeat.settings.setting import setting as _setting

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

PREFIX = "wheelbeat_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting under its key without ``wheelbeat_``; times are in seconds unless the name ends in ``_ms``."""

    tick: float = _setting(
        1.0,
        float,
        "Resolution of the wheel. Fire times do not depend on it; a due run leaves the wheel up to one tick late.",
        unit="seconds",
        choices=(0.1, 0.125, 0.2, 0.25, 0.5, 1.0),
    )
    shards: int = _setting(
        256,
        int,
        "Parts of the wheel. Fewer save a little memory in tiny installations.",
        choices=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    )
    namespace: str | None = _setting(
        None, str, "Namespace of run ids; without it the installation's UUID, else the name of the app."
    )
    max_jobs: int = _setting(
        50_000_000,
        int,
        "Jobs that a beat loads at most; it does not start with more.",
        unit="jobs",
        low=1,
        high=1_000_000_000,
    )
    max_payload_bytes: int = _setting(
        262_144,
        int,
        "Size limit of args and kwargs together; larger monitors are quarantined, larger one-off runs refused.",
        unit="bytes",
        low=1_024,
        high=134_217_728,
    )
    allowed_tasks: tuple[str, ...] | None = _setting(
        None,
        tuple,
        "Patterns of the tasks that monitors, one-off runs and their callbacks may name, such as `proj.checks.*`; "
        "None = every task. Others are quarantined or refused. Entries of beat_schedule are code and are not limited.",
    )
    allowed_queues: tuple[str, ...] | None = _setting(
        None,
        tuple,
        "Patterns of the queues that monitors, one-off runs and their callbacks may name; None = every queue. "
        "With patterns, a monitor cannot name an exchange or a routing key, because these can route to any queue.",
    )
    min_interval: float = _setting(
        0.1,
        float,
        "Shortest interval of a monitor, also during an incident. Forms refuse a shorter one; a stored one is "
        "quarantined. Entries of beat_schedule are code and are not limited.",
        unit="seconds",
        low=0.001,
        high=86_400,
    )
    cron_jitter: int = _setting(
        30,
        int,
        "Cron monitors without a jitter of their own are spread over this much of their minute; 0 = none.",
        unit="seconds",
        low=0,
        high=60,
    )
    stall_limit: float = _setting(
        300.0,
        float,
        "A running beat replays every missed slot after a stall of at most this length.",
        unit="seconds",
        low=1,
        high=86_400,
    )
    misfire_gap: float = _setting(
        900.0,
        float,
        "misfire=auto offers the newest missed run if the run after it is at least this much later.",
        unit="seconds",
        low=0,
        high=31_536_000,
    )
    restart_lookback: float = _setting(
        5.0,
        float,
        "After a restart, runs within this time after the mark are offered again with the same ids.",
        unit="seconds",
        low=0,
        high=300,
    )
    backlog_max: int = _setting(
        1_000_000,
        int,
        "Runs that may wait for one destination; more are skipped and counted.",
        unit="runs",
        low=1_000,
        high=100_000_000,
    )
    window: int = _setting(
        16_000, int, "Unconfirmed runs that each lane may have in flight.", unit="runs", low=1, high=100_000
    )
    envelope_bytes: int = _setting(
        536_870_912,
        int,
        "Memory for cached message parts of single monitors; parts that do not fit are rendered for each run.",
        unit="bytes",
        low=1_048_576,
        high=1_099_511_627_776,
    )
    dispatch: str = _setting(
        "auto",
        str,
        "Lane of the messages: auto = fast where nothing needs Celery's own code, fast = also where that bypasses "
        "signals and hooks, celery = always Celery's own code.",
        choices=("auto", "fast", "celery"),
    )
    amqp_mandatory: bool = _setting(
        True, bool, "RabbitMQ returns messages that it cannot route instead of dropping them silently."
    )
    database_url: str | None = _setting(
        None, str, "Database of the monitors for a beat without Django, as postgresql://, mysql:// or sqlite:// URL."
    )
    later_from: float | None = _setting(
        None,
        float,
        "Tasks with an eta or countdown of at least this many seconds are stored as one-off runs; None = none. 60 is a "
        "good value: below a minute, the workers of Celery hold few of them.",
        unit="seconds",
        low=0,
        high=315_360_000,
    )
    later_url: str | None = _setting(
        None,
        str,
        "Redis or Valkey that keeps one-off runs, as redis:// or rediss:// URL; None = the database of the monitors.",
    )
    reconcile_period: float = _setting(
        3_600.0,
        float,
        "The whole table of monitors is compared with the wheel once per this period.",
        unit="seconds",
        low=10,
        high=604_800,
    )
    audit: str = _setting(
        "full",
        str,
        "What the database records in the audit about changes of monitors: full = values before and after, summary = "
        "changed columns, off = nothing. Takes effect with `manage.py wheelbeat_triggers --install` or `migrate`.",
        choices=("full", "summary", "off"),
    )
    live_timeout: float = _setting(
        30.0,
        float,
        "The beat counts as wedged when a thread has made no progress for this long.",
        unit="seconds",
        low=1,
        high=3_600,
    )
    rolls: tuple[str, ...] = _setting(
        (),
        tuple,
        "Where the beats of a namespace say that they are here, so that several of them share the work: `database`, "
        "`broker` (Redis or RabbitMQ), `folder`, the path of a folder, or a URL such as `etcd://host:2379` or "
        "`redis://host/0`. `auto` = the database and the broker that the app has, else `folder`; empty = each beat "
        "sends everything, whether or not others run.",
        alone=True,
    )
    active: int = _setting(
        16,
        int,
        "Beats that send; the others follow and stand by. 1 = one sends everything.",
        unit="beats",
        low=1,
        high=256,
    )
    heartbeat: float = _setting(
        1.0,
        float,
        "How often a beat says that it is here. One that is silent for three heartbeats is gone.",
        unit="seconds",
        low=0.2,
        high=60,
    )
    cut_off: str = _setting(
        "go on",
        str,
        "A beat that can reach no roll: go on = it sends its share, stop = it sends nothing until it can.",
        choices=("go on", "stop"),
    )
    http_port: int = _setting(
        0,
        int,
        "Port on which the beat answers /livez, /readyz, /metrics and /status; 0 = none.",
        low=0,
        high=65_535,
    )
    http_host: str = _setting(
        "127.0.0.1", str, "Address of that port. There is no password: use 0.0.0.0 only behind a firewall."
    )
    http_hosts: tuple[str, ...] = _setting(
        (),
        tuple,
        "Patterns of the host names that clients of that port may use, such as `beat.monitoring.svc`; IP addresses "
        "and localhost are always accepted. Other host names get no answer, which prevents DNS rebinding.",
    )
    worker: bool | None = _setting(
        None, bool, "Workers drop copies of runs and prevent overlap; by default only with django_wheelbeat installed."
    )
    dedup_url: str | None = _setting(None, str, "Store of the claims; None = the store of the result backend.")
    dedup_ttl: float = _setting(86_400.0, float, "How long a claim is kept.", unit="seconds", low=60, high=31_536_000)
    dedup_outage: str = _setting(
        "open",
        str,
        "While the claim store is down: open = run, closed = return the message to the queue (acks_late tasks only).",
        choices=("open", "closed"),
    )
    dedup_exclusive: bool = _setting(
        False,
        bool,
        "A redelivered run waits until the previous execution has ended or its worker is known to be dead.",
    )
    broker_dedup: bool = _setting(
        False,
        bool,
        "Set the deduplication id of SQS FIFO queues or RabbitMQ's deduplication plug-in on runs; celery lane only.",
    )
    dedup_key: str = _setting(
        "id",
        str,
        "How copies are recognised: by task id, or by content (SHA-256 of task, arguments and fire time).",
        choices=("id", "content"),
    )

    @property
    def tick_ms(self) -> int:
        """Length of a slot in ms."""
        return round(self.tick * 1000)

    @property
    def min_interval_ms(self) -> int:
        """``min_interval`` in ms."""
        return round(self.min_interval * 1000)

    @property
    def stall_limit_ms(self) -> int:
        """``stall_limit`` in ms."""
        return round(self.stall_limit * 1000)

    @property
    def misfire_gap_ms(self) -> int:
        """``misfire_gap`` in ms."""
        return round(self.misfire_gap * 1000)

    @property
    def restart_lookback_ms(self) -> int:
        """``restart_lookback`` in ms."""
        return round(self.restart_lookback * 1000)

    @classmethod
    def from_conf(cls, conf: Mapping[str, Any]) -> Settings:
        """Read the settings from Celery's ``app.conf``, or any mapping of ``wheelbeat_*`` keys.

        None is a valid value only if it is the default. Raises ``InvalidSetting`` for an unknown key, for a key in a
        form that Celery does not read (``WHEELBEAT_TICK`` beside a namespace), and for a value that the table does not
        allow.
        """
        conf = getattr(conf, "data", conf)  # app.conf has no keys before its first attribute is read
        table = specifications()
        _refuse_unknown(conf, table)
        given = {}
        nothing = object()
        for name, default in defaults().items():
            setting, value = table[name], conf.get(PREFIX + name, nothing)
            if value is nothing or (value is None and default is None):
                continue
            try:
                given[name] = setting.read(value)
            except ValueError:
                hidden = name.endswith("_url") and not isinstance(value, (int, float))  # a URL holds a password
                shown = "…" if hidden else repr(value)
                raise InvalidSetting(
                    f"{PREFIX}{name} = {shown} ({type(value).__name__}): expected {setting.expected()}"
                ) from None
        return cls(**given)  # type: ignore[arg-type]  # every value went through its Setting


def specifications() -> dict[str, Setting]:
    """Return the table: name without prefix → its ``Setting``."""
    return {item.name: item.metadata["setting"] for item in fields(Settings)}


def defaults() -> dict[str, Any]:
    """Return name without prefix → default."""
    return {item.name: item.default for item in fields(Settings)}


def _refuse_unknown(conf: Mapping[str, Any], names: Collection[str]) -> None:
    namespace: str = getattr(conf, "prefix", "") or ""
    for key in conf:
        if not isinstance(key, str) or PREFIX not in key.lower():
            continue
        seen = key.removeprefix(namespace).lower() if namespace and key.startswith(namespace) else key
        if seen.startswith(PREFIX) and seen.removeprefix(PREFIX) not in names:
            raise InvalidSetting(f"{key} is not a setting of celery-wheelbeat; {_nearest(seen, names)}")
        if seen == key and key != key.lower() and key.lower().removeprefix(PREFIX) in names:
            remedy = (namespace + key).upper() if namespace else key.lower()
            raise InvalidSetting(f"{key} has no effect under this name: write {remedy}")


def _nearest(key: str, names: Collection[str]) -> str:
    near = get_close_matches(key.removeprefix(PREFIX), names, n=1)
    return f"did you mean {PREFIX}{near[0]}?" if near else f"the settings are {', '.join(PREFIX + n for n in names)}"
