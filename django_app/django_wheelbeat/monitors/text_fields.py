"""Columns that hold text and take Python values: arguments as a list or a dict, tags as any collection of texts.

A value becomes text where it is given (assignment, ``create``, ``bulk_create``, ``update``, ``filter``), never later,
so what cannot be stored is refused there. A text is taken as it is.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, ClassVar

from django.db import models
from django.db.models.query_utils import DeferredAttribute
from kombu.utils import json as kombu_json

from celery_wheelbeat.errors import InvalidMonitor

if TYPE_CHECKING:
    from django.db.models.expressions import Combinable


class _Converted(DeferredAttribute):
    """The attribute of such a column."""

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self.field.attname] = self.field.text_of(value)


class _ConvertedField(models.Field):
    """What the columns have in common; to migrations they are plain text columns.

    ``_pyi_private_set_type``: what may be assigned, for django-stubs.
    """

    descriptor_class = _Converted
    plain: ClassVar[type[models.Field]]

    def text_of(self, value: Any) -> Any:
        """Return the text of a Python value; what is text, NULL or an expression of the database stays."""
        if value is None or isinstance(value, str) or hasattr(value, "resolve_expression"):
            return value
        return self.converted(value)

    def converted(self, value: Any) -> str:
        """Return the text of ``value``, or raise ``InvalidMonitor``."""
        raise NotImplementedError

    def get_prep_value(self, value: Any) -> Any:
        """Convert what ``update`` and look-ups are given."""
        return super().get_prep_value(self.text_of(value))

    def deconstruct(self) -> Any:
        """Be the plain column in migrations."""
        name, _, arguments, options = super().deconstruct()
        return name, f"django.db.models.{self.plain.__name__}", arguments, options


class _JsonField(_ConvertedField, models.TextField):
    plain = models.TextField
    holds: ClassVar[tuple[type, ...]]
    example: ClassVar[str]

    def converted(self, value: Any) -> str:
        """Write a value as Celery's own JSON, in which instants, decimals and UUIDs arrive as what they are."""
        given = reprlib.repr(value)
        if not isinstance(value, self.holds):
            raise InvalidMonitor(
                self.name, f"{given} is of type {type(value).__name__}, expected {self.example} or its JSON"
            )
        try:
            _refuse_other_keys(value)
            text = str(kombu_json.dumps(value, ensure_ascii=False, allow_nan=False))
            text.encode()  # half of a surrogate pair cannot be stored
        except (TypeError, ValueError, RecursionError) as problem:
            raise InvalidMonitor(self.name, f"{given} cannot be sent as JSON: {problem}") from problem
        return text


class JsonListField(_JsonField):
    """Positional arguments."""

    _pyi_private_set_type: str | list[Any] | tuple[Any, ...] | Combinable
    holds = (list, tuple)
    example = 'a list like [1, "two"]'


class JsonObjectField(_JsonField):
    """Keyword arguments, headers, options."""

    _pyi_private_set_type: str | dict[str, Any] | Combinable
    holds = (dict,)
    example = 'a dict like {"key": "value"}'


class TagListField(_ConvertedField, models.CharField):
    """Tags as ``a,b,c``."""

    _pyi_private_set_type: str | Sequence[str] | AbstractSet[str] | Combinable
    plain = models.CharField

    def converted(self, value: Any) -> str:
        """Join a collection of tags: sorted, each once."""
        given = list(value) if isinstance(value, Sequence | AbstractSet) and not isinstance(value, bytes) else [value]
        for tag in given:
            if not isinstance(tag, str) or "," in tag:
                raise InvalidMonitor(self.name, f"{reprlib.repr(tag)} is no tag: expected a text without commas")
        return ",".join(sorted({tag.strip() for tag in given} - {""}))


def _refuse_other_keys(value: Any) -> None:
    """Raise ``TypeError`` for keys that are no texts: JSON would turn them into texts without a word."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"the key {reprlib.repr(key)} is of type {type(key).__name__}, expected a text")
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            _refuse_other_keys(item)
