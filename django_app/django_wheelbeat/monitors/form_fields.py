"""Form fields that convert typed text to stored values: durations, expiry, tags; and inputs with completion."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError

from celery_wheelbeat.errors import InvalidSchedule
from celery_wheelbeat.schedules.durations import format_duration, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

EXPIRES_NEXT = "next"
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")


class DatalistInput(forms.TextInput):
    """A text input that suggests values while typing and accepts any other text."""

    template_name = "wheelbeat/widgets/datalist.html"

    def __init__(self, offered: Callable[[], Iterable[str]], attrs: dict[str, Any] | None = None) -> None:
        super().__init__({"autocomplete": "off", "spellcheck": "false", **(attrs or {})})
        self.offered = offered

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        """Add the offered values; they are computed at rendering, not when the form is built."""
        context = super().get_context(name, value, attrs)
        list_id = f"{context['widget']['attrs'].get('id', f'id_{name}')}_offered"
        context["widget"]["attrs"]["list"] = list_id
        context["widget"] |= {"list_id": list_id, "offered": self.offered()}
        return context


class CodeTextarea(forms.Textarea):
    """A text area for JSON: fixed-width, as tall as its text, without spell checking."""

    def __init__(self, rows: int = 3) -> None:
        super().__init__({"rows": rows, "cols": 80, "class": "vLargeTextField wheelbeat-code", "spellcheck": "false"})


class DurationField(forms.CharField):
    """A duration such as ``90s``, ``5m`` or ``1h30m``; cleans to integer milliseconds, empty text to None."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"max_length": 40, **kwargs})

    def clean(self, value: Any) -> Any:
        """Clean the text as a ``CharField`` does, then parse it with the engine's parser."""
        text = super().clean(value)
        if not text:
            return None
        try:
            return self.read(text)
        except InvalidSchedule as refusal:
            raise ValidationError(str(refusal), code="invalid") from refusal

    def read(self, text: str) -> Any:
        """Return milliseconds, or raise ``InvalidSchedule``."""
        return parse_duration(text)

    def prepare_value(self, value: Any) -> Any:
        """Show stored milliseconds as a duration; typed text stays as typed."""
        return format_duration(value) if isinstance(value, int) else value

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Compare cleaned values: ``60s`` and ``1m`` are the same."""
        try:
            return self.clean(data) != initial
        except ValidationError:
            return True


class ExpiresField(DurationField):
    """Seconds, a duration, or ``next`` (until the following run). Cleans to seconds, ``EXPIRES_NEXT`` or None."""

    def read(self, text: str) -> Any:
        """Return seconds or ``EXPIRES_NEXT``; a number without a unit is in seconds, as in ``apply_async``."""
        if text.lower() == EXPIRES_NEXT:
            return EXPIRES_NEXT
        return parse_duration(f"{text}s" if _NUMBER.fullmatch(text) else text) / 1000

    def prepare_value(self, value: Any) -> Any:
        """Show stored seconds as a duration."""
        return format_duration(round(value * 1000)) if isinstance(value, float | int) else value


class TagsField(forms.CharField):
    """Comma-separated tags; cleans to the stored form ``a,b,c``: sorted, distinct, stripped."""

    def clean(self, value: Any) -> str:
        """Sort, strip and deduplicate the tags."""
        tags = {tag.strip() for tag in super().clean(value).split(",")} - {""}
        return ",".join(sorted(tags))

    def prepare_value(self, value: Any) -> Any:
        """Show stored tags with a space after each comma."""
        return ", ".join(filter(None, value.split(","))) if isinstance(value, str) else value

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Ignore the order of tags and the spaces between them."""
        return self.clean(data) != (initial or "")
