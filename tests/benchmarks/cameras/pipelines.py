"""Extractors with a model trained on them, and the loop that a programmer would write instead of `Runner`."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from anytime import Answer, AnytimeRegressor, FeatureGroup, FeatureGroups, Model, Prediction
from anytime.costs.profiling import profile
from anytime.types import Float
from benchmarks.cameras.extractors import EXTRACTORS
from benchmarks.cameras.scenes import clip

Extractors = Mapping[str, Callable[[Any], Any]]

RESERVE_MS = 0.3
"""What the loop by hand reserves for its answer."""

PLAIN_MS = (0.5, 1.0, 2.0, 3.0, 8.0, 12.0)
"""Durations of extractors in plain Python."""


@dataclass(frozen=True)
class Case:
    """An input with its target, the values of each group, and how long computing all of them took."""

    x: Any
    y: float
    values: dict[str, Float]
    took_ms: float


@dataclass(frozen=True)
class Pipeline:
    """A model whose costs are the medians of its extractors' times; `slow_ms` are their 95 % quantiles."""

    model: Model
    extractors: Extractors
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

    def predicted(self, case: Case, received: Sequence[str]) -> float:
        """Return the full model's prediction; the training means replace groups that were not received."""
        prediction = Prediction(self.model)
        for group, values in case.values.items():
            prediction.add(group, values if group in received else np.full(len(values), np.nan))
        return float(prediction.answer().prediction)


def _case(extractors: Extractors, x: Any, y: float) -> Case:
    begin = time.perf_counter()
    values = {name: np.asarray(extractor(x), dtype=np.float64) for name, extractor in extractors.items()}
    return Case(x, y, values, (time.perf_counter() - begin) * 1e3)


def _trained(extractors: Extractors, training: Sequence[Case], cases: Sequence[Case]) -> Pipeline:
    """Profile the extractors on some cases, and train with these costs."""
    columns = {name: tuple(f"{name}_{j}" for j in range(len(each))) for name, each in cases[0].values.items()}

    def groups(costs: Mapping[str, float]) -> FeatureGroups:
        each = (FeatureGroup(name=name, features=columns[name], cost=costs[name]) for name in columns)
        return FeatureGroups(cost_unit="ms", groups=tuple(each))

    inputs = tuple(case.x for case in cases)
    times = profile(groups(dict.fromkeys(columns, 1.0)), extractors, inputs, repeats=1).times
    X = np.array([np.concatenate(list(case.values.values())) for case in training])
    costed = groups({name: float(np.median(each)) for name, each in times.items()})
    # One penalty: choosing it by cross-validation takes 20 s, and is as good.
    model = AnytimeRegressor(costed, alpha=0.1, basis="linear").fit(X, [case.y for case in training]).model_
    return Pipeline(model, extractors, {name: float(np.percentile(each, 95)) for name, each in times.items()}, cases)


def _training_case(seed: int) -> Case:
    x, y = next(clip(seed, 1))
    case = _case(EXTRACTORS, x, y)
    return Case(None, y, case.values, case.took_ms)  # without the frames, which are large


def camera(scenes: int, clips: int, frames: int) -> Pipeline:
    """Train on a pair of frames of each of some scenes; the cases are clips of others."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        training = pool.map(_training_case, range(scenes), chunksize=8)
    cases = [_case(EXTRACTORS, x, y) for seed in range(clips) for x, y in clip(10**6 + seed, frames)]
    return _trained(EXTRACTORS, training, cases)


def _spin(position: int, ms: float, x: Float) -> Float:
    """Return a number of the input after `ms` of processor time in which plain Python keeps the interpreter."""
    end = time.thread_time() + ms / 1e3
    while time.thread_time() < end:
        sum(range(200))
    return x[position : position + 1]


def plain() -> Pipeline:
    """Train on extractors of plain Python; the quickest are the most useful."""
    extractors = {f"plain-{ms:g}": partial(_spin, position, ms) for position, ms in enumerate(PLAIN_MS)}
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, len(PLAIN_MS)))
    y = X @ np.arange(len(PLAIN_MS), 0, -1.0) + rng.standard_normal(len(X))
    each = zip(X, y.tolist(), strict=True)
    cases = [Case(x, target, dict(zip(extractors, x[:, None], strict=True)), sum(PLAIN_MS)) for x, target in each]
    return _trained(extractors, cases, cases[:40])
