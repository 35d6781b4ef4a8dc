"""SHA-1 in columns against ``hashlib``."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_wheelbeat.dispatch.messages import sha1
from celery_wheelbeat.dispatch.messages.run_ids import RunIds
from celery_wheelbeat.jobs.identity import run_id


def expected(messages: list[bytes]) -> bytes:
    return b"".join(hashlib.sha1(message, usedforsecurity=False).digest() for message in messages)


def padded(messages: list[bytes]) -> np.ndarray:
    blocks = [message + sha1.padding(len(message)) for message in messages]
    return np.frombuffer(b"".join(blocks), np.uint8).reshape(-1, sha1.BLOCK_BYTES)


@given(st.lists(st.binary(max_size=sha1.MESSAGE_MAX), min_size=1, max_size=20))
def test_digests_are_those_of_hashlib(messages: list[bytes]) -> None:
    assert sha1.digests(padded(messages)).tobytes() == expected(messages)


def test_more_messages_than_are_computed_together() -> None:
    messages = [b"%d" % number for number in range(2 * sha1._TOGETHER + 7)]
    assert sha1.digests(padded(messages)).tobytes() == expected(messages)


@pytest.mark.parametrize("count", [sha1.WORTH_IT - 1, sha1.WORTH_IT])
def test_ids_of_many_monitors_are_those_of_single_runs(count: int) -> None:
    random = np.random.default_rng(count)
    ids = random.integers(0, 10 ** random.integers(1, 18, count))
    ids[:6] = 0, 9, 10, 99, 10**16, 10**17 - 1
    fire_ms = random.integers(10**12, 10**13, count)
    fire_ms[:2] = 10**12, 10**13 - 1
    found = RunIds("tests").of_monitors(ids, fire_ms)
    assert [row.tobytes().decode() for row in found] == [
        run_id(f"monitor:{job_id}", fire, "tests") for job_id, fire in zip(ids.tolist(), fire_ms.tolist(), strict=True)
    ]


@pytest.mark.parametrize(
    ("job_id", "fire_ms"), [(10**17, 10**12), (2**63 - 1, 10**12), (-1, 10**12), (1, 10**12 - 1), (1, 10**13)]
)
def test_ids_that_do_not_fit_into_a_block_are_right_too(job_id: int, fire_ms: int) -> None:
    ids = np.full(sha1.WORTH_IT, job_id)
    ids[1:] = 5
    found = RunIds("tests").of_monitors(ids, np.full(sha1.WORTH_IT, fire_ms))
    assert found[0].tobytes().decode() == run_id(f"monitor:{job_id}", fire_ms, "tests")
