"""Options of one task for the worker side: ``@app.task(wheelbeat={"overlap": "skip", "outage": "closed"})``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from celery_wheelbeat.errors import InvalidSetting

if TYPE_CHECKING:
    from celery_wheelbeat.settings import Settings
    from celery_wheelbeat.worker.headers import RunHeaders

LEASE_MAX_S = 604_800
"""A week: the longest time that a dead execution may block its job."""
CHOICES = {
    "outage": ("open", "closed"),
    "overlap": ("", "allow", "skip", "queue_one"),
    "stale": ("run", "drop"),
    "key": ("id", "content"),
}


@dataclass(frozen=True, slots=True)
class Policy:
    """The options of one task; options that it does not set come from the settings."""

    outage: str = "open"
    """Claim store down: ``open`` = run, perhaps twice; ``closed`` = return to the broker."""
    overlap: str = ""
    """Overlap mode of all runs of this task, regardless of their job; empty = as the message specifies."""
    exclusive: bool = False
    """A redelivery waits until the previous execution is known to be dead."""
    stale: str = "run"
    """For a run overdue longer than the TTL of its claim: ``run`` it with a warning, or ``drop`` it."""
    key: str = "id"
    """Copies are recognised by task ``id``, or by ``content``: task, arguments and fire time."""
    lease_s: float = 30.0
    """Seconds after which the lease of a dead worker is free."""
    wait_s: float = 5.0
    """Seconds between two attempts of a waiting run to get the lease."""

    def job_of(self, run: RunHeaders) -> str:
        """Return the job that copies of ``run`` must share; empty if equal content alone makes them copies."""
        return "" if self.key == "content" else run.name

    @classmethod
    def of(cls, settings: Settings) -> Policy:
        """Return the policy of a task without options of its own."""
        return cls(outage=settings.dedup_outage, exclusive=settings.dedup_exclusive, key=settings.dedup_key)

    def choose(self, name: str, choices: Mapping[str, Any], *, acks_late: bool) -> Policy:
        """Return this policy with the options of task ``name``; raises ``InvalidSetting`` for contradictory ones."""
        known = {item.name: item.type for item in fields(self)}
        if not isinstance(choices, Mapping):
            raise InvalidSetting(f"task {name}: wheelbeat = {choices!r}, expected a dict of {', '.join(sorted(known))}")
        for option, value in choices.items():
            if option not in known:
                near = get_close_matches(option, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
                raise InvalidSetting(f"task {name}: wheelbeat option {option!r} does not exist; {hint}")
            if option in CHOICES and value not in CHOICES[option]:
                expected = ", ".join(repr(choice) for choice in CHOICES[option] if choice)
                raise InvalidSetting(f"task {name}: wheelbeat option {option} = {value!r}, expected one of {expected}")
            if known[option] == "bool" and not isinstance(value, bool):
                raise InvalidSetting(f"task {name}: wheelbeat option {option} = {value!r}, expected True or False")
            if known[option] == "float" and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise InvalidSetting(f"task {name}: wheelbeat option {option} = {value!r}, expected seconds")
        chosen = replace(self, **choices)
        if not 0 < chosen.wait_s <= chosen.lease_s <= LEASE_MAX_S:
            raise InvalidSetting(
                f"task {name}: wheelbeat options wait_s = {chosen.wait_s!r}, lease_s = {chosen.lease_s!r}, "
                f"expected 0 < wait_s <= lease_s <= {LEASE_MAX_S}"
            )
        if chosen.outage == "closed" and not acks_late:
            raise InvalidSetting(
                f"task {name}: outage = 'closed' returns messages to the broker, which needs late acknowledgement: "
                "set acks_late=True on the task, or outage='open'"
            )
        return chosen
