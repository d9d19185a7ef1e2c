"""A search engine that has 500 documents to put in order, and less and less time for it.

    python ranking.py                               trains in a few seconds, serves, asks for 5 s
    python ranking.py --save ranking.safetensors    trains only; `anytime serve ranking.safetensors`, then
    python ranking.py --url http://127.0.0.1:8000   asks that server

Six groups of features are computed for all documents of a query at once, from a look at what is stored to a small
neural network, in a process of their own, and sent as arrays in packed frames, each as soon as it is computed. At the
deadline the server answers with the order of the documents by the groups that have come. Told is NDCG@10 by the true
relevances, beside that of the full model: how much of it is left when deadlines, or budgets, tighten. Where a server
has too much to do and refuses, the documents stay as they were.

Documents are made up: counts of words, passages as vectors, and relevances from 0 to 4 that depend on all of it, and on
chance. Needs the extras `train`, `serve` and `client`.
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
from anytime.inference.answer import Answer
from anytime_service.client import AsyncClient

Numbers = NDArray[Any]

DEADLINES_MS = (16.0, 8.0, 4.0, 2.0, 1.0)
DOCUMENTS, TERMS, PASSAGES, WIDTH, WORDS = 500, 4, 8, 96, 256
TRAINED_ON = 30
"""Queries."""

APART_S = 0.03
"""Between two queries: what was still being computed when the last answer was due ends meanwhile."""

PATIENCE_MS = 5_000.0
"""Deadline of queries that have none of their own."""

SHARES = (0.60, 0.80, 0.93, 0.98)
"""Shares of the documents that are less relevant than 1, 2, 3 and 4."""


@dataclass(frozen=True)
class Query:
    """A query and the documents that are to be put in order.

    Attributes
    ----------
    quality : (documents, 3) what is stored of each: its age, length and how often it was read.
    counts : (documents, fields, terms) how often each term is in title, body and links.
    words : (documents, words) the body as numbers of words; those under `TERMS` are the query's.
    passages : (documents, passages, width) vectors, beside the query's own, `wanted`.
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
    """Make up a query: documents are about it to some degree, which shows in everything, and nowhere well.

    The documents lie with whoever computes their features: sent is only the query's number, as it would be its words.
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
    """What is stored of each document: 3 numbers."""
    return query.quality


def title(query: Query) -> Numbers:
    """How the title matches: 2 numbers."""
    return np.stack([query.counts[:, 0].sum(axis=1), (query.counts[:, 0] > 0).sum(axis=1)], axis=1)


def body(query: Query) -> Numbers:
    """Okapi BM25 of body and links, and how many terms there are: 3 numbers."""
    found = query.counts[:, 1:]
    share = (found > 0).mean(axis=0)
    rarity = np.log1p((1.0 - share + 1e-3) / (share + 1e-3))
    match = (found * 2.2 / (found + 1.2) * rarity).sum(axis=2)
    return np.column_stack([match, (found > 0).any(axis=1).sum(axis=1)])


def proximity(query: Query) -> Numbers:
    """How many of the terms stand together, in windows of 8, 16, 32 and 64 words: 4 numbers."""
    here = np.stack([query.words == term for term in range(TERMS)])
    seen = np.concatenate([np.zeros((TERMS, DOCUMENTS, 1), np.int16), here.cumsum(axis=2, dtype=np.int16)], axis=2)
    together = [(seen[:, :, w:] > seen[:, :, :-w]).sum(axis=0).max(axis=1) for w in (8, 16, 32, 64)]
    return np.stack(together, axis=1).astype(np.float32)


def meaning(query: Query) -> Numbers:
    """Cosines between the query and each passage: the best three, their mean, and deviation: 5 numbers."""
    lengths = np.linalg.norm(query.passages, axis=2) * np.linalg.norm(query.wanted)
    cosines = np.sort(query.passages @ query.wanted / lengths, axis=1)
    return np.column_stack([cosines[:, -3:], cosines.mean(axis=1), cosines.std(axis=1)])


def network(query: Query) -> Numbers:
    """Two layers over each passage and the query, the mean of the passages: 12 numbers."""
    wanted = np.broadcast_to(query.wanted, query.passages.shape)
    pairs = np.concatenate([query.passages, wanted, query.passages * wanted], axis=2)
    return np.asarray((np.maximum(pairs @ _FIRST, 0.0) @ _SECOND).mean(axis=1))


def extracted(extract: Callable[[Query], Numbers], number: int) -> Numbers:
    """What an extractor computes for the documents of a query."""
    return extract(query_of(number))


EXTRACTORS: dict[str, Callable[[int], Numbers]] = {
    extract.__name__: partial(extracted, extract) for extract in (stored, title, body, proximity, meaning, network)
}


def train(path: Path) -> None:
    """Measure what each group costs here, learn the order in which they are worth it, and save the model."""
    from anytime import AnytimeRegressor  # noqa: PLC0415  (scikit-learn, which takes seconds, and only training needs)

    blocks: dict[str, list[Numbers]] = {name: [] for name in EXTRACTORS}
    taken: dict[str, list[float]] = {name: [] for name in EXTRACTORS}
    with single_blas_thread():
        for number in range(TRAINED_ON):
            query_of(number)
            for name, extract in EXTRACTORS.items():
                begun = time.perf_counter()
                blocks[name].append(extract(number))
                taken[name].append((time.perf_counter() - begun) * 1e3)
    groups = [
        {"name": name, "features": [f"{name}_{i}" for i in range(b[0].shape[1])], "cost": float(np.median(taken[name]))}
        for name, b in blocks.items()
    ]
    X = np.hstack([np.vstack(b) for b in blocks.values()])
    regressor = AnytimeRegressor({"cost_unit": "ms", "groups": groups}, alpha="cv")
    model = regressor.fit(X, np.concatenate([query_of(number).relevance for number in range(TRAINED_ON)])).save(path)
    print(f"{'step':<12}{'ms, up to it':>14}{'explained':>11}")
    for step in model.manifest.steps:
        r2 = "-" if step.r2 is None else f"{step.r2:.3f}"
        print(f"{step.group:<12}{step.cumulative_cost:>14.2f}{r2:>11}")


def ndcg(relevance: Numbers, order: Iterable[int], first: int = 10) -> float:
    """Normalised discounted cumulative gain of the first documents."""
    discounts = 1.0 / np.log2(np.arange(2, first + 2))
    gains = 2.0 ** relevance[np.fromiter(order, int)][:first] - 1.0
    best = 2.0 ** np.sort(relevance)[::-1][:first] - 1.0
    return float(gains @ discounts / (best @ discounts))


@dataclass
class Asked:
    """What came of some queries; each list has an entry a query."""

    took_ms: list[float]
    groups: list[int]
    gains: list[float]

    def note(self, answer: Answer, took_ms: float, number: int) -> None:
        """Take in an answer."""
        self.took_ms.append(took_ms)
        self.groups.append(answer.prefix)
        self.gains.append(ndcg(query_of(number).relevance, answer.ranking or range(DOCUMENTS)))

    def line(self, name: str, full: float, deadline_ms: float | None = None) -> str:
        """Tell of it in one line."""
        gain = float(np.mean(self.gains))
        p50, p99 = np.percentile(self.took_ms, [50, 99])
        told = f"{name:<18}{np.mean(self.groups):>8.1f}{gain:>10.3f}{gain / full:>10.1%}{p50:>9.2f}{p99:>9.2f}"
        if deadline_ms is None:
            return told
        return f"{told}{sum(took <= deadline_ms for took in self.took_ms):>7} of {len(self.took_ms)}"


async def ask(client: AsyncClient, seconds: float) -> None:
    """Ask under each deadline, then within each budget that buys a step more; prints a line each."""
    queries = range(1_000, 1_008)
    await client.warm_up(EXTRACTORS, model="ranking", worker="process")
    await _asked(client, queries, len(queries))  # which has the documents at hand afterwards
    full = await _asked(client, queries, len(queries))
    best = float(np.mean(full.gains))
    print(f"\n{'':<18}{'groups':>8}{'NDCG@10':>10}{'of full':>10}{'p50 ms':>9}{'p99 ms':>9}{'in time':>13}")
    print(full.line("no deadline", best))
    for deadline_ms in DEADLINES_MS:
        count = max(len(queries), round(seconds / len(DEADLINES_MS) / (APART_S + deadline_ms / 1e3)))
        print((await _asked(client, queries, count, deadline_ms)).line(f"{deadline_ms:g} ms", best, deadline_ms))
    for step in (await client.model("ranking")).steps:
        asked = await _asked(client, queries, len(queries), budget=step.cumulative_cost)
        print(asked.line(f"budget {step.cumulative_cost:.2f} ms", best))


async def _asked(
    client: AsyncClient,
    queries: Sequence[int],
    count: int,
    deadline_ms: float | None = None,
    budget: float | None = None,
) -> Asked:
    """Ask so many queries, in turns."""
    asked = Asked([], [], [])
    for number in itertools.islice(itertools.cycle(queries), count):
        asked.note(*await _ranked(client, number, deadline_ms, budget), number)
    return asked


async def _ranked(
    client: AsyncClient, number: int, deadline_ms: float | None, budget: float | None
) -> tuple[Answer, float]:
    """Have the documents put in order; the answer, and after how many milliseconds.

    Who has a deadline takes what there is, the base rate if the server refuses; who has none asks again.
    """
    while True:
        await asyncio.sleep(APART_S)
        begun = time.perf_counter()
        answer = await client.run(
            EXTRACTORS,
            number,
            deadline_ms or PATIENCE_MS,
            budget=budget,
            model="ranking",
            rows=DOCUMENTS,
            ranking=True,
            worker="process",
        )
        if deadline_ms is not None or answer.reason != "overload":
            return answer, (time.perf_counter() - begun) * 1e3


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description="A search engine that has less and less time.")
    parser.add_argument("--url", help="a server that serves the model of --save; else one is started")
    parser.add_argument("--save", type=Path, help="train, save the model there, and end")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to ask under deadlines")
    given = parser.parse_args()
    if given.save:
        train(given.save)
    elif given.url:
        asyncio.run(_ask(given.url, given.seconds))
    else:
        with tempfile.TemporaryDirectory() as folder:
            train(Path(folder) / "ranking.safetensors")
            with serving(Path(folder) / "ranking.safetensors") as url:
                asyncio.run(_ask(url, given.seconds))


async def _ask(url: str, seconds: float) -> None:
    async with AsyncClient(url, api_key=os.environ.get("ANYTIME_KEY")) as client:
        await ask(client, seconds)


if __name__ == "__main__":
    main()
