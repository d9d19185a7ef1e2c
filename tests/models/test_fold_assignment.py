"""Rows are dealt alike, from the first on or from any other."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from anytime.folds import FoldAssigner, FoldCounts
from anytime.types import Float

quick = partial(settings, deadline=None, derandomize=True, max_examples=60)
KINDS = ("rows", "classes", "queries")


def rows(kind: str, count: int, seed: int) -> tuple[Float, NDArray[Any] | None]:
    """Responses of three classes, and queries where rows have them."""
    rng = np.random.default_rng(seed)
    Y = np.eye(3)[rng.integers(0, 3, count)]
    return Y, rng.integers(0, 9, count).astype(str) if kind == "queries" else None


def some(of: tuple[Float, NDArray[Any] | None], begin: int, end: int) -> tuple[Float, NDArray[Any] | None]:
    Y, query = of
    return Y[begin:end], None if query is None else query[begin:end]


@quick()
@given(
    st.sampled_from(KINDS), st.integers(2, 5), st.integers(0, 99), st.lists(st.integers(0, 30), min_size=1, max_size=6)
)
def test_parts_are_dealt_as_the_whole_is(kind: str, folds: int, seed: int, sizes: list[int]) -> None:
    count = sum(sizes)
    table = rows(kind, count, seed)
    edges = list(pairwise(np.cumsum([0, *sizes]).tolist()))

    def fresh() -> FoldAssigner:
        return FoldAssigner(folds, seed, stratified=kind == "classes")

    expected = fresh().take(*table)
    assert expected is not None
    tallies = [fresh().tally([some(table, *edge)]) for edge in edges]
    split = fresh().split(tallies)
    found = [deal.take(*some(table, *edge)) for deal, edge in zip(split, edges, strict=True)]
    assert np.concatenate([folds for folds in found if folds is not None]).tolist() == expected.tolist()
    late = fresh()
    for tally in tallies[:-1]:
        late.skip(tally)
    last = late.take(*some(table, *edges[-1]))
    assert last is not None
    assert last.tolist() == expected[edges[-1][0] :].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_tally_does_not_depend_on_how_the_rows_are_cut(kind: str) -> None:
    table = rows(kind, 50, 3)
    deal = FoldAssigner(4, 0, stratified=kind == "classes")
    cut = [some(table, a, b) for a, b in pairwise([0, 7, 7, 31, 50])]
    assert deal.tally(cut) == deal.tally([table])
    assert deal.tally(cut).rows == 50


def test_one_fold_needs_no_dealing() -> None:
    deal = FoldAssigner(1, 0, stratified=False)
    deal.skip(FoldCounts(10))
    assert deal.take(np.zeros((3, 1)), None) is None


def test_a_copy_goes_on_by_itself() -> None:
    deal, Y = FoldAssigner(3, 0, stratified=False), np.zeros((20, 1))
    other = deal.copy()
    first, second = deal.take(Y, None), other.take(Y, None)
    assert first is not None
    assert second is not None
    assert first.tolist() == second.tolist()
