"""What every folder of tests shares: the plug-ins with fixtures, and nothing that an earlier test left behind.

Where ``CI`` is set, Hypothesis draws the same examples every time (its own profile ``ci``); elsewhere new ones. No
example has a deadline: how long one takes depends on what else the machine does.
"""

from __future__ import annotations

import os

import pytest
from celery import _state as celery_state
from hypothesis import HealthCheck, settings
from kombu.transport import memory

pytest_plugins = ["support.warm", "support.servers", "support.spread", "support.site.pages"]

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Forget what an earlier test left in this process: Django settings, the current app, messages in memory."""
    os.environ.pop("DJANGO_SETTINGS_MODULE", None)
    celery_state._set_current_app(None)
    celery_state.set_default_app(None)
    memory.Channel.queues.clear()
