"""Rank loss is declared: a column that adds nothing is taken out, and the others are solved without it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from anytime._linalg import conjugate_gradients, factorise, factorise_into, single_blas_thread, solve_leading
from anytime.types import Float

seeds = st.integers(0, 2**32 - 1)


def rows(seed: int, d: int) -> Float:
    rng = np.random.default_rng(seed)
    X: Float = rng.normal(size=(2 * d + 5, d)) @ (np.eye(d) + 0.3 * rng.normal(size=(d, d)))
    return X


@settings(max_examples=60)
@given(seeds, st.integers(1, 30))
def test_a_definite_matrix_has_the_factor_that_numpy_finds(seed: int, d: int) -> None:
    X = rows(seed, d)
    A, B = X.T @ X / len(X), np.random.default_rng(seed).normal(size=(d, 3))
    factor = factorise(A, np.diagonal(A))
    np.testing.assert_allclose(factor.L, np.linalg.cholesky(A), rtol=0, atol=1e-9 * np.sqrt(A.max()))
    assert not factor.dropped.any()
    np.testing.assert_allclose(factor.backward(factor.forward(B)), np.linalg.solve(A, B), rtol=1e-6, atol=1e-8)


@settings(max_examples=40)
@given(seeds, st.integers(1, 30), st.sampled_from((0.0, 1e-3)))
def test_in_place_the_factor_is_the_same_and_leading_blocks_solve_their_rows(seed: int, d: int, alpha: float) -> None:
    X = rows(seed, d)
    if seed % 3 == 0:
        X[:, d // 2] = X[:, 0]
    A = X.T @ X / len(X) + alpha * np.eye(d)
    expected = factorise(A, np.diagonal(A))
    place = np.asfortranarray(A)
    found = factorise_into(place, np.diagonal(A))
    assert found.dropped.any() or found.L is place
    assert found.dropped.tolist() == expected.dropped.tolist()
    np.testing.assert_allclose(np.tril(found.L), expected.L, rtol=1e-12, atol=1e-12 * np.sqrt(A.max()))
    m = 1 + seed % d
    right: Float = np.random.default_rng(seed).normal(size=(3, m))
    solved = right.copy()
    solve_leading(found, solved)
    np.testing.assert_allclose(solved @ expected.L[:m, :m], right, rtol=1e-6, atol=1e-8 * np.abs(solved).max())


MESSES: dict[str, tuple[Callable[[Float], None], list[int]]] = {
    "a duplicate": (lambda X: X.__setitem__((slice(None), 4), X[:, 1]), [4]),
    "a negative": (lambda X: X.__setitem__((slice(None), 4), -3 * X[:, 1]), [4]),
    "a sum": (lambda X: X.__setitem__((slice(None), 5), X[:, 0] + 2 * X[:, 3]), [5]),
    "a zero": (lambda X: X.__setitem__((slice(None), 2), 0.0), [2]),
    "zeros at both ends": (lambda X: X.__setitem__((slice(None), [0, 5]), 0.0), [0, 5]),
    "three alike": (lambda X: X.__setitem__((slice(None), [2, 4]), X[:, [0, 0]]), [2, 4]),
    "all zero": (lambda X: X.__setitem__(slice(None), 0.0), [0, 1, 2, 3, 4, 5]),
    "small and its copy": (lambda X: X.__setitem__((slice(None), [1, 3]), 1e-4 * X[:, [1, 1]]), [3]),
}


@pytest.mark.parametrize("mess", MESSES)
@pytest.mark.parametrize("seed", range(5))
def test_what_adds_nothing_is_dropped_as_the_identity_and_the_rest_is_solved_without_it(mess: str, seed: int) -> None:
    X = rows(seed, 6)
    make, expected = MESSES[mess]
    make(X)
    A, B = X.T @ X / len(X), X.T @ np.random.default_rng(seed).normal(size=(len(X), 2)) / len(X)
    factor = factorise(A, np.diagonal(A))
    assert np.flatnonzero(factor.dropped).tolist() == expected
    kept = np.flatnonzero(~factor.dropped)
    W = factor.backward(factor.forward(B))
    assert not W[factor.dropped].any()
    assert not factor.forward(B)[factor.dropped].any()
    direct = np.linalg.solve(A[np.ix_(kept, kept)], B[kept])
    np.testing.assert_allclose(W[kept], direct, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(A @ W, B, atol=1e-7)
    identity = np.eye(6)
    identity[np.ix_(kept, kept)] = A[np.ix_(kept, kept)]
    np.testing.assert_allclose(factor.L @ factor.L.T, identity, atol=1e-12)
    np.testing.assert_array_equal(factor.L[factor.dropped], np.eye(6)[factor.dropped])


@settings(max_examples=40)
@given(seeds, st.integers(-6, 6))
def test_a_pivot_is_judged_by_its_own_column(seed: int, power: int) -> None:
    X = rows(seed, 5) * 10.0 ** np.array([0, power, 0, -power, 0])
    A = X.T @ X / len(X)
    assert not factorise(A, np.diagonal(A)).dropped.any()
    twice = np.hstack([X, X[:, [1]] * 10.0 ** (-power)])
    A = twice.T @ twice / len(X)
    assert factorise(A, np.diagonal(A)).dropped.tolist() == [False] * 5 + [True]


def test_the_reference_is_what_the_diagonal_was_not_what_is_left() -> None:
    left = np.array([[1e-13, 0.0], [0.0, 0.5]])
    assert factorise(left, np.ones(2)).dropped.tolist() == [True, False]
    assert factorise(left, np.diagonal(left)).dropped.tolist() == [False, False]


@pytest.mark.parametrize("alpha", [1e-9, 1e-7, 1e-5])
def test_a_penalty_keeps_every_column(alpha: float) -> None:
    X = rows(1, 4)
    X = np.hstack([X, X, X[:, [0]] + X[:, [1]]])
    X /= np.sqrt((X**2).mean(axis=0))
    A = X.T @ X / len(X) + alpha * np.eye(9)
    assert not factorise(A, np.diagonal(A)).dropped.any()


def test_nothing_has_an_empty_factor() -> None:
    factor = factorise(np.empty((0, 0)), np.empty(0))
    assert (factor.L.shape, factor.dropped.shape) == ((0, 0), (0,))


@pytest.mark.parametrize("columns", [1, 3])
def test_conjugate_gradients_solve_as_the_factor_does(columns: int) -> None:
    rng = np.random.default_rng(0)
    A = np.cov(rng.normal(size=(12, 40)))
    b = rng.normal(size=(12, columns))
    diagonal = np.diagonal(A)[:, np.newaxis]
    found = conjugate_gradients(lambda x: A @ x, lambda r: r / diagonal, b, tolerance=1e-10, max_steps=200)
    np.testing.assert_allclose(found, factorise(A, np.diagonal(A)).solve(b), rtol=1e-7)


def test_conjugate_gradients_stop_where_the_curvature_ends() -> None:
    A = np.diag([1.0, 0.0])
    found = conjugate_gradients(lambda x: A @ x, lambda r: r, np.array([[0.0], [1.0]]), tolerance=1e-10, max_steps=9)
    assert found.tolist() == [[0.0], [0.0]]


CONCURRENT = """
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from anytime import AnytimeRegressor
from threadpoolctl import threadpool_info

X = np.random.default_rng(0).normal(size=(400, 20))
for _ in range(5):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: AnytimeRegressor(alpha=1e-3, basis="linear").fit(X, X.sum(axis=1)), range(16)))
        print({library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"})
"""


def test_concurrent_fits_restore_the_threads_of_blas() -> None:
    """In a process of its own: threadpoolctl obeys only the first thread that set a limit, which is this one here."""
    threads = os.environ | {"OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", CONCURRENT], check=True, capture_output=True, text=True, env=threads)
    assert done.stdout == "{2}\n" * 5


def test_blas_has_one_thread_until_the_last_context_ends() -> None:
    def threads() -> set[int]:
        return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        first, second = single_blas_thread(), single_blas_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert threads() == {1}
        second.__exit__(None, None, None)
        assert threads() == {2}
