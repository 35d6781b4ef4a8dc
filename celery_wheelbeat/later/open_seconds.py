"""Which seconds are open, and when nobody can write into one any more: pure, by snapshots of transactions.

A writer takes its transaction id first and reads the database's clock after that; its row lies in a second later than
that clock. So a transaction whose id was not assigned yet when the clock had reached a second never writes into it. A
second is closed once every transaction that had an id by then has ended, however long it took. A snapshot does not show
which ids are assigned: its ``xmax`` is the greatest id of a transaction that has ended, plus one. So an id is taken
when a second has passed.

Never: a clock of an application host. All times are the database's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MARGIN_S = 2
"""A second has passed this long after it: the same rule, with room for clocks that are stepped back."""


class TransactionSnapshot(NamedTuple):
    """Which transactions had ended: all below ``xmin``, none from ``xmax`` on.

    Of those between, all had ended but ``in_progress``.
    """

    xmin: int
    xmax: int
    in_progress: tuple[int, ...] = ()

    def sees(self, xid: int) -> bool:
        """Return whether the rows of a committed transaction ``xid`` are visible."""
        return xid < self.xmax and xid not in self.in_progress

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.in_progress))}"

    @classmethod
    def of(cls, text: str) -> TransactionSnapshot:
        """Read the text form of PostgreSQL's ``pg_snapshot``."""
        xmin, xmax, in_progress = text.split(":")
        return cls(int(xmin), int(xmax), tuple(map(int, in_progress.split(","))) if in_progress else ())


class Resume(NamedTuple):
    """What a beat stores with its mark, so that the next one reads no run a second time and misses none."""

    closed_s: int
    """Every second up to this one is closed and settled."""
    done_s: int
    """Of the seconds up to this one, all runs that ``snapshot`` sees are settled (sent or skipped)."""
    snapshot: str | None
    """Text of the ``TransactionSnapshot``."""
    history: str | None = None
    """Identity of the server and its history; a snapshot of another one means nothing."""

    def before(self, unsettled_s: Iterable[int]) -> Resume:
        """Return the value to store while runs of ``unsettled_s`` are neither sent nor skipped."""
        first_s = min(unsettled_s, default=self.done_s + 1)
        return self._replace(closed_s=min(self.closed_s, first_s - 1), done_s=min(self.done_s, first_s - 1))

    @classmethod
    def read(cls, document: Mapping[str, object]) -> Resume | None:
        """Return the value in a stored document; None if it is none."""
        closed_s, done_s, snapshot, history = (document.get(name) for name in cls._fields)
        if not isinstance(closed_s, int) or not isinstance(done_s, int) or done_s < closed_s:
            return None
        try:
            text = None if snapshot is None else str(TransactionSnapshot.of(str(snapshot)))
        except ValueError:
            return None
        return cls(closed_s, done_s, text, None if history is None else str(history))


class Plan(NamedTuple):
    """What one poll has to read, in the snapshot that it takes."""

    late_s: list[int]
    """Open seconds: read what the last snapshot did not see."""
    new_s: list[int]
    """Seconds that open now: read them whole."""


class OpenSeconds:
    """The seconds that have been read and may still be written to; owned by the thread that polls."""

    def __init__(self, resume: Resume) -> None:
        self.snapshot = None if resume.snapshot is None else TransactionSnapshot.of(resume.snapshot)
        """The last snapshot in which everything due was read; None before the first poll."""
        self.history = resume.history
        self.closed_s = resume.closed_s
        self.opened_s = resume.closed_s if self.snapshot is None else resume.done_s
        """Every second up to this one has been opened."""
        self._passed: dict[int, int | None] = dict.fromkeys(range(self.closed_s + 1, self.opened_s + 1))
        """Open second → a transaction id that was assigned when the second had passed; None before."""

    def __len__(self) -> int:
        return len(self._passed)

    def plan(self, until_s: int) -> Plan:
        """Return what a poll reads that opens every second up to ``until_s``."""
        return Plan(sorted(self._passed), list(range(self.opened_s + 1, until_s + 1)))

    def continues(self, snapshot: TransactionSnapshot, history: str) -> bool:
        """Begin a poll; returns False if transaction ids started over, so that open seconds are read whole again."""
        last, before = self.snapshot, self.history
        self.history = history
        if last is None or (before == history and snapshot.xmax >= last.xmax and snapshot.xmin >= last.xmin):
            return True
        self.snapshot = None
        self.opened_s = self.closed_s
        self._passed.clear()
        return False

    def passed(self, now_s: int) -> list[int]:
        """Return the seconds that have passed and wait for ``note_passed``. ``now_s``: the database's clock."""
        return [second for second, xid in self._passed.items() if xid is None and now_s >= second + MARGIN_S]

    def note_passed(self, seconds: Iterable[int], xid: int) -> None:
        """Note a transaction id that was assigned after ``seconds`` had passed."""
        self._passed.update(dict.fromkeys(seconds, xid))

    def polled(self, plan: Plan, snapshot: TransactionSnapshot) -> None:
        """Note a poll that read all of ``plan`` in ``snapshot``."""
        self._passed.update(dict.fromkeys(plan.new_s))
        self.opened_s = max([self.opened_s, *plan.new_s[-1:]])
        self.snapshot = snapshot
        self._close(snapshot)

    def state(self) -> Resume:
        """Return where to go on if everything that was read is settled."""
        text = None if self.snapshot is None else str(self.snapshot)
        return Resume(self.closed_s, self.opened_s, text, self.history)

    def _close(self, snapshot: TransactionSnapshot) -> None:
        for second in sorted(self._passed):
            xid = self._passed[second]
            if xid is None or snapshot.xmin < xid:
                return
            del self._passed[second]
            self.closed_s = second
