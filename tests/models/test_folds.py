"""Folds are balanced, seeded, and the same however the table is cut into batches."""

from __future__ import annotations

from functools import partial

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from anytime.folds import FoldStream, GroupedFolds
from anytime.types import Index

quick = partial(settings, deadline=None, derandomize=True, max_examples=100)
counts, seeds, sizes = st.integers(2, 10), st.integers(0, 2**32 - 1), st.lists(st.integers(0, 40), max_size=8)


def stream(count: int, seed: int) -> FoldStream:
    return FoldStream(count, np.random.default_rng(seed))


def drawn(count: int, seed: int, rows: int) -> list[int]:
    found: list[int] = stream(count, seed).take(rows).tolist()
    return found


@quick()
@given(counts, seeds, st.integers(0, 200))
def test_every_run_of_rows_has_every_fold_once(count: int, seed: int, rows: int) -> None:
    folds = drawn(count, seed, rows)
    assert len(folds) == rows
    for start in range(0, rows - count + 1, count):
        assert sorted(folds[start : start + count]) == list(range(count))
    of_each = np.bincount(folds, minlength=count)
    assert of_each.max() - of_each.min() <= 1


@quick()
@given(counts, seeds, sizes)
def test_batches_do_not_change_the_folds(count: int, seed: int, batches: list[int]) -> None:
    dealt = stream(count, seed)
    taken = [fold for rows in batches for fold in dealt.take(rows).tolist()]
    assert taken == drawn(count, seed, sum(batches))


@quick()
@given(counts, seeds, st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=8), st.integers(0, 40))
def test_rows_that_are_skipped_change_nothing_for_those_after(
    count: int, seed: int, walk: list[tuple[bool, int]], rows: int
) -> None:
    dealt, gone = stream(count, seed), 0
    for skipped, length in walk:
        if skipped:
            dealt.skip(length)
        else:
            dealt.take(length)
        gone += length
    assert dealt.take(rows).tolist() == drawn(count, seed, gone + rows)[gone:]


def test_the_seed_decides() -> None:
    assert drawn(5, 0, 100) == drawn(5, 0, 100)
    assert drawn(5, 0, 100) != drawn(5, 1, 100)


def test_folds_follow_no_pattern_of_the_rows() -> None:
    folds = np.array(drawn(5, 0, 10_000))
    for period in (2, 3, 5, 7):
        table = np.array([np.bincount(folds[phase::period], minlength=5) for phase in range(period)])
        assert np.abs(table / table.sum(axis=1, keepdims=True) - 0.2).max() < 0.04


def grouped(count: int, seed: int, keys: list[str], batches: list[int]) -> Index:
    dealt, found, start = GroupedFolds(count, np.random.default_rng(seed)), [np.empty(0, dtype=np.intp)], 0
    for rows in [*batches, len(keys)]:
        found.append(dealt.take(keys[start : start + rows]))
        start += rows
    return np.concatenate(found)


@quick()
@given(counts, seeds, st.lists(st.sampled_from([f"q{k}" for k in range(15)]), max_size=80), sizes)
def test_rows_of_one_key_share_a_fold_and_keys_are_balanced(
    count: int, seed: int, keys: list[str], batches: list[int]
) -> None:
    folds = grouped(count, seed, keys, batches)
    assert len(folds) == len(keys)
    of_key: dict[str, int] = {}
    for key, fold in zip(keys, folds.tolist(), strict=True):
        assert of_key.setdefault(key, fold) == fold
    of_each = np.bincount(list(of_key.values()), minlength=count) if of_key else np.zeros(count)
    assert of_each.max() - of_each.min() <= 1
    assert folds.tolist() == grouped(count, seed, keys, []).tolist()


def test_keys_may_be_anything_that_can_be_a_key() -> None:
    folds = GroupedFolds(2, np.random.default_rng(0)).take([1, "1", (1,), 1, "1", (1,)])
    assert folds[:3].tolist() == folds[3:].tolist()
