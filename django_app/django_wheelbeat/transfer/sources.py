"""Records which monitors an import created, and finds those that no longer exist at their source.

Only monitors that the import created are pruned, never earlier ones or those renamed since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from django_wheelbeat.bulk.operations import Delete, Note
from django_wheelbeat.database.actors import acting
from django_wheelbeat.database.chunks import chunks_of_ids
from django_wheelbeat.models import Monitor, Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from collections.abc import Set as AbstractSet


class Source(NamedTuple):
    """Another scheduler's definitions."""

    name: str
    """Unique name of the source; stored, so it must never change."""
    present: Callable[[AbstractSet[str]], AbstractSet[str]]
    """Returns the subset of the given names that exist at the source and belong in the monitor table."""


def record_source(source: str, names: Collection[str], *, using: str) -> None:
    """Record that the monitors ``names`` were created from ``source``; runs in the caller's transaction."""
    made = dict(Monitor.objects.using(using).filter(name__in=names).values_list("pk", "name"))
    origins = Origin.objects.using(using)
    origins.filter(pk__in=made).delete()
    origins.bulk_create(Origin(pk=pk, source=source, name=name) for pk, name in made.items())


def missing_at(source: Source, *, using: str) -> Iterator[list[tuple[int, str]]]:
    """Yield, in chunks, primary key and name of monitors created from ``source`` that no longer exist there."""
    origins = Origin.objects.using(using).filter(source=source.name)
    for ids in chunks_of_ids(origins):
        marks = dict(origins.filter(pk__in=ids).values_list("pk", "name"))
        present = source.present(set(marks.values()))
        absent = [pk for pk, name in marks.items() if name not in present]
        monitors = Monitor.objects.using(using).filter(pk__in=absent).order_by("pk").values_list("pk", "name")
        found = [(pk, name) for pk, name in monitors if marks[pk] == name]
        if found:
            yield found


def delete(keys: Sequence[int], actor: str, reason: str, *, using: str) -> dict[str, str]:
    """Delete a chunk of monitors in one transaction; return name → reason of those that cannot be deleted."""
    with acting(actor, reason, using=using):
        outcome = Delete(reason).apply(Monitor.objects.using(using).filter(pk__in=keys), Note.nothing(using))
        Origin.objects.using(using).filter(pk__in=list(outcome.changed)).delete()
    return outcome.refused
