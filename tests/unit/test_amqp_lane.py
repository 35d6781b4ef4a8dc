"""Confirms of RabbitMQ: which messages an ack, a nack or a return settles, in whatever order they come."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from celery_wheelbeat.dispatch import FailureKind
from celery_wheelbeat.dispatch.fast_lane.amqp_wire import AmqpWire, _OnTheWay
from celery_wheelbeat.dispatch.fast_lane.batches import NONCE_LENGTH, Batch
from celery_wheelbeat.runtime.clock import SystemClock

SIZES = (3, 1, 5, 4)
LAST = sum(SIZES)


def a_wire() -> AmqpWire:
    """A wire that has written batches of ``SIZES``, without a connection."""
    nothing: Any = None
    wire = AmqpWire(nothing, nothing, nothing, SystemClock(), heartbeat_s=10)
    first = 1
    for token, size in enumerate(SIZES):
        wire._sent.append(_OnTheWay(Batch(token, [], bytes(size * NONCE_LENGTH), 1), first))
        first += size
    return wire


@given(st.lists(st.tuples(st.integers(1, LAST), st.booleans(), st.booleans()), max_size=30))
def test_each_message_is_settled_by_the_first_word_about_it(words: list[tuple[int, bool, bool]]) -> None:
    """Against a list of all tags: (tag, multiple, whether it is an ack)."""
    wire = a_wire()
    batches = list(wire._sent)
    output: dict[int, bool] = {}
    for tag, multiple, ack in words:
        (wire._on_ack if ack else wire._on_nack)(tag, multiple)
        for one in range(1 if multiple else tag, tag + 1):
            output.setdefault(one, ack)
    for batch in batches:
        tags = range(batch.first, batch.last + 1)
        assert batch.open == len([tag for tag in tags if tag not in output])
        assert batch.rest() == [tag - batch.first for tag in tags if tag not in output]
        refused = sorted(position for failure in batch.failures for position in failure.positions)
        assert refused == [tag - batch.first for tag in tags if output.get(tag) is False]
        assert {failure.kind for failure in batch.failures} <= {FailureKind.REFUSED}
    done = [outcome.token for outcome in wire._settled()]
    assert done == [token for token in range(len(SIZES)) if all(not batches[at].open for at in range(token + 1))]
