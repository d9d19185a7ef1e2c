"""Every parameter of estimators, public functions and runners, and every key of a groups file, has an effect."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache, partial
from io import StringIO
from pathlib import Path
from threading import Barrier, Event
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import pandas as pd
import pytest
from joblib import Parallel
from sklearn.model_selection import KFold

import anytime
from anytime import (
    AnytimeClassifier,
    AnytimeRegressor,
    FeatureGroups,
    LoadedModel,
    Prediction,
    Runner,
    calibrate,
    certify,
    evaluate,
    load,
    load_groups,
    open_table,
    resequence,
)
from anytime.cli.main import main
from anytime.data.formats import NumberStyle
from anytime.errors import AnytimeError
from anytime.evaluation.certificate import certify as certifying
from anytime.evaluation.shapes import column_shapes
from anytime.families import FAMILIES
from anytime.features.bases import BASES
from anytime.features.learning import CLAMPS
from anytime.groups import CallCost, ColumnBasis, FeatureGroup
from anytime.inference.tables import TableAnswer
from anytime.loaded import TableOptions
from anytime.model.model import Model
from anytime.moments import accumulate
from anytime.selection import methods as selection_methods
from anytime.testing import linear_model
from anytime.training.resequencing import Changes
from effects.rows import GROUPS, Elsewhere, Row, Seen, Table, cases, check, named, of_model, orders, rounded, table

RUNNER = "tests/models/inference/test_runner.py"
TRAIN, OTHERS, ORDERS = table(0, 90), table(1, 60), orders()
FEATURES = ["h", "x", "k", "t"]
X = TRAIN[FEATURES]
OF_ORDERS = ORDERS.drop(columns=["y", "c", "q"])
COSTS = {"a": 2, "b": 3, "c": 1, "e": 3}
GROUPS_OF_ORDERS = {
    name: {"features": [column for column in OF_ORDERS if column[0] == name], "cost": cost}
    for name, cost in COSTS.items()
}
IN_ORDER = {"X": OF_ORDERS, "y": ORDERS["y"], "groups": GROUPS_OF_ORDERS}
"""Rows on which other rules order the groups differently."""
PRICED = {
    **GROUPS,
    "groups": [{**group, "cost": 90.0 if group["name"] == "hour" else 1.0} for group in GROUPS["groups"]],
}
LINEAR: dict[str, Any] = {"alpha": 0.01, "basis": "linear", "min_level_rows": 10, "cv": 3, "groups": GROUPS}


def seen_of(result: Any) -> Seen:
    """Return what a result shows, by aspect."""
    if isinstance(result, AnytimeRegressor | AnytimeClassifier):
        return {**of_model(result.model_), "columns": result.n_features_in_, "family": result.model_.manifest.family}
    if isinstance(result, Model):
        return of_model(result)
    if isinstance(result, dict):
        return result
    if isinstance(result, Iterator):
        result = list(result)
        result = list(map(vars, result)) if isinstance(result[0], TableAnswer) else result
    if isinstance(result, TableAnswer):
        result = vars(result)
    return {"value": rounded(result) if isinstance(result, np.ndarray) else str(result)}


class Door(NamedTuple):
    """Something that users call.

    Attributes
    ----------
    owner : Callable[..., Any]
        What has the parameters.
    call : Callable[..., Any]
        Makes a call, given arguments by name.
    base : dict[str, Any]
        Arguments of every call.
    rows : Table
        A row for each parameter.
    """

    owner: Callable[..., Any]
    call: Callable[..., Any]
    base: dict[str, Any]
    rows: Table


def names_of(owner: Callable[..., Any]) -> set[str]:
    """Return the parameters of a callable; those of a dict of options by name."""
    found = set()
    for name, each in inspect.signature(owner).parameters.items():
        if each.kind is each.VAR_KEYWORD:
            found |= set(get_type_hints(TableOptions))
        elif name != "self":
            found.add(name)
    return found


def fitted(kind: Any, *, X: Any, y: Any, sample_weight: Any = None, query: Any = None, **options: Any) -> Any:
    return kind(**options).fit(X, y, sample_weight=sample_weight, query=query)


@cache
def regressor(alpha: float = 0.01) -> AnytimeRegressor:
    return AnytimeRegressor(**{**LINEAR, "alpha": alpha}).fit(X, TRAIN["y"])


@cache
def classifier() -> AnytimeClassifier:
    return AnytimeClassifier(**LINEAR).fit(X, TRAIN["c"])


@cache
def picky(kind: Any = AnytimeRegressor) -> Any:
    """An estimator whose policy "best" answers by a shorter prefix."""
    return kind(alpha=1e-4, basis="linear", cv=3).fit(OF_ORDERS, ORDERS["y" if kind is AnytimeRegressor else "c"])


def model(alpha: float = 0.01) -> LoadedModel:
    return regressor(alpha).model_


def other_model() -> LoadedModel:
    return model(0.5)


def picky_model(kind: Any = AnytimeRegressor) -> Any:
    return picky(kind).model_


def streamed(kind: Any, *, classes: Any = None, **given: Any) -> Any:
    """Return an estimator after two calls of `partial_fit`; the second has the given arguments."""
    first = {} if classes is None else {"classes": classes}
    y = TRAIN["y" if kind is AnytimeRegressor else "c"]
    return kind(family="gaussian", **LINEAR).partial_fit(X[:50], y[:50], **first).partial_fit(**given)


def saved(kind: Any, **given: Any) -> Seen:
    return {**of_model(of_estimator("save", kind)(**given)), "files": given["path"] * Path(given["path"]).exists()}


def of_estimator(method: str, kind: Any) -> Callable[..., Any]:
    """Return a call of a method of a fitted estimator."""

    def call(estimator: Any = None, **given: Any) -> Any:
        default = regressor() if kind is AnytimeRegressor else classifier()
        return getattr(estimator or default, method)(**given)

    return call


def constructing(kind: Any, y: str, family: Row, class_weight: Row) -> Door:
    """Return the parameters of an estimator."""
    cv, ordered = {"alpha": "cv"}, {"X": OF_ORDERS, "groups": GROUPS_OF_ORDERS, "y": ORDERS[y]}
    rows = {
        "groups": Row({"groups": PRICED}, "order"),
        "family": family,
        "method": Row({"method": "omp"}, "order", given=ordered),
        "cost_blind": Row({"cost_blind": True}, "order", given=ordered),
        "doubling": Row({"doubling": True}, "order", given=ordered | {"family": "gaussian"}),
        "alpha": Row({"alpha": 0.5}, "coefficients"),
        "cv": Row({"cv": KFold(4)}, "errors"),
        "one_se": Row({"one_se": True}, "alphas", given=cv),
        "nested": Row({"nested": True}, "errors", given=ordered),
        "epsilon": Row({"epsilon": 0.3}, "order"),
        "basis": Row({"basis": "cyclic:24"}, "terms", shows="h sine"),
        "clamp": Row({"clamp": 0.1}, "ranges"),
        "min_level_rows": Row({"min_level_rows": 5}, "terms", shows="t=d"),
        "pairs": Row({"pairs": 2}, "terms", shows=" * "),
        "class_weight": class_weight,
        "n_jobs": Row({"n_jobs": 3}, "threads"),
        "random_state": Row({"random_state": 1}, "errors"),
    }
    return Door(kind, partial(fitted, kind), {"X": X, "y": TRAIN[y], **LINEAR}, rows)


def methods(kind: Any, y: str) -> dict[str, Door]:
    """Return the methods of an estimator."""
    target, base = TRAIN[y], {"X": X}
    other = {"y": Row({"y": target[::-1].to_numpy()}, "value"), "X": Row({"X": X.assign(h=1.0, x=0.0)}, "value")}
    table = {"X": Row({"X": X[:3]}, "value")}
    best = {"estimator": partial(picky, kind), "X": OF_ORDERS}
    within = {"budget": Row({"budget": 1.0}, "value"), "policy": Row({"policy": "best"}, "value", given=best)}
    scored = within | {"policy": Row({"policy": "best"}, "value", given=best | {"y": ORDERS[y][::-1]})}
    weighted = other | {"sample_weight": Row({"sample_weight": TRAIN["w"]}, "value")}
    found: dict[str, tuple[dict[str, Any], Table]] = {
        "predict": (base, table | within | {"explain": Row({"explain": True}, "value", shows="hour")}),
        "score": (base | {"y": target}, weighted | scored),
        "staged_predict": (base, table),
        "staged_score": (base | {"y": target}, weighted),
        "get_feature_names_out": ({}, {"input_features": Row({"input_features": [*"hxkq"]}, "code", code=2)}),
    }
    if kind is AnytimeClassifier:
        found |= {"predict_proba": (base, table | within), "decision_function": (base, table | within)}
        found["staged_predict_proba"] = (base, table)
    doors = {name: Door(getattr(kind, name), of_estimator(name, kind), *each) for name, each in found.items()}
    stream = {
        "X": Row({"X": X[50:].assign(h=1.0)}, "coefficients"),
        "y": Row({"y": target[:40].to_numpy()}, "coefficients"),
        "sample_weight": Row({"sample_weight": TRAIN["w"][50:]}, "coefficients"),
        "decay": Row({"decay": 0.5}, "coefficients"),
    }
    if kind is AnytimeClassifier:
        stream["classes"] = Row({"classes": ["maybe", "no", "yes"]}, "classes", shows="maybe")
    rows = {
        "X": Row({"X": X.assign(h=1.0)}, "coefficients"),
        "y": Row({"y": target[::-1].to_numpy()}, "coefficients"),
        "sample_weight": Row({"sample_weight": TRAIN["w"]}, "coefficients"),
        "query": Row({"query": TRAIN["q"]}, "errors"),
    }
    doors["fit"] = Door(kind.fit, partial(fitted, kind, **LINEAR), {"X": X, "y": target}, rows)
    part = {"X": X[50:], "y": target[50:]}
    doors["partial_fit"] = Door(kind(family="gaussian").partial_fit, partial(streamed, kind), part, stream)
    rows = {
        "path": Row({"path": "elsewhere.safetensors"}, "files", shows="elsewhere"),
        "name": Row({"name": "another"}, "name", shows="another"),
        "keep_moments": Row({"keep_moments": False}, "moments"),
    }
    doors["save"] = Door(kind.save, partial(saved, kind), {"path": "new.safetensors"}, rows)
    path, less = f"{kind.__name__}.safetensors", f"{kind.__name__} picky.safetensors"
    doors["load"] = Door(kind.load, kind.load, {"path": path}, {"path": Row({"path": less}, "order")})
    return {f"{kind.__name__}.{name}": door for name, door in doors.items()}


def opened(model: Any = None, rows: int | None = 1) -> Prediction:
    prediction = Prediction(model or regressor().model_, rows)
    prediction.add("hour", [[12.0]] * (rows or 1))
    prediction.add("code", [[2]] * (rows or 1))
    return prediction


def answered(model: Any = None, rows: int = 1, **options: Any) -> Any:
    return opened(model, rows).answer(**options)


def added(group: str, values: Any) -> Any:
    prediction = Prediction(regressor().model_)
    prediction.add(group, values)
    return prediction.answer(policy="arrived").prediction


class Extractors:
    """Extractors of the groups a, b and c, which record the calls."""

    def __init__(self, *, meets: bool = False, waits_s: float = 0.0, fails: str = "") -> None:
        self.calls: list[str] = []
        self.barrier, self.waits_s, self.meets, self.fails = Barrier(2), waits_s, meets, fails

    def of(self, name: str) -> Callable[[float], list[float]]:
        def extract(x: float) -> list[float]:
            self.calls.append(name)
            if self.meets and name in "ab":
                self.barrier.wait(2.0)
            if name == "a":
                Event().wait(self.waits_s)
            if name == self.fails:
                raise ValueError(name)
            return [x]

        return extract


TIMED = {"a": 1.0, "b": 2.0, "c": 3.0}


def runner_model(**costs: float) -> LoadedModel:
    return linear_model({"a": [1.0], "b": [2.0], "c": [4.0]}, costs=TIMED | costs, name="runner")


def ran(
    model: Any = None,
    extractors: Any = None,
    x: float = 1.0,
    deadline_ms: float = 20_000,
    run: Any = (),
    warm_up: float | None = None,
    how: Any = (),
    **options: Any,
) -> Seen:
    """Return the answer of a runner, and the calls of its extractors."""
    recorded = Extractors(**dict(how))
    given = extractors or {name: recorded.of(name) for name in TIMED}
    with Runner(model or runner_model(), given, **options) as runner:
        if warm_up is not None:
            runner.warm_up(warm_up)
        answer = runner.run(x, deadline_ms, **dict(run))
    return {
        "value": answer.prediction,
        "groups": answer.groups,
        "note": answer.note,
        "calls": recorded.calls,
        "answer": answer,
    }


def in_runner(rows: Table, **base: Any) -> Door:
    return Door(Runner, ran, base, rows)


PICKY = {"model": picky_model, "table": OF_ORDERS}
TABLE: Table = {
    "table": Row({"table": X[:3]}, "value"),
    "budget": Row({"budget": 1.0}, "value"),
    "prefix": Row({"prefix": 1}, "value"),
    "policy": Row({"policy": "best"}, "value", given=PICKY),
    "explain": Row({"explain": True}, "value", shows="Contributions("),
}


def scoring(method: str) -> Callable[..., Any]:
    return lambda model=None, **given: getattr(model or regressor().model_, method)(**given)


def likely(model: Any = None, **given: Any) -> Any:
    return (model or classifier().model_).predict_proba(**given)


FUNCTIONS: dict[str, Door] = {
    "AnytimeRegressor": constructing(
        AnytimeRegressor,
        "y",
        Row({"family": "poisson"}, "coefficients", given={"y": TRAIN["n"]}),
        Row({"class_weight": "balanced"}, "err", code=2, shows="class weights require classes"),
    ),
    "AnytimeClassifier": constructing(
        AnytimeClassifier,
        "c",
        Row({"family": "gaussian"}, "coefficients"),
        Row({"class_weight": "balanced"}, "coefficients"),
    ),
    **methods(AnytimeRegressor, "y"),
    **methods(AnytimeClassifier, "c"),
    "calibrate": Door(
        calibrate,
        calibrate,
        {"model": model, "table": "o.csv"},
        {
            "model": Row({"model": other_model}, "calibration"),
            "table": Row({"table": "t.csv"}, "calibration"),
            "coverage": Row({"coverage": 0.5}, "calibration"),
            "drop_missing": Row({"drop_missing": True}, "code", given={"table": "gaps.csv"}),
        },
    ),
    "certify": Door(
        certify,
        certify,
        {"model": model},
        {
            "model": Row({"model": other_model}, "certificate"),
            "nodes": Row({"nodes": 1}, "certificate"),
            "seconds": Row({"seconds": 0.0}, "certificate"),
            "n_jobs": Row({"n_jobs": 3}, "threads"),
            "progress": Row({"progress": print}, "out"),
        },
    ),
    "evaluate": Door(
        evaluate,
        lambda **given: str(evaluate(**given).measures),
        {"model": model, "table": "o.csv"},
        {
            "model": Row({"model": other_model}, "value"),
            "table": Row({"table": "t.csv"}, "value"),
            "weights": Row({"weights": "w"}, "value"),
            "drop_missing": Row({"drop_missing": True}, "code", given={"table": "gaps.csv"}),
            "n_jobs": Row({"n_jobs": 3}, "threads"),
        },
    ),
    "load": Door(
        load,
        load,
        {"path": "AnytimeRegressor.safetensors"},
        {"path": Row({"path": "AnytimeClassifier.safetensors"}, "classes")},
    ),
    "load_groups": Door(load_groups, load_groups, {"source": GROUPS}, {"source": Row({"source": PRICED}, "value")}),
    "open_table": Door(
        open_table,
        lambda **given: [each.column("h") for each in open_table(**given).batches(["h"])],
        {"path": "t.csv"},
        {
            "path": Row({"path": "o.csv"}, "value"),
            "separator": Row({"separator": "~"}, "value", given={"path": "tilde.csv"}),
            "style": Row({"style": NumberStyle(decimal=",")}, "value", given={"path": "comma.csv"}),
        },
    ),
    "linear_model": Door(
        linear_model,
        lambda **given: str((linear_model(**given).predict([{"a0": 1.0}]), linear_model(**given).manifest)),
        {"coefficients": {"a": [1.0]}},
        {
            "coefficients": Row({"coefficients": {"a": [2.0]}}, "value", shows="[2.]"),
            "intercept": Row({"intercept": 7.0}, "value", shows="[8.]"),
            "costs": Row({"costs": {"a": 6.5}}, "value", shows="cost=6.5"),
            "name": Row({"name": "another"}, "value", shows="another"),
        },
    ),
    "resequence": Door(
        resequence,
        resequence,
        {"model": model},
        {
            "model": Row({"model": other_model}, "coefficients"),
            "groups": Row({"groups": load_groups(PRICED)}, "order"),
            "name": Row({"name": "another"}, "name", shows="another"),
            "data": Elsewhere("tests/models/training/test_stopping.py", "data="),
            "changes": Row({"changes": Changes(first=("town",))}, "order"),
        },
    ),
    "LoadedModel.open": Door(
        LoadedModel.open, lambda rows: answered(rows=rows).prediction, {"rows": 1}, {"rows": Row({"rows": 2}, "value")}
    ),
    **{
        f"LoadedModel.{name}": Door(getattr(LoadedModel, name), scoring(name), {"table": X}, TABLE)
        for name in ("predict", "answer", "answers")
    },
    "LoadedModel.predict_proba": Door(
        LoadedModel.predict_proba,
        likely,
        {"table": X},
        {
            **TABLE,
            "policy": Row(
                {"policy": "best"},
                "value",
                given={"model": partial(picky_model, AnytimeClassifier), "table": OF_ORDERS},
            ),
            "explain": TABLE["explain"],
        },
    ),
    "LoadedModel.what_if": Door(
        LoadedModel.what_if,
        lambda **given: model().what_if(**given),
        {"without": "town"},
        {
            "costs": Row({"costs": {"hour": 9.0}}, "value"),
            "without": Row({"without": "hour"}, "value"),
            "budgets": Row({"budgets": 3.0}, "value"),
            "data": Elsewhere("tests/models/training/test_what_if.py", "data="),
            "weights": Elsewhere("tests/models/test_doors.py", "what_if(costs"),
        },
    ),
    "LoadedModel.sharing": Door(
        LoadedModel.sharing, lambda **given: model().sharing(**given), {}, {"prefix": Row({"prefix": 1}, "value")}
    ),
    "LoadedModel.plot": Door(
        LoadedModel.plot,
        lambda **given: model().plot(**given)._repr_html_(),
        {},
        {"test": Row({"test": "o.csv"}, "value"), "weights": Row({"weights": "w"}, "value", given={"test": "o.csv"})},
    ),
    "LoadedModel.plot_shapes": Door(
        LoadedModel.plot_shapes,
        lambda **given: model().plot_shapes(**given)._repr_html_(),
        {},
        {"prefix": Row({"prefix": 1}, "value"), "top": Row({"top": 1}, "value")},
    ),
    "LoadedModel.plot_calibration": Door(
        LoadedModel.plot_calibration,
        lambda **given: model().plot_calibration(**given)._repr_html_(),
        {"test": "t.csv"},
        {"test": Row({"test": "o.csv"}, "value"), "weights": Row({"weights": "w"}, "value")},
    ),
    "Prediction": Door(
        Prediction,
        lambda **given: answered(**given).prediction,
        {},
        {"model": Row({"model": other_model}, "value"), "rows": Row({"rows": 2}, "value")},
    ),
    "Prediction.add": Door(
        Prediction.add,
        added,
        {"group": "hour", "values": [2]},
        {"group": Row({"group": "code"}, "value"), "values": Row({"values": [3]}, "value")},
    ),
    "Prediction.answer": Door(
        Prediction.answer,
        answered,
        {},
        {
            "budget": Row({"budget": 0.5}, "value"),
            "policy": Row({"policy": "arrived"}, "value"),
            "ranking": Row({"ranking": True}, "value", given={"rows": 2}, shows="ranking=["),
            "explain": Row({"explain": True}, "value", shows="Contributions("),
            "reason": Row({"reason": "deadline"}, "value", shows="'deadline'"),
            "elapsed_ms": Row({"elapsed_ms": 7.5}, "value", shows="7.5"),
            "late_groups": Row({"late_groups": ("code",)}, "value", shows="late_groups=('code',)"),
            "solve": Row({"solve": lambda *_: None}, "value", given={"policy": "arrived"}),
        },
    ),
    "Runner": in_runner(
        {
            "model": Row({"model": linear_model({"a": [7.0], "b": [2.0], "c": [4.0]})}, "value"),
            "extractors": Row({"extractors": {name: lambda x: [3 * x] for name in TIMED}}, "value"),
            "worker": Elsewhere(RUNNER, '"process", max_workers=1'),
            "max_workers": Row({"max_workers": 1}, "groups", given={"workers_per_run": 2, "how": (("meets", True),)}),
            "workers_per_run": Row({"workers_per_run": 2}, "groups", given={"how": (("meets", True),)}),
            "patience_ms": Elsewhere(RUNNER, "patience_ms"),
            "skip": Row({"skip": False}, "groups", given={"model": runner_model(b=60_000.0)}),
            "times": Row({"times": {"b": [60_000.0]}}, "groups"),
            "time_limits": Row({"time_limits": {"a": 20.0}}, "groups", given={"how": (("waits_s", 1.0),)}),
            "reuse": Elsewhere(RUNNER, "reuse="),
            "order": Row({"order": ["c", "b", "a"]}, "calls"),
            "example": Row({"example": 5.0}, "calls", given={"max_workers": 1}),
        }
    ),
    "Runner.run": Door(
        Runner.run,
        lambda x=1.0, deadline_ms=20_000, how=(), model=None, **run: ran(
            model, x=x, deadline_ms=deadline_ms, how=how, run=run
        ),
        {},
        {
            "x": Row({"x": 3.0}, "value"),
            "deadline_ms": Row({"deadline_ms": 0.0}, "groups"),
            "budget": Row({"budget": 1.0}, "groups"),
            "policy": Row({"policy": "best"}, "note"),
            "explain": Row({"explain": True}, "answer", shows="Contributions("),
        },
    ),
    "Runner.warm_up": Door(
        Runner.warm_up, lambda x=None: ran(warm_up=x, max_workers=1), {}, {"x": Row({"x": 5.0}, "calls")}
    ),
}


def test_every_parameter_has_a_row() -> None:
    assert {name: set(door.rows) for name, door in FUNCTIONS.items()} == {
        name: names_of(door.owner) for name, door in FUNCTIONS.items()
    }


def test_every_public_function_is_called() -> None:
    assert {name for name in anytime.__all__ if inspect.isfunction(getattr(anytime, name))} <= set(FUNCTIONS)
    for kind in (AnytimeRegressor, AnytimeClassifier):
        own = {
            name
            for name, each in inspect.getmembers(kind, inspect.isfunction)
            if each.__module__ == "anytime.estimators"
        }
        assert {f"{kind.__name__}.{name}" for name in own if not name.startswith("_")} <= set(FUNCTIONS)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    """A folder with tables; the numbers of threads that calls ask for."""
    threads: list[int] = []

    def jobs(number: int | None) -> int:
        threads.append(number or 0)
        return 1

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("desk"))
        TRAIN.to_csv("t.csv", index=False)
        OTHERS.to_csv("o.csv", index=False)
        TRAIN.assign(y=TRAIN["y"].mask(TRAIN.index < 4)).to_csv("gaps.csv", index=False)
        TRAIN.to_csv("tilde.csv", index=False, sep="~")
        TRAIN.to_csv("comma.csv", index=False, sep=";", decimal=",")
        for kind in (AnytimeRegressor, AnytimeClassifier):
            of_estimator("save", kind)(path=f"{kind.__name__}.safetensors")
            picky(kind).save(f"{kind.__name__} picky.safetensors")
        patch.setattr(accumulate, "effective_n_jobs", jobs)
        patch.setattr(certifying, "Parallel", lambda n_jobs, **others: Parallel(n_jobs=jobs(n_jobs), **others))
        yield threads


def called(
    call: Callable[..., Any], given: dict[str, Any], threads: list[int], capsys: pytest.CaptureFixture[str]
) -> Seen:
    """Return the result of a call; models and estimators are made when it needs them."""
    threads.clear()
    made = {
        key: value() if key in ("model", "estimator") and callable(value) else value for key, value in given.items()
    }
    try:
        seen = {"code": 0, "err": "", **seen_of(call(**made))}
    except AnytimeError as error:
        seen = {"code": 2, "err": str(error)}
    return {**seen, "threads": max(threads, default=None), "out": capsys.readouterr().out}


OF_CLASSES = {"kind": AnytimeClassifier, "y": TRAIN["c"]}
HALVES = [(np.flatnonzero(TRAIN.index % 2 == part), np.flatnonzero(TRAIN.index % 2 != part)) for part in (0, 1)]
VALUES: dict[str, Table] = {
    "method": {
        name: Row({"method": name}, "order", {"method": "fr" if name != "fr" else "omp"}, IN_ORDER)
        for name in selection_methods()
    },
    "family": {
        "gaussian": Row({"family": "gaussian"}, "coefficients", {"family": "binomial"}, OF_CLASSES),
        "binomial": Row({"family": "binomial"}, "coefficients", {"family": "gaussian"}, OF_CLASSES),
        "multinomial": Row(
            {"family": "multinomial"}, "coefficients", {"family": "gaussian"}, OF_CLASSES | {"y": TRAIN["m"]}
        ),
        "poisson": Row({"family": "poisson"}, "coefficients", given={"y": TRAIN["n"]}),
        "gamma": Row({"family": "gamma"}, "coefficients", given={"y": TRAIN["v"]}),
        "negative-binomial": Row(
            {"family": "negative-binomial:2"}, "coefficients", {"family": "negative-binomial"}, {"y": TRAIN["n"]}
        ),
    },
    "clamp": {
        "off": Row({"clamp": "off"}, "ranges", given={"basis": "hinge"}),
        "outliers": Row({"clamp": "outliers"}, "ranges"),
        "auto": Row({"clamp": "auto"}, "ranges", given={"basis": "hinge"}),
    },
    "word": {
        "alpha=cv": Row({"alpha": "cv"}, "alphas"),
        "min_level_rows=auto": Row({"min_level_rows": "auto"}, "selected"),
        "pairs=auto": Elsewhere("tests/models/training/test_pairs.py", "def test_auto_keeps_the_pairs_that_help"),
        "cv=4": Row({"cv": 4}, "errors"),
        "cv=splits": Row({"cv": HALVES}, "errors"),
        "cv=splits without some training rows": Row(
            {"cv": [(train[:20], test) for train, test in HALVES]}, "err", code=2, shows="cv trains fold 0 on 20 rows"
        ),
        "class_weight=dict": Row({"class_weight": {"no": 5.0, "yes": 1.0}}, "coefficients", given=OF_CLASSES),
    },
}


def test_every_method_family_and_clamp_has_a_row() -> None:
    assert {name: set(VALUES[name]) for name in ("method", "family", "clamp")} == {
        "method": set(selection_methods()),
        "family": set(FAMILIES),
        "clamp": set(CLAMPS),
    }


@pytest.mark.parametrize(("name", "parameter", "row"), cases({name: door.rows for name, door in FUNCTIONS.items()}))
def test_every_parameter_has_an_effect(
    name: str, parameter: str, row: Row | Elsewhere, desk: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    door = FUNCTIONS[name]
    check(row, lambda *more: called(door.call, {**door.base, **dict(more[0]), **dict(more[1])}, desk, capsys))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_call_has_the_same_result(name: str, desk: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    runs = [called(FUNCTIONS[name].call, FUNCTIONS[name].base, desk, capsys) for _ in range(3)]
    first, second = runs[1:]  # the call before them may have trained a model that is kept
    assert first["code"] == 0
    assert {**first, "answer": None} == {**second, "answer": None}  # the answer of a runner states its time


@pytest.mark.parametrize(("option", "value", "row"), cases(VALUES))
def test_every_value_has_an_effect(
    option: str, value: str, row: Row | Elsewhere, desk: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    base = {"kind": AnytimeRegressor, "X": X, "y": TRAIN["y"], **LINEAR}
    check(row, lambda *more: called(fitted, {**base, **dict(more[0]), **dict(more[1])}, desk, capsys))


DATED = {**GROUPS, "groups": [*GROUPS["groups"], {"name": "day", "features": ["d"], "cost": 5.0}]}


def with_group(of: str = "size", **changes: Any) -> dict[str, Any]:
    """Return content of a groups file with changes of a group."""
    return {"groups": [group | (changes if group["name"] == of else {}) for group in DATED["groups"]]}


def with_basis(column: str, **stated: Any) -> dict[str, Any]:
    return {"bases": {column: stated}}


CALLS = with_group(cost={"fixed": 8.0, "per_row": 1.0})
CATEGORIES: dict[str, Any] = {"basis": "categories", "levels": ["a", "b"]}
KEYS: dict[str, Row] = {
    "cost_unit": Row({"cost_unit": "s"}, "unit"),
    "rows": Row({"rows": 40}, "costs", given=CALLS),
    "groups": Row({"groups": DATED["groups"][:2]}, "terms"),
    "bases": Row({"bases": {"h": "cyclic:24"}}, "terms", shows="h sine"),
    "types": Row({"types": {"k": "text"}}, "terms", shows="k=2"),
    "pairs": Row(
        {"pairs": [[{"column": "h", "knots": [3, 9]}, {"column": "x", "knots": [0, 1]}]]}, "terms", shows="h>3 * x>0"
    ),
    "name": Row(with_group(name="extent"), "order", shows="extent"),
    "features": Row(with_group(features=["x", "z"]), "terms"),
    "cost": Row(with_group(cost=0.01), "order"),
    "requires": Row(with_group("hour", requires=["day"]), "order"),
    "fixed": Row(with_group(cost={"fixed": 1.0, "per_row": 2.0}), "costs"),
    "per_row": Row(with_group(cost={"fixed": 8.0, "per_row": 2.0}), "costs", other=CALLS),
    "basis": Row(with_basis("h", basis="poly:2"), "terms", shows="h^2"),
    "knots": Row(with_basis("h", basis="hinge", knots=[5.0]), "terms", with_basis("h", basis="hinge"), shows="h>5'"),
    "levels": Row(with_basis("t", basis="categories", levels=["d"]), "terms", shows="t=d"),
    "other": Row(with_basis("t", **CATEGORIES, other=False), "terms", with_basis("t", **CATEGORIES)),
    "level_rows": Row(with_basis("t", **CATEGORIES, level_rows=[9, 4]), "selected", with_basis("t", **CATEGORIES)),
    "points": Row(
        with_basis("k", basis="auto", levels=[1.0, 2.0], points=[2.0], point_rows=[30]),
        "selected",
        with_basis("k", basis="auto", levels=[1.0, 2.0]),
        shows="levels=30",
    ),
    "point_rows": Row(
        with_basis("k", basis="auto", levels=[1.0, 2.0], points=[2.0], point_rows=[3]),
        "selected",
        with_basis("k", basis="auto", levels=[1.0, 2.0], points=[2.0], point_rows=[50]),
        shows="levels=3",
    ),
    "line": Row(
        with_basis("h", basis="auto", range=[3.0, 9.0], line="own"),
        "selected",
        with_basis("h", basis="auto", range=[3.0, 9.0]),
    ),
    "centre": Row(with_basis("h", basis="poly:2", centre=3.0), "coefficients", with_basis("h", basis="poly:2")),
    "scale": Row(with_basis("h", basis="poly:2", scale=3.0), "coefficients", with_basis("h", basis="poly:2")),
    "range": Row(with_basis("h", range=[3.0, 9.0]), "ranges", shows="(3.0, 9.0)"),
    "missing": Row(with_basis("x", missing=False), "terms"),
    "quantiles": Row(with_basis("h", quantiles=[0.0, 1.0]), "shapes"),
    "months": Row(with_basis("d", basis="date", months=[1, 4]), "terms"),
    "weekdays": Row(with_basis("d", basis="date", weekdays=[1, 4]), "terms"),
    "hours": Row(with_basis("d", basis="date", hours=[1, 4]), "terms", shows="hour=4"),
}


def by_estimator(content: dict[str, Any]) -> Seen:
    try:
        estimator = AnytimeRegressor(**LINEAR | {"groups": content}).fit(TRAIN[[*FEATURES, "d", "z"]], TRAIN["y"])
    except AnytimeError as error:
        return {"code": 2, "err": str(error)}
    return {"code": 0, **seen_of(estimator), "shapes": str(column_shapes(estimator.model_))}


def by_command(content: dict[str, Any]) -> Seen:
    Path("g.json").write_text(json.dumps(content))
    words = "--groups g.json --target y --alpha 0.01 --folds 3 --basis linear --min-level-rows 10 --out m.safetensors"
    with redirect_stderr(StringIO()) as err, redirect_stdout(StringIO()):
        code = main(["train", "t.csv", *words.split()])
    if code:
        return {"code": code, "err": err.getvalue()}
    return {"code": 0, **of_model(load("m.safetensors")), "shapes": str(column_shapes(load("m.safetensors")))}


def test_every_key_of_a_groups_file_has_a_row() -> None:
    assert named("models/guides/groups.md", "field") <= set(KEYS)
    kinds = (FeatureGroups, FeatureGroup, CallCost, ColumnBasis)
    assert set(KEYS) == {key for kind in kinds for key in kind.model_fields}.union(*(b.parts for b in BASES.values()))


@pytest.mark.parametrize("door", [by_estimator, by_command])
@pytest.mark.parametrize("key", KEYS)
def test_every_key_of_a_groups_file_has_an_effect(key: str, door: Callable[[dict[str, Any]], Seen], desk: Any) -> None:
    check(KEYS[key], lambda *more: door({**DATED, **dict(more[0]), **dict(more[1])}))


COLUMN = {"categories": "k", "date": "d"}


@pytest.mark.parametrize("name", BASES)
def test_a_stated_basis_gives_the_same_terms_by_every_door(name: str, desk: Any) -> None:
    basis = BASES[name].example or name
    frame = TRAIN.assign(d=pd.to_datetime(TRAIN["d"]))[[COLUMN.get(name, "h")]].set_axis(["x0"], axis=1)
    y, options = TRAIN["y"], {name: LINEAR[name] for name in ("cv", "min_level_rows", "alpha")}
    frame.assign(y=y).to_parquet("one.parquet")
    array = frame.to_numpy()
    found = {
        "frame": AnytimeRegressor(basis=basis, **options).fit(frame, y).model_,
        "array": AnytimeRegressor(basis=basis, **options).fit(array, y).model_,
        "partial_fit": AnytimeRegressor(basis=basis, **options)
        .partial_fit(array[:50], y[:50])
        .partial_fit(array[50:], y[50:])
        .model_,
        "groups": AnytimeRegressor({"groups": {"one": ["x0"]}, "bases": {"x0": basis}}, **options).fit(frame, y).model_,
    }
    words = f"--target y --folds 3 --min-level-rows 10 --basis {basis} --out"
    with redirect_stderr(StringIO()), redirect_stdout(StringIO()):
        assert main(["train", "one.parquet", *words.split(), "one.safetensors", "--alpha", "0.01"]) == 0
        assert main(["moments", "one.parquet", *words.split(), "one.moments"]) == 0
        assert main(["train", "one.moments", "--alpha", "0.01", "--out", "summed.safetensors"]) == 0
    found |= {"train": load("one.safetensors"), "moments": load("summed.safetensors")}
    terms = {door: model.expansion.terms.features for door, model in found.items()}
    assert set(terms.values()) == {terms["groups"]}, terms
    assert len(terms["groups"]) > 1 or name == "linear"
