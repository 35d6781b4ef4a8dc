"""Text columns that accept Python values: arguments as list or dict, tags as any collection of strings.

Values are converted where they are assigned or passed (``create``, ``bulk_create``, ``update``, ``filter``), so a value
that cannot be stored raises there. Strings are stored unchanged.
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
    """Attribute that converts on assignment."""

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self.field.attname] = self.field.text_of(value)


class _ConvertedField(models.Field):
    """Base of the columns; migrations see plain text columns.

    ``_pyi_private_set_type``: the types that may be assigned, for django-stubs.
    """

    descriptor_class = _Converted
    plain: ClassVar[type[models.Field]]

    def text_of(self, value: Any) -> Any:
        """Return a Python value as text; text, None and database expressions are returned unchanged."""
        if value is None or isinstance(value, str) or hasattr(value, "resolve_expression"):
            return value
        return self.converted(value)

    def converted(self, value: Any) -> str:
        """Return the text of ``value``, or raise ``InvalidMonitor``."""
        raise NotImplementedError

    def get_prep_value(self, value: Any) -> Any:
        """Convert values passed to ``update`` and lookups."""
        return super().get_prep_value(self.text_of(value))

    def deconstruct(self) -> Any:
        """Appear as the plain column in migrations."""
        name, _, arguments, options = super().deconstruct()
        return name, f"django.db.models.{self.plain.__name__}", arguments, options


class _JsonField(_ConvertedField, models.TextField):
    plain = models.TextField
    holds: ClassVar[tuple[type, ...]]
    example: ClassVar[str]

    def converted(self, value: Any) -> str:
        """Serialize as Celery's JSON, which preserves datetimes, decimals and UUIDs."""
        given = reprlib.repr(value)
        if not isinstance(value, self.holds):
            raise InvalidMonitor(
                self.name, f"{given} is of type {type(value).__name__}, expected {self.example} or its JSON"
            )
        try:
            _refuse_other_keys(value)
            text = str(kombu_json.dumps(value, ensure_ascii=False, allow_nan=False))
            text.encode()  # a lone surrogate cannot be stored
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
        """Join a collection of tags, sorted and distinct."""
        given = list(value) if isinstance(value, Sequence | AbstractSet) and not isinstance(value, bytes) else [value]
        for tag in given:
            if not isinstance(tag, str) or "," in tag:
                raise InvalidMonitor(self.name, f"{reprlib.repr(tag)} is not a tag: expected a text without commas")
        return ",".join(sorted({tag.strip() for tag in given} - {""}))


def _refuse_other_keys(value: Any) -> None:
    """Raise ``TypeError`` for keys that are not strings: JSON would silently convert them."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"the key {reprlib.repr(key)} is of type {type(key).__name__}, expected a text")
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            _refuse_other_keys(item)
