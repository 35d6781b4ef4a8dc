"""The options of ``apply_async`` that retries and members of a chain, group or chord have; monitors have none of them.

They contain signatures that workers send, so the rules of callbacks apply to those. Never: I/O, a clock.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from celery_wheelbeat.jobs import names
from celery_wheelbeat.jobs.send_options import callback_problem

MOST = 1_000_000
"""Greatest number of retries, of members of a group, and of replacements."""
_NUMBERS = ("retries", "group_index", "replaced_task_nesting")
_TEXTS = ("argsrepr", "kwargsrepr")
_SIGNATURES: dict[str, type] = {"chain": list, "chord": dict}
NAMES = (*_NUMBERS, *_TEXTS, *_SIGNATURES)


class Canvas(NamedTuple):
    """Options, and what is wrong with them."""

    options: dict[str, Any]
    problems: list[str]


def taken_from(given: dict[str, Any]) -> Canvas:
    """Remove the options of this kind from ``given`` and return them."""
    options = {name: given.pop(name) for name in NAMES if name in given}
    return Canvas(options, [f"options: {reason}" for reason in map(_problem, options, options.values()) if reason])


def _problem(name: str, value: Any) -> str | None:
    if name in _NUMBERS:
        fits = type(value) is int and 0 <= value <= MOST
        return None if fits else f"{name!r} is {value!r:.80}, expected a whole number from 0 to {MOST:,}"
    if name in _TEXTS:
        problem = names.name_problem(value) if isinstance(value, str) else f"is {value!r:.80}, expected a text"
    elif isinstance(value, _SIGNATURES[name]):
        problem = callback_problem(value)
    else:
        problem = f"is {value!r:.80}, expected {'signatures' if name == 'chain' else 'a signature'}"
    return f"{name!r} {problem}" if problem else None
