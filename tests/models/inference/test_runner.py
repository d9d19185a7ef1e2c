"""Promises of the runner: an answer at the deadline whatever extractors do, and no thread or process outlives it."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from multiprocessing import Pipe
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from joblib.externals.loky import get_reusable_executor

from anytime.errors import ExtractorError, ValuesError
from anytime.estimators import AnytimeClassifier
from anytime.groups import load_groups
from anytime.inference import runner as runner_module
from anytime.inference.extraction import Arrival, Extraction, Task
from anytime.inference.prediction import Answer
from anytime.inference.runner import Runner, _Run
from anytime.inference.workers import Worker, Workers, process
from anytime.model.manifest import Manifest, Provenance, StepRecord
from anytime.model.model import Model
from anytime.model.prefixes import PrefixModels
from anytime.moments.moments import Moments
from anytime.types import Float, Policy
from models.features.test_terms import model_of, trained
from models.inference import extracting
from models.inference.extracting import (
    Unloadable,
    awaiting,
    briefly_slow,
    doubled,
    dying,
    first,
    first_briefly_slow,
    forgetting,
    generating,
    half_of_shared,
    hanging,
    keeping,
    leaving,
    meeting,
    much,
    naming,
    noting,
    noughts,
    process_of,
    raising,
    second,
    shared_memory,
    slow,
    slow_zero,
    streaming,
    third,
    third_and_fourth,
    too_wide,
    total_of,
    unordered,
    unreadable,
    unsendable,
    writing,
    zero,
)
from models.opening import opened
from models.refusals import assert_refused
from waiting import WAIT_S, until

LONG_MS = 1e3 * WAIT_S
PATIENT_MS = 3_600_000.0
"""A busy worker is not replaced."""

WORKERS: tuple[Worker, ...] = ("thread", "process")

COEF = {"a": (1.0,), "b": (10.0,), "c": (100.0, 1000.0)}
"""What each group's features weigh in every prefix that has them; the base rate is 0.5."""


X = np.array([1.0, 2.0, 3.0, 4.0])
FULL = 0.5 + 1.0 * 1 + 10.0 * 2 + 100.0 * 3 + 1000.0 * 4


def a_model(*, moments: bool = False) -> Model:
    """Three groups after a featureless one, which `b` requires and pays: cost 1 (a), 1 + 2 (visit, b), 4 (c)."""
    groups = load_groups(
        {
            "cost_unit": "ms",
            "groups": [
                {"name": "visit", "features": [], "cost": 1.0},
                {"name": "c", "features": ["c0", "c1"], "cost": 4.0},
                {"name": "a", "features": ["a0"], "cost": 1.0},
                {"name": "b", "features": ["b0"], "cost": 2.0, "requires": ["visit"]},
            ],
        }
    )
    weights = [COEF["a"], COEF["a"] + COEF["b"], COEF["a"] + COEF["b"] + COEF["c"]]
    prefixes = PrefixModels(
        mean=np.zeros(4),
        scale=np.ones(4),
        intercept=np.array([0.5]),
        response_scale=np.ones(1),
        columns=np.array([2, 3, 0, 1]),
        ends=np.array([0, 1, 2, 4]),
        packed=np.concatenate([np.array(weight) for weight in weights])[:, np.newaxis],
    )
    adds = [("a",), ("visit", "b"), ("c",)]
    costs = [1.0, 3.0, 4.0]
    steps = tuple(
        StepRecord(
            group=added[-1],
            adds=added,
            cost=cost,
            cumulative_cost=sum(costs[: i + 1]),
            explained_variance=0.1 * (i + 1),
            r2=0.2 * (i + 1),
            cv_error=None,
            alpha=1e-5,
        )
        for i, (added, cost) in enumerate(zip(adds, costs, strict=True))
    )
    manifest = Manifest(
        name="toy",
        task="regression",
        target=("y",),
        responses=("y",),
        groups=groups,
        method="fr",
        alpha=1e-5,
        steps=steps,
        provenance=Provenance(created="", library="", data="", rows=100, weight=100.0),
    )
    return Model(manifest, prefixes, _moments() if moments else None)


def _moments() -> Moments:
    """Of independent standard features (c0, c1, a0, b0) and y = 100 c0 + 1000 c1 + a0 + 10 b0 + 0.5."""
    weights = np.array([[100.0], [1000.0], [1.0], [10.0]])
    cross = np.vstack([np.hstack([np.eye(4), weights]), np.hstack([weights.T, weights.T @ weights])])
    return Moments(4, 1, 100, 100.0, np.array([0.0, 0.0, 0.0, 0.0, 0.5]), 100.0 * cross, np.zeros(4))


def extractors(**changed: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return {"a": first, "b": second, "c": third, **changed}


def ran(
    model: Model,
    own: Mapping[str, Any],
    worker: Worker = "thread",
    x: Any = X,
    deadline_ms: float = LONG_MS,
    budget: float | None = None,
    policy: Policy = "prefix",
    **options: Any,
) -> tuple[Answer, Runner[Answer]]:
    """The answer of one run, and its runner, which is closed."""
    with Runner(model, own, worker, **options) as runner:
        return runner.run(x, deadline_ms, budget=budget, policy=policy), runner


def worker_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "anytime-worker"}


@pytest.fixture(autouse=True, scope="module")
def _no_idle_processes() -> None:
    """End the idle processes of joblib: these tests count their own."""
    get_reusable_executor().shutdown(wait=True)


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    yield
    if multiprocessing.active_children():
        gc.collect()
    until(lambda: not multiprocessing.active_children())


NO_LIGHT = "RuntimeError: no light on the sensor"
WITHOUT_SHARED = f"group 'visit' failed: {NO_LIGHT}; group 'b' failed: it uses 'visit', which failed"
NOTED: dict[str, Any] = {"a": zero, "b": zero, "c": noting}
"""Extractors whose input is a folder; c creates a file there."""

SHARED = {"visit": doubled, "b": half_of_shared}
WITH_MOMENTS: dict[str, Any] = {"model": a_model(moments=True)}
LIMITED = WITH_MOMENTS | {"patience_ms": 100.0}
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str, dict[str, dict[str, int]]]] = {
    "all groups within the deadline give the full prediction": (
        {},
        {"max_workers": 1},
        {
            "prediction": FULL,
            "reason": "complete",
            "prefix": 3,
            "complete": True,
            "cost": 8.0,
            "groups": ("a", "b", "c"),
            "late_groups": (),
            "unused_groups": (),
        },
        "",
        {},
    ),
    "groups computed by the deadline are used": (
        {"b": slow},
        {"deadline_ms": 1000.0, "max_workers": 1},
        {"prediction": 1.5, "prefix": 1, "groups": ("a",), "reason": "deadline", "missing": ("b", "c")},
        "",
        {},
    ),
    **{
        f"a budget of {budget} ends the run when its prefix is complete": (
            {"c": third if budget == 8.0 else hanging},
            {"budget": budget},
            {"prediction": prediction, "prefix": prefix, "reason": reason, "budget": budget, "complete": True},
            "",
            {},
        )
        for budget, prediction, prefix, reason in (
            (8.0, FULL, 3, "complete"),
            (4.0, 21.5, 2, "budget"),
            (3.9, 1.5, 1, "budget"),
            (0.5, 0.5, 0, "budget"),
        )
    },
    "with moments the other groups answer around a failure": (
        {"b": raising},
        WITH_MOMENTS | {"max_workers": 1},
        {
            "policy": "arrived",
            "groups": ("a", "c"),
            "reason": "end",
            "missing": ("b",),
            "prefix": 1,
            "prediction": pytest.approx(FULL - 20.0, rel=1e-3),
            "note": f"group 'b' failed: {NO_LIGHT}",
        },
        "b",
        {},
    ),
    "a group that cannot end in time is not started": (
        NOTED,
        {"times": {"c": [1e9]}, "deadline_ms": 3_600_000.0, "max_workers": 1},  # the answer is early
        {"prefix": 2, "reason": "deadline", "note": "not started, since it could not end in time: 'c' (1e+09 ms)"},
        "",
        {"c": {"skipped": 1}},
    ),
    "unless nothing is to be skipped": (
        NOTED,
        {"times": {"c": [1e6]}, "skip": False, "max_workers": 1},
        {"reason": "complete"},
        "",
        {},
    ),
    # b needs visit, which has an extractor here: without time for b, visit is useless.
    "no part of a step is started that would not end in time": (
        NOTED | {"visit": noting, "b": slow_zero},
        {"times": {"b": [1e6]}},
        {"prefix": 1},
        "",
        {},
    ),
    **{
        f"a group does not fit, by the policy {policy}": (
            {},
            WITH_MOMENTS | {"times": {"b": [1e6]}, "deadline_ms": 20_000.0, "policy": policy, "max_workers": 1},
            {"groups": groups, "policy": policy, "reason": "deadline"},
            "",
            {},
        )
        for policy, groups in (("arrived", ("a", "c")), ("prefix", ("a",)))
    },
    **{
        f"a group without features computes for those that require it, {count} workers": (
            SHARED,
            {"workers_per_run": count, "max_workers": count},
            {"prediction": FULL, "reason": "complete"},
            "",
            {"visit": {"computed": 1}},
        )
        for count in (1, 3)
    },
    **{
        f"without the shared result its dependents are not computed, {count} workers": (
            SHARED | {"visit": raising},
            WITH_MOMENTS | {"workers_per_run": count, "max_workers": 2},
            {"groups": ("a", "c"), "reason": "end", "note": WITHOUT_SHARED},
            "visit b",
            {"b": {"skipped": 0}},
        )
        for count in (1, 2)
    },
    "several workers compute the groups of one input": (
        NOTED | {"b": partial(meeting, "b", "c", 1), "c": partial(meeting, "c", "b", 2)},
        {"workers_per_run": 2, "max_workers": 2},
        {"groups": ("a", "b", "c"), "reason": "complete"},
        "",
        {},
    ),
    # visit and b are expected to take 15 s each: both may start within 5 s.
    "groups of a step may be computed at the same time": (
        SHARED,
        {
            "deadline_ms": 20_000.0,
            "times": {"visit": [15_000.0], "b": [15_000.0]},
            "workers_per_run": 2,
            "max_workers": 2,
        },
        {"reason": "complete"},
        "",
        {},
    ),
    "each of two groups has its time limit": (
        {"a": hanging, "b": hanging},
        LIMITED | {"time_limits": {"a": 50.0, "b": 50.0}, "max_workers": 3},
        {"groups": ("c",), "reason": "end", "replaced": ()},
        "a b",
        {"a": {"hung": 1}, "b": {"hung": 1}},
    ),
    "whatever the limits of earlier groups": (
        {"a": first_briefly_slow, "b": hanging},
        LIMITED | {"time_limits": {"a": 60_000.0, "b": 50.0}, "max_workers": 2, "skip": False},
        {"groups": ("a", "c"), "reason": "end", "replaced": ()},
        "b",
        {"b": {"hung": 1}},
    ),
    **{
        f"beyond a time limit shared results stay there, {count} workers": (
            SHARED | {"a": hanging},
            LIMITED
            | {
                "time_limits": {"a": 50.0},
                "max_workers": 2 + count,
                "workers_per_run": count,
                "order": ["visit", "a", "b", "c"],
            },
            {"groups": ("b", "c"), "reason": "end", "replaced": ()},
            "a",
            {"a": {"hung": 1}},
        )
        for count in (1, 2)
    },
    "without moments a group beyond its time limit ends the run": (
        {"b": hanging},
        {"time_limits": {"b": 50.0}, "patience_ms": 100.0},
        {"groups": ("a",), "reason": "end"},
        "b",
        {"b": {"hung": 1}},
    ),
    "a group after a skipped one has its time limit": (
        {"b": hanging},
        LIMITED
        | {
            "times": {"a": [1e6]},
            "time_limits": {"b": 50.0},
            "max_workers": 2,
            "deadline_ms": 20_000.0,
            "policy": "arrived",
        },
        {"groups": ("c",)},
        "b",
        {"b": {"hung": 1}},
    ),
}
"""Other extractors, options, and what a run has then: fields of the answer, groups that failed, and counts."""

RUN_DECIDES = {
    "all groups within the deadline give the full prediction",
    *(f"a budget of {budget} ends the run when its prefix is complete" for budget in (8.0, 3.9, 0.5)),
    "unless nothing is to be skipped",
    "no part of a step is started that would not end in time",
    *(f"a group does not fit, by the policy {policy}" for policy in ("arrived", "prefix")),
    "without moments a group beyond its time limit ends the run",
    "a group after a skipped one has its time limit",
}
"""Cases that the run decides whatever its workers are."""


@pytest.mark.parametrize(
    ("case", "worker"),
    [
        pytest.param(case, worker, marks=pytest.mark.heavy if worker == "process" and case in RUN_DECIDES else ())
        for case, worker in product(RUNS, WORKERS)
    ],
)
def test_a_run_is_what_its_extractors_and_options_make_of_it(case: str, worker: Worker, tmp_path: Path) -> None:
    own, options, expected, failed, counts = RUNS[case]
    x = tmp_path if own.get("a") is zero else X
    answer, runner = ran(**{"model": a_model(), "x": x, **options}, own=extractors(**own), worker=worker)
    assert answer == replace(answer, **expected)
    assert answer.elapsed_ms > 0
    assert [failure.group for failure in runner.failures] == failed.split()
    assert {g: {name: getattr(runner.counts[g], name) for name in each} for g, each in counts.items()} == counts
    assert "c" in answer.groups or not (tmp_path / "computed").exists()


@pytest.mark.parametrize("worker", WORKERS)
def test_extractors_may_return_text_and_none(worker: Worker) -> None:
    model = model_of(trained("gaussian"), "gaussian")
    row: dict[str, Any] = {"person": [999.0, "male"], "ticket": [20.0, None, 0.5], "family": np.array([2])}
    answer, runner = ran(model, {name: itemgetter(name) for name in row}, worker, x=row, max_workers=1)
    assert answer.prediction == opened(model, row).answer().prediction
    assert answer == replace(answer, reason="complete", imputed=("port",), clamped=("age",))
    assert runner.failures == ()


@pytest.mark.parametrize("worker", WORKERS)
def test_the_answer_is_on_time_while_an_extractor_runs(worker: Worker) -> None:
    with Runner(a_model(), extractors(b=hanging), worker, max_workers=1, patience_ms=PATIENT_MS) as runner:
        runner.run(X, 50.0)
        answer = runner.run(X, 20.0)
    assert answer == replace(answer, reason="deadline", complete=False)
    assert answer.prefix <= 1
    assert set(answer.missing) >= {"b", "c"}
    late = runner.lateness
    assert late.count == 2
    assert late.p50 <= late.p99 <= late.max


def test_an_answer_that_is_complete_and_late_counts_as_late(monkeypatch: pytest.MonkeyPatch) -> None:
    with Runner(a_model(), extractors()) as runner:
        assert runner.run(X, LONG_MS).reason == "complete"
        assert runner.lateness.count == 0
        shift_s, made = 0.0, _Run.answers

        def stalled(run: _Run, *, waited: bool) -> list[Answer]:
            nonlocal shift_s
            answers = made(run, waited=waited)
            shift_s = LONG_MS / 1e3 + 1.0  # the program stands still before it returns the answer
            return answers

        monkeypatch.setattr(_Run, "answers", stalled)
        monkeypatch.setattr(runner_module, "time", SimpleNamespace(perf_counter=lambda: time.perf_counter() + shift_s))
        assert runner.run(X, LONG_MS).reason == "complete"
        assert (runner.lateness.count, runner.lateness.max > 1e3) == (1, True)


@pytest.mark.parametrize("worker", WORKERS)
def test_nothing_more_is_started_after_the_deadline(worker: Worker, tmp_path: Path) -> None:
    with Runner(a_model(), {"a": zero, "b": slow_zero, "c": noting}, worker, max_workers=1) as runner:
        assert runner.run(tmp_path, 100.0).reason == "deadline"
        until(lambda: not runner._workers._serving)
        assert not (tmp_path / "computed").exists()
        assert runner.run(tmp_path, LONG_MS).reason == "complete"
        assert (tmp_path / "computed").exists()


def test_a_deadline_of_zero_gives_the_base_rate_and_starts_nothing(tmp_path: Path) -> None:
    with Runner(a_model(), {"a": zero, "b": zero, "c": noting}) as runner:
        answer = runner.run(tmp_path, 0)
        assert answer == replace(answer, prediction=0.5, prefix=0, reason="deadline", complete=False)
        assert runner.lateness.count == 0
    assert not (tmp_path / "computed").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(
            ({"deadline_ms": each}, r"deadline_ms is .*; expected a finite number")
            for each in (-1, -1e-9, float("nan"), float("inf"), "20", None, True, [1.0])
        ),
        ({"deadline_ms": 10**400}, "deadline_ms is too large"),
        ({"budget": -1.0}, "budget"),
        ({"policy": "newest"}, "policy is 'newest'"),
    ],
)
def test_a_wrong_call_is_refused_before_anything_is_computed(given: Any, message: str, tmp_path: Path) -> None:
    with Runner(a_model(), {"a": zero, "b": zero, "c": noting}) as runner, pytest.raises(ValuesError, match=message):
        runner.run(tmp_path, **{"deadline_ms": LONG_MS} | given)
    assert not (tmp_path / "computed").exists()


@pytest.mark.parametrize("deadline_ms", [np.float32(30_000), np.int64(30_000), 1e12])
def test_any_finite_number_is_a_deadline(deadline_ms: Any) -> None:
    with Runner(a_model(), extractors()) as runner:
        assert runner.run(X, deadline_ms).reason == "complete"


@pytest.mark.parametrize(
    ("own", "options", "message"),
    [
        ({"a": first, "c": third}, {}, "no extractor for 'b'"),
        ({"a": first}, {}, "no extractor for 'c', 'b'"),
        (extractors(d=first), {}, "no group 'd'"),
        ({**extractors(), "a": 3}, {}, "'a' is int; expected a callable"),
        (extractors(), {"model": []}, "there is no model"),
        (extractors(), {"model": "a.safetensors"}, "the model is str; expected a Model, as of anytime.load"),
        (extractors(), {"model": AnytimeClassifier()}, "the model is AnytimeClassifier"),
        (extractors(), {"model": [a_model(), "a.safetensors"]}, "the model is Model, str"),
        (extractors(), {"worker": "proces"}, "did you mean 'process'"),
        (extractors(), {"max_workers": 0}, "max_workers is 0"),
        (extractors(), {"max_workers": True}, "max_workers is True"),
        (extractors(), {"patience_ms": float("nan")}, "patience_ms is nan"),
        (extractors(), {"workers_per_run": 0}, "workers_per_run is 0"),
        (extractors(), {"workers_per_run": True}, "workers_per_run is True"),
        (extractors(), {"times": {"d": [1.0]}}, "times has 'd'"),
        (extractors(), {"times": {"a": []}}, "times of group 'a' are []"),
        (extractors(), {"times": {"a": [float("nan")]}}, "times of group 'a' are [nan]"),
        (extractors(), {"times": {"a": 1.0}}, "times of group 'a' are 1.0; expected a list"),
        (extractors(), {"times": {"a": {"samples": [1.0]}}}, "times of group 'a' are {'samples': [1.0]}"),
        (extractors(), {"time_limits": {"d": 1.0}}, "time_limits has 'd'"),
        (extractors(), {"time_limits": {"a": -1.0}}, "time_limits of group 'a' is -1.0"),
        (extractors(), {"time_limits": {"a": 0}}, "time_limits of group 'a' is 0"),
        (extractors(), {"reuse": {"visit": 1.0}}, "reuse has 'visit'"),
        (extractors(), {"reuse": {"a": "1"}}, "reuse of group 'a' is '1'"),
        (extractors(), {"order": ["a", "b"]}, "order lacks 'c'"),
    ],
)
def test_wrong_extractors_and_options_are_refused(own: Any, options: Any, message: str) -> None:
    assert_refused(lambda: Runner(**{"model": a_model(), "extractors": own} | options), message, error=ExtractorError)


@pytest.mark.parametrize("failing", [raising, leaving, too_wide, unreadable])
def test_without_moments_a_failure_ends_the_run_with_the_prefix_so_far(
    failing: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "anytime.runner"),
        Runner(a_model(), extractors(b=failing, c=hanging)) as runner,
    ):
        answer = runner.run(X, LONG_MS)
        runner.run(X, LONG_MS)
    assert answer == replace(answer, prediction=1.5, prefix=1, reason="end", missing=("b", "c"))
    assert str(answer.note).startswith("group 'b' failed")
    assert [failure.group for failure in runner.failures] == ["b", "b"]
    assert runner.last_failure == answer.note
    assert len(caplog.records) == 1, "a repeatedly failing group is logged once"
    assert "group 'b' failed" in caplog.text


def test_with_moments_a_failure_does_not_move_the_deadline() -> None:
    answer, _ = ran(a_model(moments=True), extractors(b=raising, c=hanging), deadline_ms=100.0)
    assert (answer.reason, answer.groups, answer.policy) == ("deadline", ("a",), "arrived")


@pytest.mark.parametrize(("classes", "policy", "arrived"), [(2, "arrived", "ac"), (3, "prefix", "a")])
def test_a_likelihood_answers_around_a_failure_by_one_step_where_it_can(
    classes: int, policy: Policy, arrived: str
) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    y = np.digitize(X @ np.array([2.0, 1.0, 1.0, 0.5]) + rng.normal(size=200), [-0.5, 0.5][: classes - 1])
    groups = [
        {"name": "a", "features": ["a0"], "cost": 1.0},
        {"name": "b", "features": ["b0"], "cost": 1.0},
        {"name": "c", "features": ["c0", "c1"], "cost": 9.0},
    ]
    model = AnytimeClassifier({"groups": groups}, alpha=0.01).fit(X, y).model_
    there = opened(model, {group: extractors()[group](X[0]) for group in arrived}).answer(policy=policy)
    answer, _ = ran(model, extractors(b=raising), x=X[0])
    assert (answer.policy, answer.approximate) == (policy, classes == 2)
    assert answer.probabilities == there.probabilities
    assert "group 'b' failed" in str(answer.note)


def test_threads_are_bounded_and_a_run_without_one_answers_the_base_rate() -> None:
    before = worker_threads()
    with Runner(a_model(), extractors(a=slow), max_workers=2) as runner:
        for _ in range(5):
            answer = runner.run(X, 20.0)
            assert (answer.prediction, answer.reason) == (0.5, "deadline")
        assert len(worker_threads() - before) <= 2


def test_an_abandoned_thread_serves_again_when_its_extractor_returns() -> None:
    with Runner(a_model(), extractors(b=briefly_slow), max_workers=1) as runner:
        assert runner.run(X, 20.0).reason == "deadline"
        answer = runner.run(X, LONG_MS)
    assert (answer.prediction, answer.reason) == (FULL, "complete")


def test_runs_from_several_threads_do_not_mix() -> None:
    with Runner(a_model(), extractors(), max_workers=4) as runner, ThreadPoolExecutor(6) as threads:

        def run(i: float) -> set[float]:
            return {runner.run(np.array([i, 0.0, 0.0, 0.0]), LONG_MS).prediction for _ in range(20)}

        found = list(threads.map(run, range(6)))
    assert found == [{0.5 + i} for i in range(6)]


@pytest.mark.parametrize("worker", WORKERS)
def test_close_is_idempotent_and_a_closed_runner_says_so(worker: Worker) -> None:
    runner = Runner(a_model(), extractors(), worker, max_workers=1)
    runner.close()
    runner.close()
    assert_refused(lambda: runner.run(X, 10.0), "closed", error=ExtractorError)


def test_closing_ends_running_runs(tmp_path: Path) -> None:
    own: dict[str, Callable[[Any], Any]] = {"a": zero, "b": partial(meeting, "b", "nobody", 1), "c": noting}
    with Runner(a_model(), own, "process", max_workers=1) as runner, ThreadPoolExecutor(1) as threads:
        running = threads.submit(runner.run, tmp_path, LONG_MS)
        until((tmp_path / "b").exists)
        runner.close()
        answer = running.result(LONG_MS / 1e3)
    assert (answer.prefix, answer.reason) == (1, "end")


def test_a_runner_that_is_dropped_ends_its_threads() -> None:
    before = worker_threads()
    runner = Runner(a_model(), extractors())
    assert len(worker_threads() - before) == 1
    del runner
    until(lambda: not worker_threads() - before)


def test_closing_leaves_no_process_and_no_descriptor() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    if not Path("/proc/self/fd").exists():
        pytest.skip("no /proc")
    with Runner(a_model(), extractors(), "process", max_workers=1):
        pass  # multiprocessing keeps a resource tracker and a block of shared memory from now on
    before = descriptors()
    with Runner(a_model(), extractors(b=slow), "process") as runner:
        runner.run(X, 50.0)
    assert descriptors() <= before


@pytest.mark.parametrize("bad", [lambda x: x, threading.Lock().acquire])
def test_extractors_that_are_not_picklable_are_refused_by_name(bad: Callable[[Any], Any]) -> None:
    assert_refused(
        lambda: Runner(a_model(), extractors(b=bad), "process"),
        "group 'b' is not picklable for a process ",
        "worker='thread'",
        error=ExtractorError,
    )


def test_an_input_that_is_not_picklable_is_refused() -> None:
    with (
        Runner(a_model(), extractors(), "process", max_workers=1) as runner,
        pytest.raises(ExtractorError, match="input of type lock is not picklable"),
    ):
        runner.run(threading.Lock(), 10.0)


def test_extractors_that_do_not_load_in_the_process_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def ghost(x: Float) -> Float:
        return x[:1]

    # As if typed into an interpreter: it pickles here, and is nowhere to be found there.
    ghost.__module__, ghost.__qualname__ = extracting.__name__, "ghost"
    monkeypatch.setattr(extracting, "ghost", ghost, raising=False)
    assert_refused(
        lambda: Runner(a_model(), extractors(a=ghost), "process", max_workers=1),
        "do not load in a worker process",
        error=ExtractorError,
    )


@pytest.mark.parametrize(
    ("changed", "x", "prefix", "failure"),
    [
        ({}, Unloadable(), 0, "RuntimeError: not here"),
        ({"b": unsendable}, X, 1, "values are not picklable"),
        ({"b": dying}, X, 1, "group 'b' failed: the worker process ended (exit code 3)"),
    ],
    ids=["an input that does not load", "values that are not picklable", "a process that dies"],
)
def test_what_fails_in_a_process_costs_its_group_only(changed: Any, x: Any, prefix: int, failure: str) -> None:
    with Runner(a_model(), extractors(**changed), "process", max_workers=1) as runner:
        for _ in range(2):
            answer = runner.run(x, LONG_MS)
            assert (answer.prefix, answer.reason) == (prefix, "end")
            assert failure in str(runner.last_failure)
        assert runner.run(X, LONG_MS).prediction == (1.5 if changed else FULL)


def test_a_process_that_dies_between_runs_is_replaced() -> None:
    with Runner(a_model(), {"a": process_of, "b": second, "c": third}, "process", max_workers=1) as runner:
        first_process = runner.run(X, LONG_MS, budget=1.0).prediction
        for child in multiprocessing.active_children():
            child.kill()
            child.join()
        answer = runner.run(X, LONG_MS, budget=1.0)
        assert (answer.reason, runner.failures) == ("budget", ())
        assert answer.prediction != first_process


def test_a_process_that_stays_busy_is_killed_and_replaced() -> None:
    with Runner(a_model(), extractors(b=hanging), "process", max_workers=1, patience_ms=100.0) as runner:
        (process,) = multiprocessing.active_children()
        assert runner.run(X, 1000.0).reason == "deadline"  # by which the extractor hangs
        until(lambda: process not in multiprocessing.active_children())
        assert runner.last_failure == "group 'b' failed: killed: still busy 100 ms after it was cancelled"
        assert runner.counts["b"].hung == 1
        answer = runner.run(X, LONG_MS, budget=1.0)
        assert (answer.prediction, answer.reason) == (1.5, "budget")


def test_a_run_that_finds_a_process_abandoned_uses_another() -> None:
    with Runner(a_model(), extractors(b=hanging), "process", max_workers=2, patience_ms=PATIENT_MS) as runner:
        assert runner.run(X, 20.0).reason == "deadline"
        answer = runner.run(X, LONG_MS, budget=1.0)
    assert (answer.prediction, answer.reason) == (1.5, "budget")


def test_a_large_input_does_not_hold_up_the_deadline() -> None:
    with Runner(a_model(), extractors(), "process", max_workers=1, patience_ms=PATIENT_MS) as runner:
        (process,) = multiprocessing.active_children()
        os.kill(process.pid or 0, signal.SIGSTOP)
        answer = runner.run(np.zeros(3_000_000), 1.0)
        os.kill(process.pid or 0, signal.SIGCONT)
        assert answer.reason in {"deadline", "end"}
        assert runner.run(X, LONG_MS).prediction == FULL


FORKING = """
import os, signal, sys, threading
from multiprocessing import active_children
from operator import itemgetter

import anytime
from anytime.inference.runner import Runner, _Run

MODEL, WORKER, X = anytime.load(sys.argv[1]), sys.argv[2], [1.0, 2.0, 3.0, 4.0]
EXTRACTORS = {"a": itemgetter(slice(1)), "b": itemgetter(slice(1, 2)), "c": itemgetter(slice(2, 4))}


def reasons(runner):
    return runner.run(X, 60_000).reason, runner.last_failure


def forked(child, held=()):
    \"\"\"Fork while another thread holds some locks; the child does its work and ends as any program does.\"\"\"
    holding, gone = threading.Event(), threading.Event()

    def hold():
        for lock in held:
            lock.acquire()
        holding.set()
        gone.wait()
        for lock in held:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait()
    pid = os.fork()
    if not pid:
        signal.alarm(50)
        child()
        sys.exit()
    gone.set()
    thread.join()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def forking(code: str, worker: Worker, folder: Path) -> list[str]:
    """Run a script that forks, and get what it and its children print, a line each."""
    a_model().save(folder / "toy.safetensors")
    done = subprocess.run(
        [sys.executable, "-u", "-c", FORKING + code, folder / "toy.safetensors", worker],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("worker", WORKERS)
def test_a_forked_child_uses_its_own_workers(worker: Worker, tmp_path: Path) -> None:
    code = """
with Runner(MODEL, EXTRACTORS, WORKER) as runner:
    print("before", *reasons(runner))
    ended = forked(lambda: print("child", *reasons(runner)), [runner._workers._lock])
    print("after", *reasons(runner), ended)
"""
    assert forking(code, worker, tmp_path) == ["before complete None", "child complete None", "after complete None 0"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_does_not_end_the_processes_of_its_parent(tmp_path: Path) -> None:
    code = """
with Runner(MODEL, EXTRACTORS, WORKER, max_workers=1) as runner:
    processes = active_children()
    ended = forked(runner.close), forked(lambda: None)
    for process in processes:
        process.join(1)
    print(*ended, *(process.exitcode for process in processes), runner.run(X, 60_000).reason, runner.last_failure)
"""
    assert forking(code, "process", tmp_path) == ["0 0 None complete None"]


def collected(*groups: str, goes_on: bool = True, **options: Any) -> tuple[Extraction, list[Arrival]]:
    """An extraction of some groups of X, and the list of their arrivals."""
    arrivals: list[Arrival] = []

    def receive(arrival: Arrival) -> bool:
        arrivals.append(arrival)
        return goes_on

    return Extraction([Task(group) for group in groups], X, receive, **options), arrivals


def test_waiting_for_an_extraction_continues_after_a_pause() -> None:
    free = threading.Event()

    def waiting(x: Float) -> Float:
        free.wait(LONG_MS / 1e3)
        return x[1:2]

    with Workers(extractors(b=waiting)) as workers:
        extraction, arrivals = collected("a", "b")
        workers.start(extraction)
        assert extraction.wait(time.perf_counter() + 0.02) is not None, "the time was reached"
        free.set()
        assert extraction.wait(time.perf_counter() + LONG_MS / 1e3) is None
    assert [arrival.group for arrival in arrivals] == ["a", "b"]
    assert extraction.finished


@pytest.mark.parametrize(
    ("own", "arrived", "ended"),
    [
        ({}, ["a", "b", "c"], True),
        ({"a": much}, ["a", "b", "c"], True),
        ({"b": raising}, ["a", "b", "c"], True),
        ({"b": hanging}, ["a"], False),
        ({"a": much, "b": hanging}, ["a"], False),
        ({"b": dying}, ["a", "b", "c"], True),
    ],
    ids=["quick", "large", "failing", "hanging", "large and hanging", "dying"],
)
def test_a_caller_receives_from_a_process_itself_until_its_time(
    own: dict[str, Any], arrived: list[str], ended: bool
) -> None:
    with Workers(extractors(**own), "process", max_workers=1, patience_ms=0.0) as workers:
        for _ in range(2 if ended else 1):
            extraction, arrivals = collected("a", "b", "c")
            seconds = LONG_MS / 1e3 if ended else 1.0
            extraction.read_by = time.perf_counter() + seconds
            workers.start(extraction, extraction.read_by)
            assert (extraction.wait(time.perf_counter() + (seconds if ended else 0.0)) is None) == ended
            assert [arrival.group for arrival in arrivals] == arrived
            extraction.cancel()
            until(lambda: workers._serving == {} and bool(workers._idle), "it serves the next caller")


def test_callers_at_the_same_time_share_the_processes() -> None:
    with Workers(extractors(b=briefly_slow), "process", max_workers=2) as workers, ThreadPoolExecutor(6) as threads:
        each = [collected("a", "b", "c") for _ in range(6)]
        read_by = time.perf_counter() + LONG_MS / 1e3
        started = threads.map(workers.start, [extraction for extraction, _ in each], [read_by] * 6)
        assert [extraction.wait(read_by) for extraction, _ in each] == [None] * 6
        assert list(started) == [None] * 6
        until(lambda: len(workers._idle) == 2)
    assert [[arrival.group for arrival in arrivals] for _, arrivals in each] == [["a", "b", "c"]] * 6


def test_an_interrupted_caller_leaves_a_process_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with Workers(extractors(), "process", max_workers=1) as workers:
        with monkeypatch.context() as patch:
            patch.setattr(process.ProcessWorker, "_receive", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                workers.start(collected("a")[0], time.perf_counter() + LONG_MS / 1e3)
        extraction, arrivals = collected("a", "b")
        until(lambda: bool(workers._idle))
        workers.start(extraction, time.perf_counter() + LONG_MS / 1e3)
        assert extraction.wait(time.perf_counter() + LONG_MS / 1e3) is None
    assert [(arrival.group, arrival.error) for arrival in arrivals] == [("a", None), ("b", None)]


@pytest.mark.parametrize("worker", WORKERS)
def test_a_receiver_that_needs_no_more_ends_the_extraction(worker: Worker) -> None:
    with Workers(extractors(b=hanging), worker, max_workers=1) as workers:
        extraction, arrivals = collected("a", "b", goes_on=False)
        workers.start(extraction)
        assert extraction.wait(time.perf_counter() + LONG_MS / 1e3) is None
    assert [arrival.group for arrival in arrivals] == ["a"]


def test_without_a_cost_in_time_nothing_is_refused_before_it_was_measured() -> None:
    model = AnytimeClassifier({"cost_unit": "dollars", "groups": [{"name": "a", "features": ["a0"], "cost": 1e9}]})
    model.fit(np.arange(20.0)[:, np.newaxis], np.arange(20) % 2)
    with Runner(model.model_, {"a": zero}) as runner:
        assert runner.run(0, LONG_MS).reason == "complete"


def test_several_models_share_what_is_computed() -> None:
    model = a_model()
    with Runner([model, model, a_model(moments=True)], extractors()) as runner:
        answers = runner.run(X, LONG_MS)
        assert [answer.prediction for answer in answers[:2]] == [FULL, FULL]
        assert answers[2].reason == "complete"
        assert runner.counts["a"].computed == 1
        assert [answer.prefix for answer in runner.run(X, LONG_MS, budget=1.0)] == [1, 1, 1]
    with Runner([model, a_model(moments=True)], extractors(b=raising)) as runner:
        answers = runner.run(X, LONG_MS)
    assert [(answer.groups, answer.policy) for answer in answers] == [(("a",), "prefix"), (("a", "c"), "arrived")]


@pytest.mark.parametrize("worker", WORKERS)
def test_a_group_is_given_up_at_its_time_limit_and_another_worker_computes_the_rest(worker: Worker) -> None:
    options: dict[str, Any] = {"time_limits": {"b": 50.0}, "patience_ms": 100.0, "max_workers": 2}
    with Runner(a_model(moments=True), extractors(b=hanging), worker, **options) as runner:
        answer = runner.run(X, LONG_MS)
        assert (answer.groups, answer.reason) == (("a", "c"), "end")
        assert answer.note == "group 'b' failed: still running after 50 ms, its time limit"
        assert runner.counts["b"].hung == 1
        answer = runner.run(X, LONG_MS)
        assert answer.groups == ("a", "c")
        assert "group 'b' is left out: it hung, and is tried again in" in str(answer.note)


def test_a_group_that_hangs_is_left_out_so_that_workers_stay_free() -> None:
    answers: list[Answer] = []

    def left_out() -> bool:
        time.sleep(0.45)  # longer than the deadline: what still runs for an earlier input is overdue
        answers.append(runner.run(X, 400.0))
        return answers[-1].groups == ("a", "c")

    with Runner(a_model(moments=True), extractors(b=hanging), max_workers=2) as runner:
        until(left_out)
        assert "group 'b' is left out: it has been running for" in str(answers[-1].note)
        until(lambda: left_out() and bool(runner.failures), "now it hangs")
        assert [failure.group for failure in runner.failures] == ["b"]
        assert runner._workers.count <= 2


def test_a_run_without_a_worker_says_so() -> None:
    release = threading.Event()

    def waiting(x: Float) -> Float:
        release.wait(LONG_MS / 1e3)
        return x[:1]

    with Runner(a_model(), extractors(a=waiting), max_workers=1) as runner, ThreadPoolExecutor(1) as threads:
        threads.submit(runner.run, X, LONG_MS)
        until(lambda: bool(runner._workers._serving))
        answer = runner.run(X, 10.0)
        release.set()
    assert (answer.prefix, answer.reason) == (0, "deadline")
    assert answer.note == "no worker was free: all 1 of at most 1 are busy"


def test_a_note_is_short_however_many_groups_fail() -> None:
    failing = Mock(side_effect=RuntimeError("no " + "very " * 100 + "long story"))
    note = str(ran(a_model(moments=True), dict.fromkeys("abc", failing))[0].note)
    assert len(note) == 300
    assert note.endswith("…")


def test_values_are_reused_for_a_time_and_refreshed_in_the_background() -> None:
    with Runner(a_model(), extractors(), reuse={"c": 60_000.0}) as runner:
        first_answer = runner.run(X, LONG_MS)
        assert (first_answer.prediction, first_answer.ages) == (FULL, {})
        second_answer = runner.run(X, LONG_MS)
        assert (second_answer.prediction, second_answer.reason) == (FULL, "complete")
        assert runner.counts["c"].computed == 1
        assert 0 < second_answer.ages["c"] < 60_000.0
    for reuse_ms, ages in ((1e-3, []), (60_000.0, ["c"])):
        with Runner(a_model(), extractors(), reuse={"c": reuse_ms}, times={"c": [1e6]}) as runner:
            assert runner.run(X, LONG_MS).prefix == 2, "it cannot end in time"
            until(lambda: runner.counts["c"].computed == 1, "the background computes it nevertheless")
            until(lambda: runner._reused["c"].refresh.finished)
            time.sleep(0.01)
            answer = runner.run(X, LONG_MS)
            assert (answer.prediction, list(answer.ages)) == (FULL, ages), "if too old, now known to be quick"


def test_inputs_of_any_size_and_layout_reach_a_process() -> None:
    with Runner(a_model(), {"a": total_of, "b": writing, "c": third_and_fourth}, "process", max_workers=1) as runner:
        for layout, size, scale in product(("C", "F", "strided", "dict"), (1, 1000, 200_000, 1_100_000), (1.0, 3.0)):
            flat = np.arange(4.0 * size) * scale
            x = {"F": np.asfortranarray(flat.reshape(2, -1)), "strided": flat[::2]}.get(layout, flat)
            answer = runner.run({"frame": x, "name": "x"} if layout == "dict" else x, LONG_MS)
            assert (answer.reason, runner.last_failure) == ("complete", None)
            assert answer.prediction == pytest.approx(0.5 + x.sum() + 10 * 7.0 + 100 * 1.0 + 1000 * 2.0, rel=1e-12)


def test_a_process_may_keep_its_inputs() -> None:
    """The difference of two frames needs the last one unchanged, although the parent reuses the shared memory."""
    with Runner(a_model(), {"a": keeping, "b": zero, "c": noughts}, "process", max_workers=1) as runner:
        sums = [runner.run(np.full(100_000, float(i)), LONG_MS).prediction - 0.5 for i in range(1, 5)]
    assert sums == [-1.0, 1e5, 2e5, 3e5]


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="inputs go through the pipe")
@pytest.mark.parametrize(("extractor", "memories"), [(zero, 1), (keeping, 2)])
def test_an_input_that_an_extractor_keeps_gets_new_memory_once(extractor: Callable[[Any], Any], memories: int) -> None:
    with Runner(a_model(), {"a": extractor, "b": zero, "c": shared_memory}, "process", max_workers=1) as runner:
        found = [runner.run(np.zeros(100_000), LONG_MS).prediction - 0.5 for _ in range(5)]
    counts, inodes = {round(value % 1000 / 100) for value in found}, {value // 1000 for value in found}
    assert (counts, len(inodes)) == ({1}, memories)


@pytest.mark.parametrize(
    ("arrivals", "rings"),
    [
        ([Arrival("a", [1.0])], False),
        ([Arrival("a", error="it failed")], True),
        ([Arrival("a", np.zeros(process.UNREAD // 8 + 1))], True),
        ([Arrival("a", np.zeros(process.UNREAD // 24))] * 4, True),
    ],
    ids=["values", "a failure", "much", "much in parts"],
)
def test_a_process_rings_once_at_the_end_or_as_soon_as_its_parent_must_read(
    arrivals: list[Arrival], rings: bool
) -> None:
    (ours, theirs), (listener, bell) = Pipe(), Pipe(duplex=False)
    with ours, theirs, listener, bell:
        outbox = process._Outbox(theirs, bell)
        for _ in range(2):
            for arrival in arrivals:
                outbox.add(arrival)
            assert listener.poll() == rings
            outbox.end(process.END)
            assert [listener.recv_bytes(), listener.poll()] == [b"", False]
            messages = [ours.recv_bytes() for _ in range(len(arrivals) + 1)]
            assert [pickle.loads(message)[0] for message in messages[:-1]] == ["a"] * len(arrivals)
            assert messages[-1] == process.END


def test_the_example_is_computed_in_advance() -> None:
    with Runner(a_model(), extractors(), example=X) as runner:
        assert {counts.computed for counts in runner.counts.values()} == {2}
        assert runner.run(X, LONG_MS).reason == "complete"


@pytest.mark.parametrize(
    ("changed", "options", "groups"),
    [
        *(
            (
                {"a": dying, "visit": doubled, "b": half_of_shared},
                {"workers_per_run": count, "order": ["visit", "a", "b", "c"]},
                ("b", "c"),
            )
            for count in (1, 2)
        ),
        ({"a": dying, "b": dying}, {"workers_per_run": 2}, ("c",)),
    ],
    ids=["a shared result, 1 worker", "a shared result, 2 workers", "every worker"],
)
def test_what_was_lost_with_a_process_is_computed_again(
    changed: dict[str, Any], options: dict[str, Any], groups: tuple[str, ...]
) -> None:
    """Nothing is computed from a result that was lost with a process."""
    answer, _ = ran(a_model(moments=True), extractors(**changed), "process", max_workers=2, **options)
    assert answer == replace(answer, groups=groups, reason="end", replaced=())
    assert answer.prediction == pytest.approx({("b", "c"): FULL - 1.0, ("c",): FULL - 21.0}[groups], rel=1e-3)


def test_a_group_beyond_its_limit_is_not_tried_again_at_once_although_it_ends() -> None:
    with Runner(a_model(), extractors(b=briefly_slow), time_limits={"b": 20.0}) as runner:
        for _ in range(3):
            runner.run(X, LONG_MS)
            until(lambda: not runner._workers.abandoned())
        assert runner.counts["b"].hung == 1


def test_several_models_do_not_wait_for_each_other() -> None:
    with Runner([a_model(), a_model(moments=True)], extractors(), times={"b": [1e6]}) as runner:
        answers = runner.run(X, 20_000.0)
        assert runner.counts["c"].computed == 1, "a group of another model may follow one that does not fit"
    assert [answer.reason for answer in answers] == ["deadline", "deadline"]


def test_reused_values_are_copies_of_accepted_values_of_runs_only() -> None:
    buffer, good = np.array([3.0, 4.0]), [True]

    def expensive(x: Any) -> Any:
        return buffer if good[0] else np.array([np.inf, 1.0])

    with Runner(a_model(), extractors(c=expensive), reuse={"c": 60_000.0}, example=-X) as runner:
        assert runner.run(X, LONG_MS).ages == {}, "the example is no input"
        buffer[:] = 1e6
        answer = runner.run(X, LONG_MS)
        assert (answer.prediction, list(answer.ages)) == (FULL, ["c"])
    buffer[:] = 3.0, 4.0
    with Runner(a_model(), extractors(c=expensive), reuse={"c": 60_000.0}) as runner:
        runner.run(X, LONG_MS)
        runner._reused["c"].at -= 40.0  # old enough to be refreshed, not too old
        good[0] = False
        assert runner.run(X, LONG_MS).prediction == FULL
        until(lambda: runner._reused["c"].refresh.finished and bool(runner.failures))
        assert runner.run(X, LONG_MS).prediction == FULL, "refused values do not replace accepted ones"


def test_a_refresh_computes_a_copy_of_its_input() -> None:
    seen: list[float] = []
    entered, free = threading.Event(), threading.Event()

    def waiting(x: Float) -> Float:
        entered.set()
        free.wait(LONG_MS / 1e3)
        seen.append(x[2])
        return x[2:4]

    frame = X.copy()
    with Runner(a_model(), extractors(c=waiting), reuse={"c": 60_000.0}, times={"c": [1e6]}) as runner:
        runner.run(frame, LONG_MS)
        until(entered.is_set)
        frame[:] = 0.0
        free.set()
        until(lambda: seen == [3.0])


@pytest.mark.parametrize("worker", WORKERS)
def test_a_refresh_that_hangs_is_given_up_and_counted(worker: Worker) -> None:
    with Runner(
        a_model(),
        extractors(c=hanging),
        worker,
        reuse={"c": 60_000.0},
        time_limits={"c": 50.0},
        times={"c": [1e6]},
        patience_ms=100.0,
    ) as runner:
        runner.run(X, LONG_MS)
        until(lambda: bool(runner._reused["c"].refresh.running))
        runner._schedule.measured("c", 1.0, time.perf_counter())
        time.sleep(1.1)
        until(lambda: runner.run(X, 20.0) is not None and runner.counts["c"].hung >= 1)


def test_a_runner_that_is_closed_meanwhile_returns_the_answer_that_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with Runner(a_model(), extractors(), reuse={"c": 60_000.0}) as runner:
        refresh = runner._refresh

        def closing(*given: Any) -> None:
            runner.close()
            refresh(*given)

        monkeypatch.setattr(runner, "_refresh", closing)
        assert runner.run(X, LONG_MS, budget=1.0).prediction == 1.5


def test_a_reused_group_is_not_named_as_left_out() -> None:
    with Runner(a_model(), extractors(), reuse={"c": 60_000.0}) as runner:
        runner.run(X, LONG_MS)
        runner._schedule.failed("c", "it hung", time.perf_counter(), hung=True)
        answer = runner.run(X, LONG_MS)
    assert (answer.reason, answer.note, list(answer.ages)) == ("complete", None, ["c"])


def test_an_input_that_is_not_copyable_is_not_reused_and_a_failure() -> None:
    own = {"a": zero, "b": zero, "c": noughts}
    answer, runner = ran(a_model(), own, x=threading.Lock(), reuse={"c": 60_000.0}, times={"c": [1e6]})
    assert answer.prefix == 2
    assert "its input is not copyable for reuse" in str(runner.last_failure)


def test_a_group_that_arrives_after_the_answer_is_listed_and_its_duration_counts() -> None:
    with Runner(a_model(), extractors()) as runner:
        run = _Run(runner, deadline=0.0)
        assert run.receive(Arrival("a", X[:1], 3.0))
        (answer,) = run.answers(waited=True)
        assert not run.receive(Arrival("b", X[1:2], 5.0)), "nothing more is needed"
        assert (answer.groups, answer.late_groups, run.unused) == (("a",), ("a",), ["b"])
        assert runner.counts["b"].computed == 1


# Results that are not values.

UNUSABLE: list[tuple[Callable[[Any], Any], str]] = [
    (awaiting, "its extractor is async and returned a coroutine; expected a function that returns values"),
    (streaming, "its extractor is async and returned a async_generator"),
    (forgetting, "its extractor returned None (is a return missing?); expected an array or lists of values"),
    (generating, "its extractor returned a generator; expected an array or lists of values"),
    (naming, "its extractor returned a dict; expected"),
    (unordered, "its extractor returned a set; expected"),
]


@pytest.mark.parametrize("worker", WORKERS)
def test_a_result_that_is_not_values_is_named(worker: Worker) -> None:
    for extractor, why in UNUSABLE if worker == "thread" else UNUSABLE[::2]:
        with Runner(a_model(moments=True), extractors(b=extractor), worker, max_workers=1) as runner:
            answer = runner.run(X, LONG_MS)
            assert f"group 'b' failed: {why}" in (answer.note or "")
            assert answer.groups == ("a", "c"), "the other groups count"
            assert runner.failures[-1].group == "b"


def test_a_group_without_features_may_return_anything() -> None:
    for result in (None, {"a": 1}, iter([1.0])):
        shared: dict[str, Any] = {"visit": lambda _, result=result: result, "b": lambda x, _: zero(x)}
        with Runner(a_model(), extractors(**shared)) as runner:
            assert runner.run(X, LONG_MS).complete
