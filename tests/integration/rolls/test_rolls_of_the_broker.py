"""A roll in the app's own broker: found through Celery's settings, with time-outs of its own."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from celery import Celery
from services import TcpProxy, wait_until

from celery_wheelbeat.dispatch.broker import driver_type, open_connection
from celery_wheelbeat.errors import RollDown
from celery_wheelbeat.membership.rolls.opening import Surroundings, roll_makers

if TYPE_CHECKING:
    from pathlib import Path

    from celery_wheelbeat.membership import Roll

PATIENCE_S = 4.0
"""redis-py tries a connect more than once."""


def roll_of(url: str, proxy: TcpProxy, beat_id: str, folder: Path) -> Roll:
    """The first broker of the URL is not there."""
    parts = urlsplit(url)
    app = Celery("proj", set_as_current=False)
    ports = (1, proxy.port)
    app.conf.broker_url = [parts._replace(netloc=parts.netloc.replace(str(parts.port), str(p))).geturl() for p in ports]
    app.conf.broker_transport_options = {"global_keyprefix": "app:"} if parts.scheme == "redis" else {}
    has = Surroundings(beat_id, 1, 0.5, str(folder), driver_type(app), lambda: open_connection(app))
    return roll_makers(["broker"], has)["broker"]("own")


@pytest.mark.parametrize(
    "kind",
    [pytest.param("redis", marks=pytest.mark.redis), pytest.param("amqp", marks=pytest.mark.amqp)],
)
def test_two_beats_hear_each_other_through_the_broker_and_give_a_hanging_one_up(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    with TcpProxy(urlsplit(url).port) as proxy:
        one, other = (roll_of(url, proxy, beat_id, tmp_path) for beat_id in "ab")
        with closing(one), closing(other):
            one.beat("x")
            other.beat("y")
            one.beat("x")
            wait_until(lambda: [peer.text for peer in other.beat("y").peers] == ["x"], "the line", 10)
            proxy.black_hole()
            for _ in range(2):  # in the conversation, and while it connects
                began_s = time.monotonic()
                with pytest.raises(RollDown):
                    one.beat("x")
                assert time.monotonic() - began_s < PATIENCE_S
            proxy.pass_through()
            proxy.cut()
            one.beat("x")
