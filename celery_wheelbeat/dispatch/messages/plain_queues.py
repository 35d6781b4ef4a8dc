"""Plain queues: those that differ in nothing but their name, as Celery creates them when a message names a new one.

Celery sends messages for a plain queue through the default exchange, with the name as routing key. A queue that the
user has configured in another way is no job-specific value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu.entity import Queue

from celery_wheelbeat.dispatch.messages.patterns import SHORT_TEXT_MAX

if TYPE_CHECKING:
    from collections.abc import Callable


_PLAIN: Any = Queue


def plain_queues(app: Any) -> Callable[[str], bool]:
    """Return the function that tells by its name whether a queue of ``app`` is plain. It creates no queue."""

    def is_plain(name: str) -> bool:
        try:
            queues = app.amqp.queues
            queue = dict.get(queues, name)
            if queue is None and queues.create_missing and name not in queues.aliases:
                queue = queues.new_missing(name)
            return _is_plain(queue, name)
        except Exception:  # queues of a user's own class; Celery reports what it refuses
            return False

    return is_plain


def _is_plain(queue: Any, name: str) -> bool:
    return (
        type(queue) is _PLAIN
        and queue.name == name
        and len(name.encode()) <= SHORT_TEXT_MAX
        and queue.exchange.type == "direct"
        and not queue.exchange.delivery_mode
        and not queue.alias
        and queue.expires is None
        and "x-expires" not in (queue.queue_arguments or {})
    )
