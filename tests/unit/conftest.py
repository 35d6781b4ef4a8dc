"""Unit tests know no database of Django's, even where other tests of the same process have set Django up."""

from __future__ import annotations

import pytest

from celery_wheelbeat import sources


@pytest.fixture(autouse=True)
def _no_database_of_monitors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_factory", None)
