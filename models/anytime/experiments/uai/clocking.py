"""The clock of the experiment on training time: every way of selecting, measured side by side in one process.

Times are the processor's: on a machine that others use, the clock on the wall tells of them too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from typing import Literal

import numpy as np

from anytime.accumulate import moments_of
from anytime.arrays import Float, Index
from anytime.criteria import CRITERIA
from anytime.experiments.experiment import Result, Setting
from anytime.experiments.sets import load_set, regrouped
from anytime.experiments.uai.literal_selection import FromGram, FromRows, LiteralPath, literal_fr, literal_omp
from anytime.gram import Gram
from anytime.groups import FeatureGroup, FeatureGroups
from anytime.manifest import Method
from anytime.sequencing import Candidates, greedy, sequence
from anytime.sweep import Sweep
from anytime.threads import single_blas_thread

__all__ = ["ROWS", "clocked", "counted", "grown", "timed"]

ALPHA = 1e-5

ROWS = 20_000
WORK = 3e11
"""Rows trained on, and the multiplications of literal FR that keep them fewer: about rows D^2 J^2 / 12 of them."""

METHODS: tuple[Method, ...] = ("fr", "omp")

WAYS = ("FR, rows", "OMP, rows", "FR, products", "OMP, products", "FR, ours", "OMP, ours")
"""Which method, and how: literally from the rows, literally from the products X'X and X'Y, or in one sweep."""


def clocked(gram: Gram, groups: FeatureGroups, method: Method) -> LiteralPath:
    """Our search as `sequence` makes it, with the time at which each group was selected."""
    start = time.process_time()
    criterion = CRITERIA[method](gram)
    sweep = Sweep(gram, groups.slices, ALPHA, blocks=criterion.needs_blocks)
    search = _Clocked(sweep, Candidates(groups, sweep, criterion, cost_blind=False))
    found = greedy(search, groups)
    order = np.array([step.adds[-1] for step in found.steps], dtype=np.intp)
    explained = np.array([step.explained_variance for step in found.steps])
    return LiteralPath(order, explained, np.array(search.stamps) - start)


class _Clocked:
    """Least squares with a clock."""

    def __init__(self, sweep: Sweep, candidates: Candidates) -> None:
        self._sweep, self.candidates = sweep, candidates
        self._explained = 0.0
        self.stamps: list[float] = []

    def take(self, adds: tuple[int, ...]) -> float:
        self._explained += sum(self._sweep.select(group) for group in adds)
        self.stamps.append(time.process_time())
        return self._explained


def timed(
    setting: Setting, data: Literal["yahoo_sample", "kddcup99"], size: int | None, turns: int, turns_of_rows: int
) -> Result:
    """Time every way on one problem, in turns, on one BLAS thread; what `sequence` itself takes is beside it."""
    X, y, groups = _problem(setting, data, size)
    with single_blas_thread():
        gram = Gram.of(moments_of(X, y))
        products, rows = FromGram(gram, ALPHA), FromRows.of(X, y, gram, ALPHA)
        ways: dict[str, tuple[Callable[[], LiteralPath], int]] = {
            "FR, ours": (lambda: clocked(gram, groups, "fr"), turns),
            "OMP, ours": (lambda: clocked(gram, groups, "omp"), turns),
            "FR, products": (lambda: literal_fr(products, groups), turns),
            "OMP, products": (lambda: literal_omp(products, groups), turns),
            "FR, rows": (lambda: literal_fr(rows, groups), turns_of_rows),
            "OMP, rows": (lambda: literal_omp(rows, groups), turns_of_rows),
        }
        others: dict[str, Callable[[], object]] = {
            "FR, whole": lambda: sequence(gram, groups, "fr", ALPHA),
            "OMP, whole": lambda: sequence(gram, groups, "omp", ALPHA),
            "moments": lambda: moments_of(X, y),
        }
        paths, totals = _in_turns(ways, others, turns)
    return {
        "groups": len(groups),
        "features": len(gram.S),
        "rows": len(X),
        "seconds": {name: _fastest(paths[name]).tolist() for name in WAYS},
        "totals": totals,
        "counted": counted(groups, paths["FR, ours"][0].order),
        "same": {name: _agreement({way: found[0] for way, found in paths.items()}, name) for name in ("FR", "OMP")},
    }


def counted(groups: FeatureGroups, order: Index) -> float:
    """Products X_G'X_G of literal FR over those of literal OMP: a quarter of the number of groups, were they equal."""
    sizes = np.array([len(group.features) for group in groups.groups], dtype=np.float64)[order]
    chosen = np.cumsum(sizes)
    of_fr = sum(float(np.square(chosen[k] - sizes[k] + sizes[k:]).sum()) for k in range(len(sizes)))
    return of_fr / float(np.square(chosen).sum())


def grown(setting: Setting, features: int, turns: int) -> Result:
    """Time our two methods on a problem of so many correlated features in groups of ten, products given."""
    rng = np.random.default_rng([setting.seed, features])
    X = rng.normal(size=(2 * features, features)) + rng.normal(size=(2 * features, 1))
    y = X @ rng.normal(size=features) + rng.normal(size=len(X))
    names = [f"x{j}" for j in range(features)]
    made = [
        FeatureGroup(name=f"g{j}", features=tuple(names[j : j + 10]), cost=float(rng.uniform(1, 10)))
        for j in range(0, features, 10)
    ]
    groups = FeatureGroups(groups=tuple(made))
    fastest: dict[str, float] = {}
    with single_blas_thread():
        gram = Gram.of(moments_of(X, y))
        for _ in range(turns):
            for method in METHODS:
                seconds = _seconds(lambda method=method: sequence(gram, groups, method, ALPHA))  # type: ignore[misc]
                fastest[method] = min(seconds, fastest.get(method, np.inf))
    return {"features": features, "ratio": fastest["fr"] / fastest["omp"]}


def _fastest(paths: Many[LiteralPath]) -> Float:
    """Seconds until each group was selected, by the fastest time of each step: what else the machine did is out."""
    steps = np.min([np.diff(path.seconds, prepend=0.0) for path in paths], axis=0)
    seconds: Float = np.cumsum(steps)
    return seconds


def _in_turns(
    ways: Mapping[str, tuple[Callable[[], LiteralPath], int]], others: Mapping[str, Callable[[], object]], turns: int
) -> tuple[dict[str, list[LiteralPath]], dict[str, float]]:
    """Paths of each way, made as often as it says, and the fewest seconds of the others, so that moods strike alike."""
    paths: dict[str, list[LiteralPath]] = {name: [] for name in ways}
    totals: dict[str, float] = {}
    for turn in range(turns):
        for name, (way, times) in ways.items():
            if turn < times:
                paths[name].append(way())
        for name, other in others.items():
            totals[name] = min(_seconds(other), totals.get(name, np.inf))
    return paths, totals


def _problem(
    setting: Setting, name: Literal["yahoo_sample", "kddcup99"], size: int | None
) -> tuple[Float, Float, FeatureGroups]:
    data = load_set(name, setting)
    if size is not None:
        data = regrouped(data, size, np.random.default_rng([setting.seed, size]))
    most = min(ROWS, int(12 * WORK / (data.X.shape[1] * len(data.groups)) ** 2))
    rows = np.flatnonzero(data.part == 0)[:most]
    return data.X[rows], data.y[rows], data.groups


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _agreement(paths: dict[str, LiteralPath], method: str) -> Result:
    """Whether the literal ways took the same groups in the same order, and how far their F is from ours."""
    ours = paths[f"{method}, ours"]
    literal = [paths[f"{method}, {way}"] for way in ("products", "rows")]
    return {
        "order": all(np.array_equal(path.order, ours.order) for path in literal),
        "difference": max(float(np.abs(path.explained - ours.explained).max()) for path in literal),
    }
