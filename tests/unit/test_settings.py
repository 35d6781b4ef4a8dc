"""Settings: what is accepted, what is refused and with which words, and that the page in docs is the table."""

from __future__ import annotations

import math
import runpy
import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest
from celery import Celery

from celery_wheelbeat.dispatch.broker import driver_type
from celery_wheelbeat.errors import InvalidSetting, WheelbeatError
from celery_wheelbeat.settings import Settings, defaults, specifications
from celery_wheelbeat.sources.databases.open import from_url

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"


def test_an_empty_conf_gives_the_defaults():
    settings = Settings.from_conf({"broker_url": "memory://", "tick": 7})
    assert settings == Settings()
    assert (settings.tick_ms, settings.shards, settings.stall_limit_ms) == (1000, 256, 300_000)


def test_every_default_is_a_valid_value_of_its_setting():
    given = {f"wheelbeat_{name}": value for name, value in defaults().items()}
    assert Settings.from_conf(given) == Settings()


def test_values_arrive_in_their_type():
    settings = Settings.from_conf({"wheelbeat_misfire_gap": timedelta(minutes=2), "wheelbeat_backlog_max": 5_000.0})
    assert settings.misfire_gap_ms == 120_000
    assert settings.backlog_max == 5_000
    assert isinstance(settings.backlog_max, int)
    settings = Settings.from_conf({"wheelbeat_allowed_tasks": ["proj.*"], "wheelbeat_allowed_queues": {"b", "a"}})
    assert (settings.allowed_tasks, settings.allowed_queues) == (("proj.*",), ("a", "b"))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("tick", 0.3, "one of 0.1, 0.125, 0.2, 0.25, 0.5, 1.0"),
        ("tick", "0.5", "one of"),
        ("tick", True, "one of"),
        ("shards", 100, "one of 1, 2, 4"),
        ("stall_limit", 0, "a number of seconds from 1 to 86,400"),
        ("stall_limit", math.nan, "a number of seconds"),
        ("stall_limit", math.inf, "a number of seconds"),
        ("backlog_max", 1_000.5, "a whole number of runs from 1,000 to 100,000,000"),
        ("backlog_max", timedelta(seconds=2_000), "a whole number of runs"),
        ("window", 10**400, "a whole number of runs from 1 to 100,000"),
        ("stall_limit", 10**400, "a number of seconds"),
        ("dispatch", None, "one of 'auto', 'fast', 'celery'"),
        ("dispatch", "quick", "one of 'auto', 'fast', 'celery'"),
        ("worker", 1, "True or False"),
        ("namespace", "", "text"),
        ("database_url", 5, "text"),
        ("allowed_tasks", "proj.*", "a list of texts"),
        ("allowed_queues", [""], "a list of texts"),
        ("allowed_queues", [1], "a list of texts"),
    ],
)
def test_a_bad_value_is_refused_with_key_value_and_expectation(key: str, value: object, expected: str):
    with pytest.raises(InvalidSetting) as caught:
        Settings.from_conf({f"wheelbeat_{key}": value})
    message = str(caught.value)
    assert f"wheelbeat_{key} = {value!r}" in message
    assert expected in message
    assert isinstance(caught.value, WheelbeatError)
    assert isinstance(caught.value, ValueError)


def test_an_unknown_key_is_refused_with_the_nearest_valid_one():
    with pytest.raises(InvalidSetting, match=r"^wheelbeat_tik is not .* did you mean wheelbeat_tick\?$"):
        Settings.from_conf({"wheelbeat_tik": 1})
    with pytest.raises(InvalidSetting, match="the settings are wheelbeat_tick, wheelbeat_shards"):
        Settings.from_conf({"wheelbeat_zzzzzzzz": 1})


def _configured(name: str, monkeypatch: pytest.MonkeyPatch, namespace: str | None, **values: object) -> Celery:
    module = ModuleType(name)
    vars(module).update(values)
    monkeypatch.setitem(sys.modules, name, module)
    app = Celery(name)
    app.config_from_object(name, namespace=namespace)
    return app


def test_django_settings_arrive_through_the_namespace(monkeypatch: pytest.MonkeyPatch):
    app = _configured(
        "conf_namespaced", monkeypatch, "CELERY", CELERY_WHEELBEAT_TICK=0.5, CELERY_BROKER_URL="memory://"
    )
    app.conf.wheelbeat_shards = 4
    settings = Settings.from_conf(app.conf)
    assert (settings.tick_ms, settings.shards) == (500, 4)


@pytest.mark.parametrize(
    ("namespace", "key", "message"),
    [
        (
            "CELERY",
            "CELERY_WHEELBEAT_SHARD",
            r"CELERY_WHEELBEAT_SHARD is not .* mean wheelbeat_shards\?",
        ),
        ("CELERY", "WHEELBEAT_TICK", "WHEELBEAT_TICK has no effect under this name: write CELERY_WHEELBEAT_TICK"),
        (None, "WHEELBEAT_TICK", "WHEELBEAT_TICK has no effect under this name: write wheelbeat_tick"),
        (None, "wheelbeat_ticks", r"did you mean wheelbeat_tick\?"),
    ],
)
def test_keys_that_celery_would_not_see_are_refused(
    monkeypatch: pytest.MonkeyPatch, namespace: str | None, key: str, message: str
):
    app = _configured("conf_misspelled", monkeypatch, namespace, **{key: 1})
    with pytest.raises(InvalidSetting, match=message):
        Settings.from_conf(app.conf)


def test_other_peoples_keys_are_left_alone(monkeypatch: pytest.MonkeyPatch):
    app = _configured("conf_foreign", monkeypatch, "CELERY", WHEELBEAT_ADMIN_COLOUR="red", MY_WHEELBEAT_TICK=3)
    assert Settings.from_conf(app.conf) == Settings()


def test_the_page_in_the_reference_is_the_table():
    render = runpy.run_path(str(PAGE.with_name("settings_page.py")))["render"]
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python docs/reference/settings_page.py"


def test_every_setting_says_its_bounds_and_its_meaning():
    for name, setting in specifications().items():
        assert setting.doc.endswith("."), name
        assert setting.kind in (float, int, bool, str, tuple), name
        bounded = setting.choices or (setting.low is not None and setting.high is not None)
        assert bounded or setting.kind in (bool, str, tuple), name


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("oracle://u:secret@h/n", "expected postgresql://"),
        ("secret", "expected postgresql://"),
        ("postgresql://u:secret@[", "%5B"),
        ("postgresql://u:secret/s@h:5432/n", "%2F"),
        ("postgresql://u:secret%zz@h/n", "%25"),
        ("mysql://u:secret/s@h/n", "%2F"),
        ("mysql://u:secret\u2100@h/n", "cannot be read"),
    ],
)
def test_a_database_url_that_is_none_is_refused_without_its_password(url: str, words: str):
    with pytest.raises(InvalidSetting, match=rf"^wheelbeat_database_url.*{words}") as caught:
        from_url(url)
    assert_unseen("secret", caught.value)


@pytest.mark.parametrize("name", ["database_url", "dedup_url"])
def test_a_url_of_the_wrong_type_is_refused_without_its_password(name: str):
    with pytest.raises(InvalidSetting, match=rf"^wheelbeat_{name} = … \(list\)") as caught:
        Settings.from_conf({f"wheelbeat_{name}": ["redis://:secret@h/1"]})
    assert_unseen("secret", caught.value)


def test_a_broker_url_that_cannot_be_read_is_refused_without_its_password():
    app = Celery("urls", broker="redis://:secret/s@h:6379/1", set_as_current=False)
    with pytest.raises(InvalidSetting, match=r"^broker_url cannot be read: .*%2F") as caught:
        driver_type(app)
    assert_unseen("secret", caught.value)


def assert_unseen(password: str, error: BaseException) -> None:
    """No message in the chain that a traceback prints shows ``password``."""
    printed: BaseException | None = error
    while printed is not None:
        assert password not in str(printed)
        printed = printed.__cause__ or (None if printed.__suppress_context__ else printed.__context__)
