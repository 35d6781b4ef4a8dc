"""Publishes a message again, so that its run waits at the broker instead of in a slot of the pool."""

from __future__ import annotations

from typing import Any

from celery.app.task import Context

from celery_wheelbeat.jobs.headers import FENCE, WAITING
from celery_wheelbeat.worker.headers import DEATHS

NEVER_PUBLISHED = (FENCE, DEATHS)
"""RabbitMQ's history of a message is not that of the message which is published in its place."""


def publish_again(task: Any, args: Any, kwargs: Any, request: dict[str, Any], countdown_s: float) -> None:
    """Publish the message of ``request`` with a countdown: same id, nonce, retries, routing and options.

    Call it before the message itself is acknowledged: a worker that dies in between then leaves two messages with one
    nonce, of which the claim lets one run, and never none. Raises what ``apply_async`` raises.
    """
    context = Context(request, args=args, kwargs=kwargs, called_directly=False)
    headers = {key: value for key, value in (context.headers or {}).items() if key not in NEVER_PUBLISHED}
    signature = task.signature_from_request(
        context, args, kwargs, countdown=countdown_s, retries=context.retries, headers={**headers, WAITING: True}
    )
    signature.apply_async()
