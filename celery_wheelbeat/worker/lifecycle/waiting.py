"""Publish a message again, so that its run waits at the broker and not in a pool process."""

from __future__ import annotations

from typing import Any

from celery.app.task import Context

from celery_wheelbeat.jobs.headers import FENCE, WAITING
from celery_wheelbeat.worker.headers import DEATHS

NEVER_PUBLISHED = (FENCE, DEATHS)
"""RabbitMQ's history headers, which must not be copied to the new message."""


def publish_again(task: Any, args: Any, kwargs: Any, request: dict[str, Any], countdown_s: float) -> None:
    """Publish the message of ``request`` with a countdown: same id, nonce, retries, routing and options.

    Call it before the original is acknowledged: if the worker dies in between, there are two messages with one nonce,
    and the claim lets one run; the run is never lost. Raises what ``apply_async`` raises.
    """
    context = Context(request, args=args, kwargs=kwargs, called_directly=False)
    headers = {key: value for key, value in (context.headers or {}).items() if key not in NEVER_PUBLISHED}
    signature = task.signature_from_request(
        context, args, kwargs, countdown=countdown_s, retries=context.retries, headers={**headers, WAITING: True}
    )
    signature.apply_async()
