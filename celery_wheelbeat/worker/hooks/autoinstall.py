"""Install the worker side without code in the app: by ``wheelbeat_worker = True``, or with ``django_wheelbeat``."""

from __future__ import annotations

from typing import Any

from celery import current_app
from celery.signals import celeryd_init, worker_process_init

from celery_wheelbeat.worker import install
from celery_wheelbeat.worker.hooks import inspected  # noqa: F401 - registers its command


def install_where_wanted(*, by_default: bool = False) -> None:
    """Install into every worker that starts in this process and whose app has ``wheelbeat_worker`` on.

    ``by_default`` applies if the setting is not given. A further call can only widen an earlier one.
    """

    def wanted(app: Any) -> bool:
        chosen = app.conf.get("wheelbeat_worker")
        return by_default if chosen is None else bool(chosen)

    def main_process(instance: Any = None, **_: Any) -> None:
        if wanted(instance.app):
            install(instance.app)

    def pool_process(sender: str | None = None, **_: Any) -> None:
        from celery_wheelbeat.worker.hooks.install import install_side, installed_side, side_of  # noqa: PLC0415 - only workers

        if wanted(current_app) and installed_side(current_app) is None:
            install_side(current_app)
            side_of(current_app).enter_process(sender)

    # the second is for spawned pool processes, in which nothing else has run
    celeryd_init.connect(main_process, weak=False, dispatch_uid=f"celery_wheelbeat.autoinstall.{by_default}")
    worker_process_init.connect(pool_process, weak=False, dispatch_uid=f"celery_wheelbeat.autoinstall.{by_default}")
