"""Findings of the watchdog: a closed list, and the report of one sweep."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_wheelbeat.jobs import Int64s

FINDINGS = {
    "lost": "an armed job that the wheel does not hold",
    "misfiled": "an armed job that the wheel holds only in a wrong place",
    "ghost": "an entry of the wheel that belongs to nothing",
    "double": "a job that one unmarked slot holds twice",
    "edge": "the border between slots and far windows is not where the cursor puts it",
    "past_due": "a job armed for a time that has passed",
    "off_grid": "a job armed for another time than its schedule says",
    "unsorted": "ids that are not in ascending order",
    "foreign": "a job of another shard, or the same job twice",
    "definition": "a definition that changed though nobody changed it, or that cannot be right",
    "payload": "a job whose arguments or name are no longer what was stored",
    "cursor": "a cursor that disagrees with the other shards",
    "uncounted": "a run that must have passed and was not handed out",
    "surplus": "a run that was handed out though none was due",
}
"""Everything that a sweep can find. The only good count of each is 0."""
EXAMPLES = 10


@dataclass(slots=True)
class SweepReport:
    """What a sweep of one shard found and healed."""

    shard: int
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[int]] = field(default_factory=dict)
    """A few job ids for each finding, for the log."""
    reload_ids: list[int] = field(default_factory=list)
    """Jobs that were switched off because they are damaged: to be read from their source again."""
    resync: bool = False
    """Definitions are damaged and it cannot be told which: everything is to be read again."""

    @property
    def healthy(self) -> bool:
        """Say whether nothing was found."""
        return not self.counts

    def add(self, finding: str, count: int, ids: Int64s | None = None) -> None:
        """Count a finding of the closed list."""
        if count:
            self.counts[finding] += count
            if ids is not None:
                known = self.examples.setdefault(finding, [])
                known += ids[: EXAMPLES - len(known)].tolist()
