"""The add form takes initial values from its query string: whatever they are, the page is shown."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_wheelbeat.admin.form import MonitorForm

ADD = "/admin/wheelbeat/monitor/add/"
ODD = (
    "zzz", "", " ", "0", "-1", "1e999", "nan", "null", "[]", "{", '{"a":', "next", "9" * 400, "2026-13-45 99:99",
    "2026-12-01T10:00:00+99:99", "0001-01-01 00:00:00", "9999-12-31 23:59:59", "\x00", "\ud800", "é" * 300, "<b>", "%",
)  # fmt: skip
FIELDS = [*MonitorForm.base_fields, "id", "unknown", "_changelist_filters", "_popup"]


@pytest.fixture
def page(db: Any, login: Any) -> Any:
    return login()


@pytest.mark.parametrize("value", ODD)
def test_an_odd_value_in_every_field_is_no_error(page: Any, value: str) -> None:
    query = dict.fromkeys(FIELDS, value.encode(errors="surrogatepass"))
    assert page.get(ADD, query).status_code == HTTPStatus.OK


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(
    query=st.dictionaries(st.sampled_from(FIELDS), st.one_of(st.sampled_from(ODD), st.text(max_size=20)), min_size=9)
)
def test_no_query_string_is_an_error(page: Any, query: dict[str, str]) -> None:
    sendable = {name: value.encode(errors="surrogatepass") for name, value in query.items()}
    assert page.get(ADD, sendable).status_code == HTTPStatus.OK


def test_values_that_can_be_read_are_shown(page: Any) -> None:
    query = {"name": "from a link", "once_at": "2031-05-06 07:08:09", "interval_ms": "90s"}
    text = page.get(ADD, query).content.decode()
    for shown in ("from a link", "2031-05-06", "07:08:09", "90s"):
        assert f'value="{shown}"' in text
