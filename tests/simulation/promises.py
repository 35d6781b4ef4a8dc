"""What happens where a promise is broken."""

from __future__ import annotations

from typing import Any


class AuditError(AssertionError):
    """A promise was broken."""


def demand(condition: object, promise: str, **facts: Any) -> None:
    """Raise ``AuditError`` unless ``condition`` holds."""
    if not condition:
        raise AuditError(promise + "".join(f"\n    {name} = {value!r}" for name, value in facts.items()))
