"""Pages of payloads and names."""

from __future__ import annotations

import numpy as np
import pytest

from celery_wheelbeat.engine import payloads as module
from celery_wheelbeat.engine.payloads import PAGE_ROWS, Payloads, Text
from celery_wheelbeat.errors import WheelbeatError


def add(store: Payloads, texts: list[Text]) -> np.ndarray:
    """Hand ``texts`` over as a batch."""
    return store.add(
        b"".join(text.payload for text in texts),
        np.array([len(text.payload) for text in texts], np.uint32),
        b"".join(text.name for text in texts),
        np.array([len(text.name) for text in texts], np.uint16),
    )


def texts_of(count: int, mark: str = "") -> list[Text]:
    """Distinct texts of different lengths, some empty."""
    return [Text(f"job {mark}{n}".encode(), b"x" * (n % 7) + str(n).encode() * (n % 3)) for n in range(count)]


@pytest.mark.parametrize("count", [0, 1, 3, PAGE_ROWS - 1, PAGE_ROWS, PAGE_ROWS + 1, 3 * PAGE_ROWS + 5])
def test_what_was_added_is_read_back(count):
    store = Payloads()
    first = add(store, texts_of(2, "first"))
    texts = texts_of(count)
    refs = add(store, texts)
    assert store.read(refs) == texts
    assert store.read(first) == texts_of(2, "first")
    assert sum(store._live) == count + 2
    assert store.longest >= max(len(text.name) + len(text.payload) for text in [*texts, *texts_of(2, "first")])
    assert store.lengths(refs) == [len(text.name) + len(text.payload) for text in texts]
    assert store.valid(np.concatenate((refs, first))).all()


def test_one_very_long_text_among_short_ones_is_read_back():
    store = Payloads()
    texts = texts_of(PAGE_ROWS)
    texts[17] = Text(b"long", b"y" * 70_000)
    refs = add(store, texts)
    assert store.read(refs) == texts
    ends = [page.payload_ends.off.dtype.itemsize for page in store._pages if page]
    assert ends == [4]
    assert store.named(b"long").tolist() == [refs[17]]


def test_texts_alike_cost_two_bytes_each_to_find_and_one_where_they_are_of_one_length():
    store = Payloads()
    rng = np.random.default_rng(5)
    texts = [Text(b"check", b"x" * int(length)) for length in rng.integers(40, 200, PAGE_ROWS)]
    assert store.read(add(store, texts)) == texts
    assert store.resident_bytes - sum(len(text.name) + len(text.payload) for text in texts) == (2 + 1) * PAGE_ROWS


def test_batches_one_by_one_share_pages():
    store = Payloads()
    refs = [int(add(store, [text])[0]) for text in texts_of(PAGE_ROWS + 10)]
    assert store.read(np.array(refs, np.uint32)) == texts_of(PAGE_ROWS + 10)
    assert store.page_count == 2


def test_a_page_is_full_at_its_bytes(monkeypatch):
    monkeypatch.setattr(module, "PAGE_BYTES", 100)
    store = Payloads()
    texts = [Text(b"n", b"p" * 60)] * 5
    refs = add(store, texts)
    assert store.read(refs) == texts
    assert len(set((refs >> module.PAGE_BITS).tolist())) == 3


def test_lengths_that_do_not_add_up_are_refused():
    with pytest.raises(WheelbeatError, match="2 payload bytes"):
        Payloads().add(b"ab", np.array([1]), b"n", np.array([1]))


def test_dead_pages_are_dropped_and_their_numbers_used_again():
    store = Payloads()
    refs = add(store, texts_of(3 * PAGE_ROWS))
    pages = store.page_count
    before = store.resident_bytes
    store.release(refs[:PAGE_ROWS])
    assert not store.valid(refs[:1]).any()
    assert store.resident_bytes < before
    add(store, texts_of(PAGE_ROWS, "again"))
    assert store.page_count == pages
    assert store.read(refs[PAGE_ROWS:]) == texts_of(3 * PAGE_ROWS)[PAGE_ROWS:]


def test_thin_pages_are_emptied_by_moving_what_is_alive():
    store = Payloads()
    refs = add(store, texts_of(2 * PAGE_ROWS))
    dead, alive = refs[: PAGE_ROWS // 2 + 1], refs[PAGE_ROWS // 2 + 1 : PAGE_ROWS]
    assert not store.thin(refs).any()
    store.release(dead)
    assert store.thin(refs).nonzero()[0].tolist() == list(range(PAGE_ROWS))
    moved = store.move(alive)
    assert store.read(moved) == texts_of(PAGE_ROWS)[PAGE_ROWS // 2 + 1 :]
    assert not store.thin(np.concatenate((moved, refs[PAGE_ROWS:]))).any()
    assert not store.valid(alive).any()


def test_memory_is_bounded_under_endless_edits():
    store = Payloads()
    refs = add(store, texts_of(PAGE_ROWS))
    bound = 4 * store.resident_bytes
    for _ in range(20):
        new = add(store, texts_of(PAGE_ROWS))
        store.release(refs)
        refs = new
        assert store.resident_bytes < bound
    assert sum(store._live) == PAGE_ROWS


def test_damage_is_found():
    store = Payloads()
    add(store, texts_of(2 * PAGE_ROWS))
    everything = range(store.page_count)
    assert store.damaged(everything) == []
    number = next(number for number, page in enumerate(store._pages) if page)
    page = store._pages[number]
    page.payload_ends.off[7] += 1
    assert store.damaged(everything) == [number]
    page.payload_ends.off[7] -= 1
    store._pages[number] = page._replace(names=page.names[:-1] + b"?")
    assert store.damaged(everything) == [number]


@pytest.mark.parametrize("ref", [1, PAGE_ROWS + 5, 2**32 - 1])
def test_refs_to_nowhere_are_not_valid(ref):
    store = Payloads()
    add(store, texts_of(1))
    assert not store.valid(np.array([ref], np.uint32)).any()


def test_a_name_is_found_as_a_whole_in_full_and_open_pages():
    store = Payloads()
    texts = texts_of(2 * PAGE_ROWS + 3)
    refs = add(store, texts)
    for position in (0, 1, 10, 11, PAGE_ROWS - 1, PAGE_ROWS, 2 * PAGE_ROWS, 2 * PAGE_ROWS + 2):
        assert store.named(texts[position].name).tolist() == [refs[position]]
    for name in (b"job", b"ob 1", b"job 1job 2", b"job 99999", "é".encode()):
        assert not len(store.named(name))
    again = add(store, texts[5:6])
    assert sorted(store.named(texts[5].name).tolist()) == sorted([refs[5], again[0]])
