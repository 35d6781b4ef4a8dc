"""Run ids, entry ids, shards and offsets: frozen for ever, and recomputed here from the standard library alone."""

from __future__ import annotations

import json
import struct
import uuid
from pathlib import Path

import numpy as np
import pytest

from celery_wheelbeat import run_id
from celery_wheelbeat.dispatch.messages.run_ids import RunIds
from celery_wheelbeat.jobs.identity import cron_offset_ms, entry_id, fnv1a64, id_hashes, interval_offset_ms, shard_of

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "frozen_vectors.json").read_text("utf-8"))


def plain_fnv(data: bytes) -> int:
    value = 14695981039346656037
    for byte in data:
        value = ((value ^ byte) * 1099511628211) % 2**64
    return value


def plain_hash(job_id: int) -> int:
    return plain_fnv(struct.pack("<q", job_id))


def test_the_published_vectors_of_fnv1a() -> None:
    assert fnv1a64(b"") == 0xCBF29CE484222325
    assert fnv1a64(b"a") == 0xAF63DC4C8601EC8C
    assert fnv1a64(b"foobar") == 0x85944171F73967E8


def test_hashes_are_frozen() -> None:
    for text, expected in VECTORS["fnv1a64"]:
        assert fnv1a64(text.encode()) == expected == plain_fnv(text.encode()), text
    ids = np.array([row[0] for row in VECTORS["id_hashes"]], dtype=np.int64)
    assert id_hashes(ids).tolist() == [row[1] for row in VECTORS["id_hashes"]]
    assert [plain_hash(int(job_id)) for job_id in ids] == [row[1] for row in VECTORS["id_hashes"]]


def test_entry_ids_are_frozen_and_negative() -> None:
    for name, expected in VECTORS["entry_id"]:
        hashed = plain_fnv(name.encode())
        assert entry_id(name) == expected == struct.unpack("<q", struct.pack("<Q", hashed | 2**63))[0], name
        assert -(2**63) <= expected < 0


def test_shards_are_frozen() -> None:
    for job_id, shards, expected in VECTORS["shard_of"]:
        assert shard_of(job_id, shards) == expected == job_id % shards


@pytest.mark.promise("no-drift")
def test_interval_offsets_are_frozen() -> None:
    for job_id, interval_ms, jitter_s, expected in VECTORS["interval_offset_ms"]:
        window_s = interval_ms // 1000 if jitter_s is None else jitter_s
        assert expected == (1000 * (plain_hash(job_id) % window_s) if window_s else 0)
        assert interval_offset_ms(job_id, interval_ms, jitter_s) == expected, (job_id, interval_ms, jitter_s)
    rows = VECTORS["interval_offset_ms"]
    ids, intervals, expected = (np.array([row[column] for row in rows], dtype=np.int64) for column in (0, 1, 3))
    overrides = np.array([-1 if row[2] is None else row[2] for row in rows], dtype=np.int64)
    assert interval_offset_ms(ids, intervals, overrides).tolist() == expected.tolist()


def test_cron_offsets_are_frozen() -> None:
    for job_id, window_s, expected in VECTORS["cron_offset_ms"]:
        assert expected == (1000 * (plain_hash(job_id) % window_s) if window_s else 0)
        assert cron_offset_ms(job_id, window_s) == expected, (job_id, window_s)
    for window_s in (0, 1, 30, 60):
        rows = [row for row in VECTORS["cron_offset_ms"] if row[1] == window_s]
        ids = np.array([row[0] for row in rows], dtype=np.int64)
        assert cron_offset_ms(ids, window_s).tolist() == [row[2] for row in rows]


def test_an_id_out_of_a_column_is_a_single_id() -> None:
    column = np.array([42], dtype=np.int64)
    assert interval_offset_ms(column[0], 60_000) == interval_offset_ms(42, 60_000)
    assert cron_offset_ms(column[0], 30) == cron_offset_ms(42, 30)


def test_offsets_spread_evenly_and_stay_inside_their_window() -> None:
    offsets = interval_offset_ms(np.arange(60_000, dtype=np.int64), 60_000)
    seconds, counts = np.unique(offsets, return_counts=True)
    assert seconds.tolist() == list(range(0, 60_000, 1000))
    assert counts.min() > 800
    assert counts.max() < 1200


@pytest.mark.promise("same-run-same-id")
def test_run_ids_are_frozen() -> None:
    for namespace, key, fire_ms, suffix, expected in VECTORS["run_id"]:
        namespace_uuid = uuid.uuid5(uuid.NAMESPACE_URL, "celery-wheelbeat:" + namespace)
        assert run_id(key, fire_ms, namespace, suffix) == expected
        assert str(uuid.uuid5(namespace_uuid, f"{key}@{fire_ms}{suffix}")) == expected


@pytest.mark.promise("same-run-same-id")
def test_rendered_ids_are_the_same_text_as_single_ones() -> None:
    keys = [f"monitor:{pk}" for pk in range(1000)] + ["entry:prüfung", "entry:a@b"]
    fire_ms = 1_750_000_000_000 + 1000 * np.arange(len(keys), dtype=np.int64)
    for suffix in ("", "~3"):
        rendered = RunIds("shop").render(keys, fire_ms, suffix)
        assert rendered == [run_id(key, fire, "shop", suffix) for key, fire in zip(keys, fire_ms.tolist(), strict=True)]
        assert len(set(rendered)) == len(keys)
    assert uuid.UUID(rendered[0]).version == 5


def test_nothing_to_render() -> None:
    assert RunIds("celery").render([], np.array([], dtype=np.int64)) == []


def test_keys_and_fire_times_must_pair_up() -> None:
    with pytest.raises(ValueError, match="shorter"):
        RunIds("celery").render(["monitor:1", "monitor:2"], np.array([0], dtype=np.int64))
