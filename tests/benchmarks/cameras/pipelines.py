"""Extractors with a model trained on them, and the loop that a programmer would write instead of `Runner`."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anytime import Answer, AnytimeRegressor, FeatureGroup, FeatureGroups, Model, Prediction
from anytime.costs.profiling import ModuleInputs, profile
from benchmarks.cameras.extractors import EXTRACTORS
from benchmarks.cameras.scenes import clip, pair

__all__ = ["Case", "Pipeline", "camera", "plain"]

RESERVE_MS = 0.3
"""What the loop reserves for its answer."""

PLAIN_MS = (0.5, 1.0, 2.0, 3.0, 8.0, 12.0)
"""Durations of extractors in plain Python."""


@dataclass(frozen=True)
class Case:
    """An input with its target, the values of each group, and how long computing all of them took."""

    x: Any
    y: float
    values: dict[str, NDArray[Any]]
    took_ms: float


@dataclass(frozen=True)
class Pipeline:
    """A model whose costs are the medians of its extractors' times; `slow_ms` are their 95 % quantiles."""

    model: Model
    extractors: Mapping[str, Callable[[Any], Any]]
    slow_ms: Mapping[str, float]
    cases: Sequence[Case]

    def by_hand(self, x: Any, deadline_ms: float) -> Answer:
        """Compute groups in the calling thread while the next one fits, and answer."""
        deadline = time.perf_counter() + deadline_ms / 1e3
        prediction = Prediction(self.model)
        for group in self.model.computed[-1]:
            if time.perf_counter() + (self.slow_ms[group] + RESERVE_MS) / 1e3 > deadline:
                break
            prediction.add(group, self.extractors[group](x))
        return prediction.answer()

    def predicted(self, values: Mapping[str, Any]) -> float:
        """Return the prediction from values of all groups, or of some."""
        prediction = Prediction(self.model)
        for group, each in values.items():
            prediction.add(group, each)
        return float(prediction.answer().prediction)

    def with_defaults(self, case: Case, received: Sequence[str]) -> float:
        """Return the full model's prediction with the training means of the groups that were not received."""
        return self.predicted(
            {group: each if group in received else np.full(len(each), np.nan) for group, each in case.values.items()}
        )


def _case(extractors: Mapping[str, Callable[[Any], Any]], x: Any, y: float) -> Case:
    begin = time.perf_counter()
    values = {name: np.asarray(extractor(x), dtype=np.float64) for name, extractor in extractors.items()}
    return Case(x, y, values, (time.perf_counter() - begin) * 1e3)


def _training_case(seed: int) -> Case:
    case = _case(EXTRACTORS, *pair(seed))
    return Case(None, case.y, case.values, case.took_ms)  # without the frames, which are large


def _trained(
    extractors: Mapping[str, Callable[[Any], Any]], training: Sequence[Case], cases: Sequence[Case], repeats: int
) -> Pipeline:
    """Profile the extractors on some cases, and train with these costs."""
    columns = {name: [f"{name}_{j}" for j in range(len(each))] for name, each in training[0].values.items()}
    unpriced = FeatureGroups(
        groups=tuple(FeatureGroup(name=name, features=tuple(each), cost=1.0) for name, each in columns.items())
    )
    times = profile(unpriced, extractors, ModuleInputs(tuple(case.x for case in cases)), repeats=repeats).times
    groups = [{"name": name, "features": each, "cost": float(np.median(times[name]))} for name, each in columns.items()]
    X = np.array([np.concatenate(list(case.values.values())) for case in training])
    learner = AnytimeRegressor({"cost_unit": "ms", "groups": groups}, alpha="cv", basis="linear")
    model = learner.fit(X, np.array([case.y for case in training])).model_
    return Pipeline(model, extractors, {name: float(np.percentile(each, 95)) for name, each in times.items()}, cases)


def camera(scenes: int, clips: int, frames: int) -> Pipeline:
    """Train on a pair of frames of each of some scenes; the cases are clips of others."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        training = pool.map(_training_case, range(scenes), chunksize=8)
    cases = [_case(EXTRACTORS, x, y) for seed in range(clips) for x, y in clip(10**6 + seed, frames)]
    return _trained(EXTRACTORS, training, cases, repeats=1)


def _spin(position: int, ms: float, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a number of the input after `ms` of processor time in which plain Python keeps the interpreter."""
    end = time.thread_time() + ms / 1e3
    while time.thread_time() < end:
        sum(range(200))
    return x[position : position + 1]


def plain() -> Pipeline:
    """Train on extractors of plain Python, the quickest of which are the most useful."""
    extractors = {f"plain-{ms:g}": partial(_spin, position, ms) for position, ms in enumerate(PLAIN_MS)}
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, len(PLAIN_MS)))
    y = X @ np.arange(len(PLAIN_MS), 0, -1.0) + rng.standard_normal(len(X))
    every = [
        Case(x, float(each), {n: x[[j]] for j, n in enumerate(extractors)}, sum(PLAIN_MS))
        for x, each in zip(X, y, strict=True)
    ]
    return _trained(extractors, every, every[:40], repeats=1)
