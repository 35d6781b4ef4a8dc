"""``python -m simulation 42`` shows one world, ``python -m simulation 0-9999`` runs many; from the folder ``tests``."""

from __future__ import annotations

import logging
import sys
import time

from simulation.promises import AuditError
from simulation.world import run_seed


def main(chosen: str) -> int:
    """Run the seeds ``chosen``; returns the exit status."""
    first, _, last = chosen.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    logging.basicConfig(level=logging.INFO if len(seeds) == 1 else logging.CRITICAL + 1)
    turns = runs = failed = 0
    begun_s = time.process_time()
    for seed in seeds:
        try:
            report = run_seed(seed)
        except AuditError as error:
            failed += 1
            print(error, flush=True)  # noqa: T201 - a program for the terminal
            if len(seeds) == 1:
                raise
            continue
        turns += report.turns
        runs += report.runs
    taken_s = time.process_time() - begun_s
    sys.stdout.write(f"{len(seeds)} seeds, {failed} failed, {turns:,} turns, {runs:,} runs, {taken_s:.1f} s of CPU\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
