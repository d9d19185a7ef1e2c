"""A search engine that ranks 500 documents under ever shorter deadlines.

    python ranking.py                               trains in a few seconds, serves, sends queries for 5 s
    python ranking.py --save ranking.safetensors    trains only; `anytime serve ranking.safetensors`, then
    python ranking.py --url http://127.0.0.1:8000   sends queries to that server

A separate process computes six groups of features for all documents of a query at once, from stored values to a small
neural network. The client sends each group as soon as it is computed, as arrays in packed frames. At the deadline the
server returns the ranking by the groups that it has received. The example prints NDCG@10 by the true relevances, and
its share of the complete model's, as deadlines or budgets tighten. If an overloaded server refuses, the documents keep
their order.

Documents are made up: counts of words, passages as vectors, and relevances from 0 to 4 that depend on all of them and
on noise. Needs the extras `train`, `serve` and `client`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from own_server import serving

from anytime._linalg import single_blas_thread
from anytime.inference.prediction import Answer
from anytime_service.client import AsyncClient

Numbers = NDArray[Any]

DEADLINES_MS = (16.0, 8.0, 4.0, 2.0, 1.0)
DOCUMENTS, TERMS, PASSAGES, WIDTH, WORDS = 500, 4, 8, 96, 256
TRAINED_ON = 30
"""Number of training queries."""

PAUSE_S = 0.03
"""Pause between two queries, in which extractors that still run after the previous answer finish."""

DEFAULT_DEADLINE_MS = 5_000.0
"""Deadline of queries without a deadline."""

SHARES = (0.60, 0.80, 0.93, 0.98)
"""Shares of the documents with a relevance below 1, 2, 3 and 4."""


@dataclass(frozen=True)
class Query:
    """A query and the documents to rank.

    Attributes
    ----------
    quality : (documents, 3) stored values of each: its age, its length and how often it was read.
    counts : (documents, fields, terms) how often each term is in title, body and links.
    words : (documents, words) the body as word numbers; numbers below `TERMS` are terms of the query.
    passages : (documents, passages, width) vectors of the passages.
    wanted : (width,) vector of the query.
    relevance : (documents,) 0 to 4.
    """

    quality: Numbers
    counts: Numbers
    words: Numbers
    passages: Numbers
    wanted: Numbers
    relevance: Numbers


_rng = np.random.default_rng(0)
_FIRST = (_rng.normal(size=(3 * WIDTH, 128)) / np.sqrt(3 * WIDTH)).astype(np.float32)
_SECOND = (_rng.normal(size=(128, 12)) / 11).astype(np.float32)
_TASTE = _rng.normal(size=12)


@lru_cache(maxsize=128)
def query_of(number: int) -> Query:
    """Make up a query, whose documents match it to some degree; every feature is a noisy measure of the match.

    The process of the extractors stores the documents; the caller sends it only the query's number, not its words.
    """
    rng = np.random.default_rng(number)
    about = rng.normal(size=DOCUMENTS)
    shown = np.exp(0.5 * about)[:, np.newaxis, np.newaxis]
    counts = rng.poisson(np.array([0.3, 3.0, 0.8])[:, np.newaxis] * shown * np.ones(TERMS)).astype(np.float32)
    rate = np.clip(0.01 * shown[:, :, 0] * rng.gamma(2.0, 0.5, (DOCUMENTS, 1)), 0.0, 0.2)
    words = np.where(
        rng.random((DOCUMENTS, WORDS)) < rate, rng.integers(0, TERMS, (DOCUMENTS, WORDS)), TERMS + 1
    ).astype(np.int16)
    wanted = rng.normal(size=WIDTH).astype(np.float32)
    near = (0.1 * np.maximum(about, -1.5))[:, np.newaxis, np.newaxis] * wanted
    passages = (near * rng.random((DOCUMENTS, PASSAGES, 1)) + rng.normal(size=(DOCUMENTS, PASSAGES, WIDTH))).astype(
        np.float32
    )
    quality = rng.normal(size=(DOCUMENTS, 3)).astype(np.float32)
    query = Query(quality, counts, words, passages, wanted, np.zeros(DOCUMENTS))
    taste = network(query) @ _TASTE
    score = about + 0.4 * quality[:, 2] + 0.8 * (taste - taste.mean()) / taste.std() + rng.normal(0.0, 0.5, DOCUMENTS)
    relevance = np.searchsorted(np.quantile(score, SHARES), score).astype(float)
    return Query(quality, counts, words, passages, wanted, relevance)


def stored(query: Query) -> Numbers:
    """Return the stored values of each document: 3 numbers."""
    return query.quality


def title(query: Query) -> Numbers:
    """Return how well the title matches: 2 numbers."""
    return np.stack([query.counts[:, 0].sum(axis=1), (query.counts[:, 0] > 0).sum(axis=1)], axis=1)


def body(query: Query) -> Numbers:
    """Return Okapi BM25 of body and links, and the number of terms found: 3 numbers."""
    found = query.counts[:, 1:]
    share = (found > 0).mean(axis=0)
    rarity = np.log1p((1.0 - share + 1e-3) / (share + 1e-3))
    match = (found * 2.2 / (found + 1.2) * rarity).sum(axis=2)
    return np.column_stack([match, (found > 0).any(axis=1).sum(axis=1)])


def proximity(query: Query) -> Numbers:
    """Return the number of terms within windows of 8, 16, 32 and 64 words: 4 numbers."""
    here = np.stack([query.words == term for term in range(TERMS)])
    seen = np.concatenate([np.zeros((TERMS, DOCUMENTS, 1), np.int16), here.cumsum(axis=2, dtype=np.int16)], axis=2)
    together = [(seen[:, :, w:] > seen[:, :, :-w]).sum(axis=0).max(axis=1) for w in (8, 16, 32, 64)]
    return np.stack(together, axis=1).astype(np.float32)


def meaning(query: Query) -> Numbers:
    """Return the best three cosines between query and passages, their mean and deviation: 5 numbers."""
    lengths = np.linalg.norm(query.passages, axis=2) * np.linalg.norm(query.wanted)
    cosines = np.sort(query.passages @ query.wanted / lengths, axis=1)
    return np.column_stack([cosines[:, -3:], cosines.mean(axis=1), cosines.std(axis=1)])


def network(query: Query) -> Numbers:
    """Return two layers over each passage and the query, averaged over the passages: 12 numbers."""
    wanted = np.broadcast_to(query.wanted, query.passages.shape)
    pairs = np.concatenate([query.passages, wanted, query.passages * wanted], axis=2)
    return np.asarray((np.maximum(pairs @ _FIRST, 0.0) @ _SECOND).mean(axis=1))


def extracted(extract: Callable[[Query], Numbers], number: int) -> Numbers:
    """Return the result of an extractor for the documents of a query."""
    return extract(query_of(number))


EXTRACTORS: dict[str, Callable[[int], Numbers]] = {
    extract.__name__: partial(extracted, extract) for extract in (stored, title, body, proximity, meaning, network)
}


def train(path: Path) -> None:
    """Measure the cost of each group on this machine, train the model, and save it."""
    from anytime import AnytimeRegressor  # noqa: PLC0415  (loads scikit-learn, which takes seconds and only training needs)

    blocks: dict[str, list[Numbers]] = {name: [] for name in EXTRACTORS}
    times: dict[str, list[float]] = {name: [] for name in EXTRACTORS}
    with single_blas_thread():
        for number in range(TRAINED_ON):
            query_of(number)
            for name, extract in EXTRACTORS.items():
                begun = time.perf_counter()
                blocks[name].append(extract(number))
                times[name].append((time.perf_counter() - begun) * 1e3)
    groups = [
        {"name": name, "features": [f"{name}_{i}" for i in range(b[0].shape[1])], "cost": float(np.median(times[name]))}
        for name, b in blocks.items()
    ]
    X = np.hstack([np.vstack(b) for b in blocks.values()])
    regressor = AnytimeRegressor({"cost_unit": "ms", "groups": groups}, alpha="cv")
    model = regressor.fit(X, np.concatenate([query_of(number).relevance for number in range(TRAINED_ON)])).save(path)
    print(f"{'step':<12}{'cumulative ms':>14}{'explained':>11}")
    for step in model.manifest.steps:
        r2 = "-" if step.r2 is None else f"{step.r2:.3f}"
        print(f"{step.group:<12}{step.cumulative_cost:>14.2f}{r2:>11}")


def ndcg(relevance: Numbers, order: Iterable[int], first: int = 10) -> float:
    """Return the normalised discounted cumulative gain of the first documents."""
    discounts = 1.0 / np.log2(np.arange(2, first + 2))
    gains = 2.0 ** relevance[np.fromiter(order, int)][:first] - 1.0
    best = 2.0 ** np.sort(relevance)[::-1][:first] - 1.0
    return float(gains @ discounts / (best @ discounts))


@dataclass
class Results:
    """Results of some queries; each list has one entry per query."""

    took_ms: list[float]
    groups: list[int]
    gains: list[float]

    def add(self, answer: Answer, took_ms: float, number: int) -> None:
        """Record an answer."""
        self.took_ms.append(took_ms)
        self.groups.append(answer.prefix)
        self.gains.append(ndcg(query_of(number).relevance, answer.ranking or range(DOCUMENTS)))

    def line(self, name: str, full: float, deadline_ms: float | None = None) -> str:
        """Return the results as one line."""
        gain = float(np.mean(self.gains))
        p50, p99 = np.percentile(self.took_ms, [50, 99])
        line = f"{name:<18}{np.mean(self.groups):>8.1f}{gain:>10.3f}{gain / full:>10.1%}{p50:>9.2f}{p99:>9.2f}"
        if deadline_ms is None:
            return line
        return f"{line}{sum(took <= deadline_ms for took in self.took_ms):>7} of {len(self.took_ms)}"


async def measure(client: AsyncClient, seconds: float) -> None:
    """Send queries under each deadline, then with the budget of each step; print a line for each."""
    queries = range(1_000, 1_008)
    await client.warm_up(EXTRACTORS, model="ranking", worker="process")
    await _results(client, queries, len(queries))  # caches the documents in the process of the extractors
    full = await _results(client, queries, len(queries))
    best = float(np.mean(full.gains))
    print(f"\n{'':<18}{'groups':>8}{'NDCG@10':>10}{'of full':>10}{'p50 ms':>9}{'p99 ms':>9}{'in time':>13}")
    print(full.line("no deadline", best))
    for deadline_ms in DEADLINES_MS:
        count = max(len(queries), round(seconds / len(DEADLINES_MS) / (PAUSE_S + deadline_ms / 1e3)))
        print((await _results(client, queries, count, deadline_ms)).line(f"{deadline_ms:g} ms", best, deadline_ms))
    for step in (await client.model("ranking")).steps:
        results = await _results(client, queries, len(queries), budget=step.cumulative_cost)
        print(results.line(f"budget {step.cumulative_cost:.2f} ms", best))


async def _results(
    client: AsyncClient,
    queries: Sequence[int],
    count: int,
    deadline_ms: float | None = None,
    budget: float | None = None,
) -> Results:
    """Send the queries in turns, `count` in total, and return their results."""
    results = Results([], [], [])
    for number in itertools.islice(itertools.cycle(queries), count):
        results.add(*await _ranked(client, number, deadline_ms, budget), number)
    return results


async def _ranked(
    client: AsyncClient, number: int, deadline_ms: float | None, budget: float | None
) -> tuple[Answer, float]:
    """Rank the documents of a query; return the answer and its time in milliseconds.

    With a deadline, an overloaded server means the base rate; without one, the query is sent until all is computed.
    """
    while True:
        await asyncio.sleep(PAUSE_S)
        begun = time.perf_counter()
        answer = await client.run(
            EXTRACTORS,
            number,
            deadline_ms or DEFAULT_DEADLINE_MS,
            budget=budget,
            model="ranking",
            rows=DOCUMENTS,
            ranking=True,
            worker="process",
        )
        if deadline_ms is not None or answer.reason not in ("overload", "deadline"):
            return answer, (time.perf_counter() - begun) * 1e3


def main() -> None:
    """Run the example with the arguments of the command line."""
    parser = argparse.ArgumentParser(description="A search engine under ever shorter deadlines.")
    parser.add_argument("--url", help="a server of the model of --save; by default the example starts one")
    parser.add_argument("--save", type=Path, help="train, save the model to this file, and exit")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to send queries under deadlines")
    arguments = parser.parse_args()
    if arguments.save:
        train(arguments.save)
    elif arguments.url:
        asyncio.run(_measure(arguments.url, arguments.seconds))
    else:
        with tempfile.TemporaryDirectory() as folder:
            train(Path(folder) / "ranking.safetensors")
            with serving(Path(folder) / "ranking.safetensors") as url:
                asyncio.run(_measure(url, arguments.seconds))


async def _measure(url: str, seconds: float) -> None:
    async with AsyncClient(url, api_key=os.environ.get("ANYTIME_KEY")) as client:
        await measure(client, seconds)


if __name__ == "__main__":
    main()
