"""Promises of the demonstration's extractors: real features, the same every time, and worth their cost."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anytime.testing import FakeClock
from anytime.types import Float
from anytime_service.demo import story
from anytime_service.demo.extractors import EXTRACTORS, feature_table

datasets = pytest.importorskip("sklearn.datasets")

TRAINING, ALL = 300, 450

EXTREMES = {
    "white": np.zeros((8, 8)),
    "black": np.full((8, 8), 16.0),
    "one pixel": np.pad([[16.0]], ((3, 4), (5, 2))),
    "ring": np.pad(np.pad(np.zeros((2, 2)), 1, constant_values=16.0), 2),
    "checks": np.indices((8, 8)).sum(axis=0) % 2 * 16.0,
}


# Writers follow each other in the data set; mixed, the held-out digits are by the same hands.
CHOSEN = np.random.default_rng(0).permutation(1797)[:ALL]


@pytest.fixture(scope="module")
def images() -> Float:
    digits: Float = datasets.load_digits().images[CHOSEN]
    return digits


@pytest.fixture(scope="module")
def blocks(images: Float) -> dict[str, Float]:
    return {name: np.array([extract(image) for image in images]) for name, extract in EXTRACTORS.items()}


def held_out_accuracy(X: Float, labels: Float) -> float:
    """Least squares on one-hot classes; a small penalty, as extra rows, since there may be more columns than rows."""
    X = (X - X[:TRAINING].mean(axis=0)) / (X[:TRAINING].std(axis=0) + 1e-9)
    Y = np.eye(10)[labels.astype(int)]
    mean = Y[:TRAINING].mean(axis=0)
    penalty = np.sqrt(0.03 * TRAINING) * np.eye(X.shape[1])
    rows = np.vstack([X[:TRAINING], penalty])
    W, *_ = np.linalg.lstsq(rows, np.vstack([Y[:TRAINING] - mean, np.zeros((X.shape[1], 10))]), rcond=None)
    return float(((X[TRAINING:] @ W + mean).argmax(axis=1) == labels[TRAINING:]).mean())


@pytest.mark.parametrize("name", EXTRACTORS)
def test_an_extractor_is_a_function_of_the_image_alone(name: str, images: Float) -> None:
    image = images[7].copy()
    once = EXTRACTORS[name](image)
    EXTRACTORS[name](images[8])
    assert np.array_equal(image, images[7]), "the image is left as it was"
    assert np.array_equal(once, EXTRACTORS[name](image))


@pytest.mark.parametrize("name", EXTRACTORS)
def test_values_are_finite_and_of_one_length_whatever_the_image(name: str, blocks: dict[str, Float]) -> None:
    block = blocks[name]
    extremes = [EXTRACTORS[name](image) for image in EXTREMES.values()]
    for values in (*extremes, *block):
        assert (values.shape, values.dtype) == ((block.shape[1],), np.float64)
        assert np.isfinite(values).all()


@pytest.mark.parametrize("name", EXTRACTORS)
def test_an_extractor_can_be_sent_to_a_process(name: str) -> None:
    assert pickle.loads(pickle.dumps(EXTRACTORS[name])) is EXTRACTORS[name]


def test_no_feature_of_a_group_is_one_of_another(blocks: dict[str, Float]) -> None:
    assert len(EXTRACTORS) >= 8
    scaled = [block - block.mean(axis=0) for block in blocks.values()]
    scaled = [block / (np.linalg.norm(block, axis=0) + 1e-12) for block in scaled]
    for one, other in combinations(scaled, 2):
        assert np.abs(one.T @ other).max() < 1.0 - 1e-6


def test_topology_distinguishes_a_ring_from_a_stroke() -> None:
    holes = 1
    ring, stroke = EXTRACTORS["topology"](EXTREMES["ring"]), EXTRACTORS["topology"](EXTREMES["one pixel"])
    assert (ring[holes], stroke[holes]) == (1.0, 0.0)


def test_more_groups_are_more_accurate(blocks: dict[str, Float]) -> None:
    labels = datasets.load_digits().target[CHOSEN]
    names = list(blocks)
    prefixes = [np.hstack([blocks[name] for name in names[:count]]) for count in (1, 3, 6, len(names))]
    accuracy = [held_out_accuracy(X, labels) for X in prefixes]
    assert accuracy == sorted(accuracy)
    assert accuracy[0] < 0.65 < 0.95 < accuracy[-1]
    assert accuracy[-1] > held_out_accuracy(blocks["intensity"], labels) + 0.3


def test_the_table_names_its_features_and_costs(images: Float, blocks: dict[str, Float]) -> None:
    X, groups = feature_table(images[:5])
    assert (groups.cost_unit, groups.names) == ("ms", tuple(EXTRACTORS))
    assert X.shape == (5, len(groups.features))
    assert groups.groups[0].features[:2] == ("intensity_0", "intensity_1")
    for name, columns in zip(groups.names, groups.slices, strict=True):
        assert np.array_equal(X[:, columns], blocks[name][:5])
    costs = dict(zip(groups.names, groups.costs, strict=True))
    assert 0 < costs["intensity"] < min(costs["texture"], costs["radon"])


# The demonstration says when the machine was late.


def test_a_late_answer_is_due_to_the_machine_if_a_bare_timer_fired_no_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    scripted = [(0.9, 1.1), (1.5, 1.6), (1.5, 1.55), (1.5, 1.1)]  # answer and timer, as multiples of the deadline
    turns = iter([turn for _ in story.DEADLINES_MS for turn in scripted])

    class Timed:
        """A runner and a timer on the fake clock: each takes its scripted time."""

        def run(self, _: Any, deadline_ms: float) -> SimpleNamespace:
            answer, self.fires = (share * deadline_ms for share in next(turns))
            clock.advance(answer)
            return SimpleNamespace(prediction=7, prefix=2)

        def timer(self, _: float, fire: Callable[[], None]) -> SimpleNamespace:
            begun = clock.ms

            def join() -> None:
                clock.ms = begun + self.fires
                fire()

            return SimpleNamespace(start=lambda: None, join=join)

    runner: Any = Timed()
    monkeypatch.setattr(story, "Timer", runner.timer)
    fake = SimpleNamespace(sleep=lambda s: clock.advance(1e3 * s), perf_counter=lambda: clock.ms / 1e3)
    monkeypatch.setattr(story, "time", fake)
    table = story.counts(runner, np.zeros((4, 8, 8)), [7, 7, 7, 1])
    columns = {each.heading: [*each.values] for each in table.columns}
    assert (
        columns
        | {
            "in time": ["1 of 4"] * 3,
            "late with timer": ["2"] * 3,
            "late alone": ["1"] * 3,
            "accuracy": ["0.750"] * 3,
            "slowest": [f"{1.5 * deadline:.2f} ms" for deadline in story.DEADLINES_MS],
        }
        == columns
    )
