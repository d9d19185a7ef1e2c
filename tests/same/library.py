"""What the library does: every set of options on every table, by the command line and by the estimators.

Run in the environment of either commit: `python -P -m same.library INPUTS OUT PART OF MATCH`. It uses only what users
have: the command `anytime`, in this process, and the public names of `anytime`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import shlex
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
from sklearn.model_selection import KFold

import anytime
from anytime.cli import main
from same.tables import Task, tasks

BOTH = """

--basis linear
--alpha 0.01
--method omp --basis hinge:2 --alpha 0.001
--nested
--pairs auto
--family binomial
--family multinomial
--family poisson
--method omp --basis linear
--method single --basis linear
--method no-whiten --basis linear
--method cp --basis linear
--method sparse --basis linear
--method best
--method fr --cost-blind --basis linear
--method omp --cost-blind --basis linear
--method fr --doubling --basis linear
--method omp --doubling --alpha 0.1
--method cp --doubling --cost-blind --basis linear
--method sparse --basis linear --alpha 0.01
--method single --nested --basis linear
--alpha 0
--alpha 10
--alpha -1
--alpha high
--basis auto --clamp auto --min-level-rows auto
--basis hinge
--basis hinge:1
--basis hinge:7 --one-se
--basis poly:2
--basis poly:3 --alpha 0.03
--basis cyclic:24
--basis categories
--basis date
--basis spline
--basis linear --clamp 0
--basis linear --clamp outliers
--basis linear --clamp 0.05
--basis hinge:4 --clamp off
--clamp auto --alpha 0.01
--clamp off --alpha 0.01
--clamp 0.6
--folds 2 --basis linear
--folds 10 --basis linear
--folds 1
--one-se --basis linear
--one-se --nested --basis linear
--epsilon 0.1 --basis hinge:1 --alpha 0.01
--epsilon 0.5 --method omp --basis linear
--epsilon -1
--min-level-rows 2 --basis linear
--min-level-rows 20 --basis linear
--min-level-rows 1
--pairs 1 --alpha 0.01
--pairs 3 --basis linear --alpha 0.1
--pairs 0
--pairs 2 --family poisson --basis linear
--seed 1 --basis linear
--seed 12345 --basis hinge:3
--class-weight balanced --basis linear
--class-weight balanced --family gaussian --basis linear
--family gaussian
--family gamma --basis linear
--family negative-binomial:0.5 --basis linear
--family poisson --basis linear --alpha 0.01 --method omp
--family binomial --alpha 0.1 --nested --basis linear
--family multinomial --method single --one-se --basis linear
--family weibull
"""
"""Options of `anytime train` that are parameters of the estimators too, a line each; the first line has none."""

COMMAND = """
--task regression
--task binary
--task multiclass
--task count
--first {group} --basis linear
--first {group} --first {without} --method omp --alpha 0.1
--first nobody
--without {without} --alpha 0.01
--without {without} --without {group} --basis linear
--without nobody
--drop {drop} --alpha 0.01
--drop nobody
--folds 0 --alpha 0.1
--folds 0
--no-moments --basis linear
--missing-target error --basis linear
--text {drop} --alpha 0.01
--number {drop} --alpha 0.01
--text {drop} --number {drop}
--rows 1 --basis linear
--rows 100 --basis linear
--validation {held} --basis linear
--validation {held} --family poisson --alpha 0.01
--validation {train}
--calibrate {held} --basis linear
--calibrate {held} --coverage 0.5 --alpha 0.1
--calibrate {held} --coverage 1.5
--coverage 0.8
--test {new} --alpha 0.01
--test {new} --calibrate {held} --basis linear
--test nowhere.csv
--groups nowhere.json
--n-jobs 0
--n-jobs 2 --alpha 0.01
--separator ;
--decimal ,
--target nobody
--frobnicate
"""
"""Options of `anytime train` alone; names in braces are those of the table."""

ESTIMATOR: list[dict[str, Any]] = [
    {"basis": None},
    {"basis": None, "min_level_rows": 5, "alpha": 0.02},
    {"cv": 0},
    {"cv": "many"},
    {"cv": KFold(3), "basis": "linear"},
    {"random_state": None, "alpha": 0.01, "basis": "linear"},
    {"n_jobs": 2, "basis": "hinge:2"},
    {"class_weight": "uneven"},
    {"groups": None, "alpha": 0.01},
    {"groups": {"all": ["nobody"]}},
    {"method": "none"},
]
"""Parameters that the command line does not have, or not with this value."""

MAX_CLASSES = 10
"""A target of more values is not trained as classes, which would take minutes."""

DATA_LINES = 4
"""Lines of BOTH that the sets of DATA are trained with: they have more columns, and other tables have the rest."""

MODEL = """
show m.safetensors
show m.safetensors --budget 3 --budget 0
show m.safetensors --budget 3 --json
show m.safetensors --shapes
show m.safetensors --shapes --prefix 1 --json
evaluate {m} {new}
evaluate {m} {new} --budget 2 --budget 100 --json
evaluate {m} {held} --random-costs times.json --draws 50 --json
predict m.safetensors {new} --budget 2 --out p.csv
predict m.safetensors {new} --prefix 1 --keep {drop} --explain --out p.csv
predict m.safetensors {new} --policy best --proba --out p.csv
predict m.safetensors {new} --policy arrived --interval --out p.csv
predict m.safetensors {new} --prefix 99 --out p.csv
predict m.safetensors {new} --keep nobody --out p.csv
what-if m.safetensors --without {without} --json
what-if m.safetensors --cost {group}=9 --budget 4
what-if m.safetensors --data {train} --cost {group}=9 --json
what-if m.safetensors
resequence m.safetensors --cost {group}=0.5 --method omp --out r.safetensors
show r.safetensors --json
resequence m.safetensors --data {train} --cost {group}=0.5 --first {without} --alpha 0.1 --doubling --out s.safetensors
show s.safetensors --json
certify m.safetensors --json
certify m.safetensors --nodes 1
export m.safetensors --to json
export m.safetensors --to c
export m.safetensors --to xml
plot m.safetensors --out m.svg
plot m.safetensors --shapes --out m.txt
report m.safetensors --test {new} --calibrate {held} --out m.html
groups {train} {words} --out draft.yaml
groups {train} {words} --by-prefix _ --cost {group}=3 --out draft.yaml
groups {train} {words} --by-prefix _ --out other.yaml
basis {train} {targets} --groups groups.json --basis hinge:3 --out bases.json
moments {train} {words} --groups bases.json --out a.moments
moments {held} {words} --groups bases.json --out b.moments
moments a.moments b.moments --out c.moments
moments c.moments --minus b.moments --out d.moments
moments a.moments b.moments --decay 0.5 --out e.moments
moments {train} {words} --groups groups.json --basis auto --clamp 0.05 --out f.moments
train c.moments --out of_moments.safetensors
show of_moments.safetensors --json
train d.moments --method omp --alpha 0.1 --out of_moments.safetensors
show of_moments.safetensors --json
train e.moments --basis hinge --out of_moments.safetensors
compare {train} {words} --groups groups.json --alpha 0.01
compare {train} {words} --groups groups.json --test {new} --basis linear --json
compare a.moments --level 0.9 --json
show groups.json
show nowhere.safetensors
evaluate m.safetensors nowhere.csv
predict m.safetensors groups.json --out p.csv
"""
"""Commands about the model of each table, in order; what they write to p.csv, m.html and so on is recorded."""

ATTRIBUTES = ("sequence_", "alpha_", "alphas_", "costs_", "coef_", "intercept_", "curve_", "guarantee_")

POLICIES = ("prefix", "best", "arrived")

ALONE = ("", "--help", "--version", "frobnicate", "train", "costs", "costs --from nowhere.prom --model m.safetensors")
COMMANDS = (
    "groups train basis moments compare show predict evaluate report what-if plot certify demo serve export profile "
    "costs resequence reproduce"
)
READ_AFTER = (".csv", ".html", ".yaml", ".json")
"""What a command writes is recorded if it is text."""

Record = dict[str, Any]


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    match value:
        case np.ndarray():
            return plain(value.tolist())
        case np.generic():
            return value.item()
        case dict():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case None | bool() | int() | float() | str():
            return value
    if dataclasses.is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Iterator):
        return plain(list(value))
    return str(value)


def attempt(call: Callable[[], Any]) -> Record:
    """Return what a call returns or raises, and its warnings."""
    found: Record = {}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            found["value"] = plain(call())
        except Exception as error:  # what it raises is compared
            found["raised"] = f"{type(error).__name__}: {error}"
    return found | {"warnings": [f"{each.category.__name__}: {each.message}" for each in warned]}


def command(words: list[str]) -> Record:
    """Run `anytime` in this process; return its exit code, its output and the text files that it wrote."""
    out, err = io.StringIO(), io.StringIO()
    before = {path: path.stat().st_mtime_ns for path in Path().iterdir()}
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("always")
        try:
            code: Any = main(words)
        except SystemExit as error:
            code = error.code
    text = out.getvalue()
    with contextlib.suppress(ValueError):
        text = json.loads(text)
    found = {"exit": code, "out": text, "err": err.getvalue()}
    for path in sorted(Path().iterdir()):
        if path.suffix in READ_AFTER and before.get(path) != path.stat().st_mtime_ns:
            found[path.name] = cells(path) if path.suffix == ".csv" else path.read_text(encoding="utf-8")
    return found


def cells(path: Path) -> Any:
    """Return a table as its columns."""
    frame = pd.read_csv(path, keep_default_na=False)
    return {name: frame[name].tolist() for name in frame}


def options(line: str) -> dict[str, Any]:
    """Return the options of a line as parameters of an estimator."""
    names = {"folds": "cv", "seed": "random_state"}
    found: dict[str, Any] = {}
    for part in filter(None, line.split("--")):
        name, _, value = part.strip().partition(" ")
        name = name.replace("-", "_")
        found[names.get(name, name)] = number(value) if value else True
    return found


def number(text: str) -> Any:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


class Probe:
    """The cases of one table, in a folder of its own for each."""

    def __init__(self, task: Task, inputs: Path) -> None:
        self.task, self.inputs = task, inputs
        parts = {part: f"{part}{task.suffix}" for part in ("train", "held", "new")}
        self.names = {**parts, "m": "m.safetensors", "group": task.group, "without": task.without, "drop": task.drop}
        self.names |= {"words": shlex.join(task.words), "targets": shlex.join(task.words[: 2 * len(task.target)])}
        self.groups = str(inputs / task.name / "groups.json")

    def cases(self) -> Iterator[tuple[str, Callable[[], Record]]]:
        """Yield the name of each case and the call that records it."""
        both, own = [line for line in BOTH.split("\n")[1:-1] if self.fits(line)], COMMAND.split("\n")[1:-1]
        if self.task.of_data:
            both, own = both[:DATA_LINES], []
        for line in (*both, *filter(self.fits, own)):
            yield f"command/{self.task.name}/{line or 'defaults'}", partial(self.trained, line)
        for line in both:
            yield f"estimator/{self.task.name}/{line or 'defaults'}", partial(self.estimator, options(line))
        if self.task.of_data:
            return
        for given in ESTIMATOR:
            yield f"estimator/{self.task.name}/{given}", partial(self.estimator, given)
        yield f"model/{self.task.name}", self.model
        for name in ("partial_fit", "matrices", "stored", "pieces"):
            yield f"estimator/{self.task.name}/{name}", getattr(self, name)

    def fits(self, line: str) -> bool:
        """Return whether options make sense: no classes of a target that has another value in every row."""
        return "multi" not in line or self.task.classes <= MAX_CLASSES

    @contextlib.contextmanager
    def folder(self) -> Iterator[None]:
        """Work in a new folder that has the files of the table."""
        with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
            for path in (self.inputs / self.task.name).iterdir():
                os.symlink(path, path.name)
            yield

    def words(self, line: str) -> list[str]:
        return shlex.split(line.format(**self.names))

    def train(self, line: str, *more: str) -> Record:
        words = ["train", self.names["train"], "--groups", "groups.json", *self.task.words, "--out", "m.safetensors"]
        jobs = [] if "--n-jobs" in line else ["--n-jobs", "1"]
        return command([*words, *jobs, *self.words(line), *more])

    def trained(self, line: str) -> Record:
        """Train by the command line; return what it prints, and what the model is and predicts."""
        with self.folder():
            found = {"train": self.train(line)}
            if found["train"]["exit"] == 0:
                new = self.names["new"]
                found["show"] = command(["show", "m.safetensors", "--json"])
                found["evaluate"] = command(["evaluate", "m.safetensors", new, "--json"])
                found["predict"] = command(["predict", "m.safetensors", new, "--out", "p.csv"])
                found["export"] = command(["export", "m.safetensors", "--to", "json"])
            return found

    def model(self) -> Record:
        """Run every command about the model of the table, in one folder."""
        with self.folder():
            samples = {group: {"samples": [1.0, 2.0, 4.5]} for group in self.group_names}
            times = {"format": 1, "unit": "ms", "source": "anytime profile", "paired": False, "groups": samples}
            Path("times.json").write_text(json.dumps(times), encoding="utf-8")
            calibrate = "" if "weights" in self.task.roles else "--calibrate {held} "  # which accepts no weights
            found = {"train": self.train(f"{calibrate}--basis hinge:2 --alpha 0.01")}
            return found | {line: command(self.words(line)) for line in MODEL.strip().split("\n")}

    @property
    def group_names(self) -> list[str]:
        given = json.loads(Path(self.groups).read_text(encoding="utf-8"))
        return [group["name"] for group in given["groups"]]

    def rows(self, part: str) -> tuple[pd.DataFrame, Any, dict[str, Any]]:
        """Return the features, the target and what else `fit` accepts, of the rows with a target."""
        frame = self.task.read(self.inputs, part).dropna(subset=self.task.target).reset_index(drop=True)
        target = frame[self.task.target if len(self.task.target) > 1 else self.task.target[0]]
        names = {"query": "query", "weights": "sample_weight"}
        further = {names[role]: frame[column] for role, column in self.task.roles.items()}
        return frame.drop(columns=[*self.task.target, *self.task.roles.values()]), target, further

    def make(self, **given: Any) -> Any:
        kind = anytime.AnytimeClassifier if self.task.kind == "classes" else anytime.AnytimeRegressor
        return kind(**{"groups": self.groups, "n_jobs": 1, **given})

    def estimator(self, given: dict[str, Any]) -> Record:
        """Fit an estimator; return what it learned and predicts."""
        X, y, further = self.rows("train")
        np.random.seed(0)
        return attempt(lambda: self.learned(self.make(**given).fit(X, y, **further)))

    def learned(self, fitted: Any) -> Record:
        """Return all that an estimator learned, and its predictions of new rows."""
        X, y, further = self.rows("new")
        half, weights = float(fitted.costs_[-1]) / 2, further.get("sample_weight")
        found = {name: getattr(fitted, name) for name in ATTRIBUTES}
        found |= {
            "names": fitted.get_feature_names_out(),
            "predict": fitted.predict(X),
            "within": fitted.predict(X, budget=half),
            "staged": fitted.staged_predict(X),
            "score": fitted.staged_score(X, y, weights),
        }
        if self.task.kind == "classes":
            found |= {"classes": fitted.classes_, "probabilities": fitted.predict_proba(X)}
        return found

    def partial_fit(self) -> Record:
        """Learn in two parts, the second with a decay."""
        X, y, further = self.rows("train")
        half = len(X) // 2

        def learn() -> Record:
            fitted = self.make(family="gaussian", basis="hinge:2", alpha=0.01)
            classes = {"classes": sorted(set(y))} if self.task.kind == "classes" else {}
            further.pop("query", None)
            for place, rows in enumerate((slice(None, half), slice(half, None))):
                parts = {name: values[rows] for name, values in further.items()}
                fitted.partial_fit(X[rows], y[rows], **parts, **(classes if place == 0 else {}))
            return self.learned(fitted)

        return attempt(learn)

    def matrices(self) -> Record:
        """Learn from the numbers of the table as a sparse matrix, and as an array with gaps."""
        X, y, further = self.rows("train")
        frame = X.select_dtypes("number")
        forms: dict[str, Any] = {
            "sparse": scipy.sparse.csr_matrix(frame.fillna(0).to_numpy(dtype=float)),
            "array": frame.to_numpy(dtype=float),
        }
        fit = self.make(groups=None, alpha=0.01).fit
        return {
            name: attempt(lambda form=form: self.summary(fit(form, y.to_numpy(), **further), form))  # type: ignore[misc]
            for name, form in forms.items()
        }

    def summary(self, fitted: Any, X: Any) -> Record:
        return {
            "sequence": fitted.sequence_,
            "coef": fitted.coef_,
            "names": fitted.get_feature_names_out(),
            "predict": fitted.predict(X),
        }

    def stored(self) -> Record:
        """Save and load an estimator; calibrate, certify, re-sequence and evaluate its model."""
        X, y, further = self.rows("train")
        with self.folder():

            def learn() -> Record:
                fitted = self.make(alpha=0.01, basis="hinge:1").fit(X, y, **further)
                fitted.save("m.safetensors")
                model, held = anytime.load("m.safetensors"), anytime.open_table(self.names["held"])
                weights = self.task.roles.get("weights")
                return {
                    "loaded": self.learned(type(fitted).load("m.safetensors")),
                    "evaluated": anytime.evaluate(model, held, weights=weights, drop_missing=True),
                    "calibrated": attempt(
                        lambda: manifest(anytime.calibrate(model, held, drop_missing=True))["calibration"]
                    ),
                    "certified": attempt(lambda: manifest(anytime.certify(model))["certificate"]),
                    "resequenced": attempt(lambda: manifest(anytime.resequence(model))),
                }

            return attempt(learn)

    def pieces(self) -> Record:
        """Open a prediction of the model and add its groups one by one; answer after each by every policy."""
        X, y, further = self.rows("train")
        new = self.rows("new")[0].iloc[:3]

        def learn() -> list[Any]:
            model = self.make(alpha=0.01, basis="hinge:1").fit(X, y, **further).model_
            opened, found = model.open(rows=3), []
            for group in (each for each in model.groups.groups if each.features):
                values = new[list(group.features)].astype(object)
                rows = values.where(values.notna(), None).values.tolist()
                found.append(attempt(partial(opened.add, group.name, rows)))
                found += [attempt(partial(opened.answer, policy=each, explain=True)) for each in POLICIES]
            return [*found, attempt(partial(opened.answer, budget=2)), attempt(partial(opened.add, "nobody", [1]))]

        return attempt(learn)


def manifest(model: anytime.Model) -> Record:
    """Return what a model says of itself, as `anytime show --json`."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        model.save("m.safetensors")
        found: Record = command(["show", "m.safetensors", "--json"])["out"]
        return found


def alone() -> Record:
    """Return what commands print without a table."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        calls = (*map(str.split, ALONE), *([each, "--help"] for each in COMMANDS.split()))
        return {shlex.join(words): command(words) for words in calls}


def record(inputs: Path, part: int, of: int, match: str) -> Record:
    """Return the cases of one part by name, of those whose names contain a text."""
    calls = [("command/alone", alone), *(case for task in tasks(inputs) for case in Probe(task, inputs).cases())]
    chosen = [(name, call) for name, call in calls if match in name]
    return {name: call() for name, call in chosen[part::of]}


if __name__ == "__main__":
    found = record(Path(sys.argv[1]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")
