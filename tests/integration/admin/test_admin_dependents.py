"""Deleting monitors that other apps point at: what keeps a monitor is named, what would go along needs permission."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.postgres

LIST = "/admin/wheelbeat/monitor/"
MANY = 300


@pytest.fixture
def hanging(pg: Any) -> Iterator[dict[str, Any]]:
    """Models with a key to ``Monitor`` for each rule of deletion, with their tables; all of it is taken back."""
    from django.apps import apps
    from django.contrib import admin
    from django.db import models

    from django_wheelbeat.models import Monitor

    def key(on_delete: Any, to: Any = Monitor) -> Any:
        return models.ForeignKey(to, on_delete, null=True, related_name="+")

    def model(name: str, **fields: Any) -> Any:
        meta = type("Meta", (), {"app_label": "wheelbeat", "verbose_name": name.lower()})
        text = {"__str__": lambda self: f"no. {self.pk}"}
        return type(name, (models.Model,), {"__module__": __name__, "Meta": meta, **text, **fields})

    made = {
        "Keeps": model("Keeps", monitor=key(models.PROTECT)),
        "Restricts": model("Restricts", monitor=key(models.RESTRICT)),
        "Unchecked": model("Unchecked", monitor=key(models.DO_NOTHING)),
        "Loosens": model("Loosens", monitor=key(models.SET_NULL)),
        "Goes": model("Goes", monitor=key(models.CASCADE)),
    }
    made["Below"] = model("Below", goes=key(models.CASCADE, made["Goes"]))
    with pg.schema_editor() as editor:
        for each in made.values():
            editor.create_model(each)
    admin.site.register(made["Below"])
    yield made
    admin.site.unregister(made["Below"])
    for name in made:
        del apps.all_models["wheelbeat"][name.lower()]
    apps.clear_cache()


def fill() -> list[int]:
    from django_wheelbeat.models import Monitor

    made = Monitor.objects.bulk_create(Monitor(name=f"m{i:03}", task="t", interval_ms=60_000) for i in range(MANY))
    return [monitor.pk for monitor in made]


def delete(browser: Any) -> str:
    """Delete every monitor through the list; return the messages."""
    answer = {"action": "delete_selected", "select_across": "1", "index": "0", "_selected_action": "1"}
    answer |= {"confirmed": "Delete", "typed": str(MANY)}
    page = browser.post(LIST, answer, follow=True)
    return " ".join(str(message) for message in page.context["messages"])


@pytest.mark.parametrize("kind", ["Keeps", "Restricts", "Unchecked"])
def test_what_another_object_keeps_stays_and_is_named(
    pg: Any, hanging: dict[str, Any], login: Callable[..., Any], kind: str
) -> None:
    from django.contrib.admin.models import LogEntry
    from django.test.utils import CaptureQueriesContext

    from django_wheelbeat.models import Change, Monitor

    ids = fill()
    kept = [ids[7], ids[MANY - 1]]
    objects = [hanging[kind].objects.create(monitor_id=pk) for pk in kept]
    browser = login()
    with CaptureQueriesContext(pg) as queries:
        output = delete(browser)
    assert list(Monitor.objects.order_by("pk").values_list("pk", flat=True)) == kept
    assert f"{MANY - 2} monitors were deleted." in output
    assert "2 monitors were not changed: m007: referenced by " in output
    named = (
        "referenced by a row of another table: "
        if kind == "Unchecked"
        else f"referenced by {kind.lower()} “no. {objects[0].pk}”"
    )
    assert named in output
    assert LogEntry.objects.count() == MANY - 2
    assert Change.objects.filter(operation="D").count() == MANY - 2
    assert len(queries) < 2 * MANY, "they are found by halves, not one by one"
    pg.check_constraints()


def test_what_hangs_on_monitors_goes_or_lets_go(pg: Any, hanging: dict[str, Any], login: Callable[..., Any]) -> None:
    from django_wheelbeat.models import Monitor

    ids = fill()
    for pk in ids[:3]:
        hanging["Below"].objects.create(goes=hanging["Goes"].objects.create(monitor_id=pk))
        hanging["Loosens"].objects.create(monitor_id=pk)
    assert f"{MANY} monitors were deleted." in delete(login())
    assert not Monitor.objects.exists()
    assert not hanging["Goes"].objects.exists()
    assert not hanging["Below"].objects.exists()
    assert list(hanging["Loosens"].objects.values_list("monitor_id", flat=True)) == [None] * 3


def test_nothing_goes_along_that_the_user_may_not_delete(
    pg: Any, hanging: dict[str, Any], login: Callable[..., Any]
) -> None:
    from django_wheelbeat.models import Monitor

    ids = fill()
    hanging["Goes"].objects.create(monitor_id=ids[0])  # it has no admin, so it is nobody's to refuse
    browser = login("deleter", only=("view_monitor", "delete_monitor"))
    last = hanging["Goes"].objects.create(monitor_id=ids[-1])
    below = hanging["Below"].objects.create(goes=last)
    output = delete(browser)
    assert "Nothing was deleted: this would also delete related objects that you may not delete (below)." in output
    assert Monitor.objects.count() == MANY
    below.delete()
    assert f"{MANY} monitors were deleted." in delete(browser)
