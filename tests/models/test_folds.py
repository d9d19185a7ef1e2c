"""Folds are balanced, seeded, and the same however the table is cut into batches and wherever assignment starts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from anytime.folds import FoldAssigner, FoldCounts, FoldStream
from anytime.types import Float, Index
from models.properties import quick

KINDS = ("rows", "classes", "queries")
counts, seeds, sizes = st.integers(2, 10), st.integers(0, 2**32 - 1), st.lists(st.integers(0, 40), max_size=8)


def stream(count: int, seed: int) -> FoldStream:
    return FoldStream(count, np.random.default_rng(seed))


def drawn(count: int, seed: int, rows: int) -> list[int]:
    found: list[int] = stream(count, seed).take(rows).tolist()
    return found


def taken(assigner: FoldAssigner, Y: Float, query: NDArray[Any] | None = None) -> Index:
    folds = assigner.take(Y, query)
    assert folds is not None
    return folds


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
@given(counts, seeds, st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=8), st.integers(0, 40))
def test_rows_that_are_skipped_change_nothing_for_those_after(
    count: int, seed: int, walk: list[tuple[bool, int]], rows: int
) -> None:
    folds, before = stream(count, seed), 0
    for skipped, length in walk:
        if skipped:
            folds.skip(length)
        else:
            folds.take(length)
        before += length
    assert folds.take(rows).tolist() == drawn(count, seed, before + rows)[before:]


def test_folds_follow_no_pattern_of_the_rows() -> None:
    folds = np.array(drawn(5, 0, 10_000))
    for period in (2, 3, 5, 7):
        table = np.array([np.bincount(folds[phase::period], minlength=5) for phase in range(period)])
        assert np.abs(table / table.sum(axis=1, keepdims=True) - 0.2).max() < 0.04


def by_query(assigner: FoldAssigner, keys: list[Any]) -> Index:
    return taken(assigner, np.zeros((len(keys), 1)), np.array(keys, dtype=object))


def grouped(count: int, seed: int, keys: list[str], batches: list[int]) -> Index:
    folds, found, start = FoldAssigner(count, seed, stratified=False), [np.empty(0, dtype=np.intp)], 0
    for rows in [*batches, len(keys)]:
        found.append(by_query(folds, keys[start : start + rows]))
        start += rows
    return np.concatenate(found)


@quick()
@given(counts, seeds, st.lists(st.sampled_from([f"q{k}" for k in range(15)]), max_size=80), sizes)
def test_rows_of_one_key_share_a_fold_and_keys_are_balanced(
    count: int, seed: int, keys: list[str], batches: list[int]
) -> None:
    folds = grouped(count, seed, keys, batches)
    of_key = dict(zip(keys, folds.tolist(), strict=True))
    assert folds.tolist() == [of_key[key] for key in keys]
    of_each = np.bincount(list(of_key.values()), minlength=count) if of_key else np.zeros(count)
    assert of_each.max() - of_each.min() <= 1
    assert folds.tolist() == grouped(count, seed, keys, []).tolist()


def test_keys_may_be_anything_that_can_be_a_key() -> None:
    folds = by_query(FoldAssigner(2, 0, stratified=False), [1, "1", (1,), 1, "1", (1,)])
    assert folds[:3].tolist() == folds[3:].tolist()


# Assignment of a table, whole or in parts


def table_of(kind: str, count: int, seed: int) -> tuple[Float, NDArray[Any] | None]:
    """Responses of three classes, and queries where rows have them."""
    rng = np.random.default_rng(seed)
    return np.eye(3)[rng.integers(0, 3, count)], rng.integers(0, 9, count).astype(str) if kind == "queries" else None


def rows_of(table: tuple[Float, NDArray[Any] | None], begin: int, end: int) -> tuple[Float, NDArray[Any] | None]:
    Y, query = table
    return Y[begin:end], None if query is None else query[begin:end]


@quick(max_examples=60)
@given(
    st.sampled_from(KINDS), st.integers(2, 5), st.integers(0, 99), st.lists(st.integers(0, 30), min_size=1, max_size=6)
)
def test_the_folds_of_parts_are_those_of_the_whole(kind: str, folds: int, seed: int, sizes: list[int]) -> None:
    table = table_of(kind, sum(sizes), seed)
    edges = list(pairwise(np.cumsum([0, *sizes]).tolist()))

    def fresh() -> FoldAssigner:
        return FoldAssigner(folds, seed, stratified=kind == "classes")

    expected = taken(fresh(), *table)
    tallies = [fresh().tally([rows_of(table, *edge)]) for edge in edges]
    assert fresh().tally([rows_of(table, *edge) for edge in edges]) == fresh().tally([table])
    split = fresh().split(tallies)
    found = [taken(assigner, *rows_of(table, *edge)) for assigner, edge in zip(split, edges, strict=True)]
    assert np.concatenate(found).tolist() == expected.tolist()
    late = fresh()
    for tally in tallies[:-1]:
        late.skip(tally)
    assert taken(late, *rows_of(table, *edges[-1])).tolist() == expected[edges[-1][0] :].tolist()


def test_stratified_folds_are_balanced_in_each_class() -> None:
    labels = np.random.default_rng(0).choice(3, size=200, p=[0.7, 0.25, 0.05])
    whole = taken(FoldAssigner(4, 7, stratified=True), np.eye(3)[labels])
    assert np.ptp(np.array([np.bincount(whole[labels == label], minlength=4) for label in range(3)]), axis=1).max() <= 1


def test_one_fold_needs_no_assignment() -> None:
    assigner = FoldAssigner(1, 0, stratified=False)
    assigner.skip(FoldCounts(10))
    assert assigner.take(np.zeros((3, 1)), None) is None


def test_a_copy_is_independent() -> None:
    assigner = FoldAssigner(3, 0, stratified=False)
    first, second = (taken(each, np.zeros((20, 1))) for each in (assigner, assigner.copy()))
    assert first.tolist() == second.tolist()
