"""Arguments, headers, options and tags as Python values: stored as text that beats and look-ups can read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils import json as kombu_json

from celery_wheelbeat.errors import InvalidMonitor

WHEN = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def stored(column: str) -> list[Any]:
    from django_wheelbeat.models import Monitor

    return list(Monitor.objects.order_by("name").values_list(column, flat=True))


def test_python_values_are_stored_as_text_on_every_way(any_vendor: Any) -> None:
    from django_wheelbeat.models import Monitor

    given = {
        "args": ["é", 1],
        "kwargs": {"site": 1},
        "headers": {"customer": None},
        "options": {"shadow": "s"},
        "tags": ["eu", "beta", "eu"],
    }
    texts = {
        "args": '["é", 1]',
        "kwargs": '{"site": 1}',
        "headers": '{"customer": null}',
        "options": '{"shadow": "s"}',
        "tags": "beta,eu",
    }
    base = {"task": "t", "interval_ms": 60_000}
    created = Monitor.objects.create(name="created", **base, **given)
    assert {name: getattr(created, name) for name in texts} == texts, "also before it is read again"
    created.full_clean()
    Monitor.objects.bulk_create([Monitor(name="in bulk", **base, **given)])
    Monitor.objects.update_or_create(name="or created", defaults=base | given)
    plain = [Monitor(name=name, **base) for name in ("saved", "updated", "updated in bulk")]
    Monitor.objects.bulk_create(plain)
    saved = Monitor.objects.get(name="saved")
    for name, value in given.items():
        setattr(saved, name, value)
    saved.save()
    assert Monitor.objects.filter(name="updated").update(**given) == 1
    row = Monitor.objects.defer("kwargs").get(name="updated in bulk")
    for name, value in given.items():
        setattr(row, name, value)
    Monitor.objects.bulk_update([row], list(given))
    for name, text in texts.items():
        assert stored(name) == [text] * 6
        assert Monitor.objects.filter(**{name: given[name]}).count() == 6
    assert Monitor.objects.tagged("beta").count() == 6
    assert Monitor.objects.filter(tags__in=[["beta", "eu"], {"other"}]).count() == 6


def test_texts_tuples_sets_and_expressions_are_taken(either: Any) -> None:
    from django.db.models import F, Value
    from django.db.models.functions import Concat

    from django_wheelbeat.models import Monitor

    monitor = Monitor.objects.create(
        name="m", task="t", interval_ms=1_000, args=(1,), kwargs=' {"a": 1}', tags=frozenset({" b ", "a", ""})
    )
    assert (monitor.args, monitor.kwargs, monitor.tags) == ("[1]", ' {"a": 1}', "a,b")
    Monitor.objects.update(tags=Concat(F("tags"), Value(",c")), description=F("kwargs"))
    monitor.refresh_from_db()
    assert (monitor.tags, monitor.description) == ("a,b,c", ' {"a": 1}')
    monitor.tags = F("description")
    monitor.save()
    assert stored("tags") == [' {"a": 1}']


def test_what_celery_can_send_arrives_as_it_was(db: Any) -> None:
    from django_wheelbeat.models import Monitor

    sent = {"when": WHEN, "price": Decimal("1.50"), "id": UUID(int=7), "nested": [{"when": WHEN}, "é😀"]}
    monitor = Monitor.objects.create(name="m", task="t", interval_ms=1_000, kwargs=sent)
    monitor.full_clean()
    monitor.refresh_from_db()
    assert kombu_json.loads(monitor.kwargs) == sent


CIRCULAR: list[Any] = []
CIRCULAR.append(CIRCULAR)
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("kwargs", {"a": {1, 2}}, "cannot be sent as JSON: .*set"),
        ("kwargs", {"a": object()}, "cannot be sent as JSON: .*object"),
        ("kwargs", {"a": float("nan")}, "cannot be sent as JSON"),
        ("kwargs", {1: "a"}, "the key 1 is of type int, expected a text"),
        ("args", [{"a": [{None: 1}]}], "the key None is of type NoneType"),
        ("args", CIRCULAR, "cannot be sent as JSON"),
        ("args", DEEP, "cannot be sent as JSON"),
        ("args", {"a": 1}, "is of type dict, expected a list like"),
        ("args", b"[]", "is of type bytes, expected a list like"),
        ("kwargs", [1], "is of type list, expected a dict like"),
        ("kwargs", 5, "is of type int, expected a dict like"),
        ("kwargs", {"a": "\ud800"}, "cannot be sent as JSON: .*surrogates"),
        ("headers", {"a": object()}, "cannot be sent as JSON"),
        ("options", ["x"], "is of type list, expected a dict like"),
        ("tags", ["a,b"], "'a,b' is not a tag"),
        ("tags", ["a", 5], "5 is not a tag"),
        ("tags", 5, "5 is not a tag"),
        ("tags", {"a": 1}, "is not a tag"),
        ("tags", b"a", "is not a tag"),
    ],
    ids=lambda value: f"{value!r:.30}" if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_stored_is_refused_where_it_is_given(either: Any, column: str, value: Any, reason: str) -> None:
    from django.db import transaction

    from django_wheelbeat.models import Monitor

    monitor = Monitor.objects.create(name="there", task="t", interval_ms=1_000)
    attempts = (
        lambda: Monitor(name="m", task="t", interval_ms=1_000, **{column: value}),
        lambda: setattr(monitor, column, value),
        lambda: Monitor.objects.update(**{column: value}),
    )
    for attempt in attempts:
        with pytest.raises(InvalidMonitor, match=f"(?s)^{column}: .*{reason}"), transaction.atomic():
            attempt()
    assert stored("name") == ["there"]


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=10,
)


@given(st.lists(JSON), st.dictionaries(TEXT, JSON))
def test_every_json_value_comes_back(args: list[Any], kwargs: dict[str, Any]) -> None:
    from django_wheelbeat.models import Monitor

    monitor = Monitor(name="m", task="t", interval_ms=1_000, args=args, kwargs=kwargs)
    assert (json.loads(monitor.args), json.loads(monitor.kwargs)) == (args, kwargs)
