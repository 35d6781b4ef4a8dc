"""What other apps hang on monitors by foreign keys, and what a deletion has to do with it.

Django's own page looks at every object that is about to go; here one question per kind of object has to do, because
there may be millions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db.models import CASCADE, DO_NOTHING
from django.db.models.deletion import get_candidate_relations_to_delete

if TYPE_CHECKING:
    from django.http import HttpRequest


def forbidden_dependents(modeladmin: Any, request: HttpRequest, monitors: Any) -> list[str]:
    """Name the kinds of objects that would go with ``monitors``, a queryset, and that the user may not delete.

    As in Django's own deletion, the admin of such a kind is asked; objects without an admin are nobody's to refuse.
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
    """Tables whose keys to ``model`` Django leaves to the database, which checks them when a transaction ends."""
    return [relation.related_model._meta.db_table for relation in _relations(model, DO_NOTHING)]


def _relations(model: Any, on_delete: Any) -> list[Any]:
    return [relation for relation in get_candidate_relations_to_delete(model._meta) if relation.on_delete is on_delete]
