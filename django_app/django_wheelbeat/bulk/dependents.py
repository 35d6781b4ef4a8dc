"""Objects of other apps with foreign keys to monitors, as far as a deletion concerns them.

Django's own delete page reads every object to be deleted. There may be millions, so this module runs one query per
related model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db.models import CASCADE, DO_NOTHING
from django.db.models.deletion import get_candidate_relations_to_delete

if TYPE_CHECKING:
    from django.http import HttpRequest


def forbidden_dependents(modeladmin: Any, request: HttpRequest, monitors: Any) -> list[str]:
    """Return names of models whose objects would be deleted with ``monitors`` although the user may not delete them.

    ``monitors`` is a queryset; the names are verbose names, sorted. As in Django's own deletion, the model's admin
    decides; models without an admin are allowed.
    """
    registry = modeladmin.admin_site._registry
    forbidden: set[str] = set()
    seen = set()
    todo = [monitors]
    while todo:
        objects = todo.pop()
        for relation in _relations(objects.model, CASCADE):
            model = relation.related_model
            if relation.field in seen:
                continue
            seen.add(relation.field)
            going = model._base_manager.using(objects.db).filter(
                **{f"{relation.field.name}__in": objects.order_by().values("pk")}
            )
            if model in registry and not registry[model].has_delete_permission(request) and going.exists():
                forbidden.add(str(model._meta.verbose_name))
            todo.append(going)
    return sorted(forbidden)


def tables_that_only_the_database_checks(model: Any) -> list[str]:
    """Return tables whose foreign keys to ``model`` only the database checks, at the end of the transaction."""
    return [relation.related_model._meta.db_table for relation in _relations(model, DO_NOTHING)]


def _relations(model: Any, on_delete: Any) -> list[Any]:
    return [relation for relation in get_candidate_relations_to_delete(model._meta) if relation.on_delete is on_delete]
