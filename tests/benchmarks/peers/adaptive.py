"""The part of the report on adaptive selection: one sequence for all rows, and an order of groups for each row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import t
from sklearn.metrics import roc_auc_score

from anytime.types import Float, Index
from benchmarks.peers import quality
from benchmarks.peers.environments import installed
from benchmarks.peers.report import Finding, Part, Section, Sheet, difference, digits, drawn
from benchmarks.peers.solvers import Peer, loaded

SEQUENCE, ADAPTIVE = "ours: one sequence, defaults", "GDFS: an order for each row"
ARRAYS = ("X", "y", "Xv", "yv", "Xt", "sizes", "costs")

METHODS = (
    Peer(SEQUENCE, "ours", "acquisition.sequence", ARRAYS),
    Peer("network, by permutation importance", "ours", "acquisition.permutation", ARRAYS),
    Peer("LightGBM, by its gains", "boosting", "acquisition.lightgbm", ARRAYS),
    Peer("EBM, by its term importances", "ebm", "acquisition.ebm", ARRAYS),
    Peer(ADAPTIVE, "gdfs", "gdfs.gdfs", ARRAYS),
)

PUBLISHED = (82.74, 88.83, 92.62, 95.25, 95.76, 96.27, 96.36, 96.61, 96.66, 96.92)
"""AUROC in percent that GDFS's authors print for 1 to 10 features of spambase, on the split of seed 0."""

TIMEOUT_S = 3600.0

TEXT = (
    "The protocol of AFABench (arXiv 2508.14734), from its description: 60 % of the rows to fit on, 20 % to validate, "
    "20 % to test, each group costs 1, and a budget is a number of groups. Columns are standardised, and a missing "
    "value is the mean, for every method. Ours has its defaults and uses the rows to fit on alone. The network, "
    "LightGBM and the EBM order the groups once, by importances in a model of all columns, and fit one predictor for "
    "each budget; GDFS (Covert et al. 2023), from the paper, is one policy and one predictor for all budgets, and "
    "selects the next group of a row by the values of that row. LightGBM and GDFS stop by the rows to validate; the "
    "network and the EBM hold out some of both parts.",
    "A fixed sequence computes the same groups for every row. Where the informative columns differ from row to row, it "
    "needs the columns of all rows: the CUBE is made so (three of 20 columns decide, and which three depends on the "
    "class), and an order for each row must win there.",
    "Means and standard deviations over the splits; times are processor seconds on one core, of all that is fitted for "
    "all budgets (with compilation), and milliseconds of predicting 1 row and 1,000 rows at the largest budget.",
)


MAX_ROWS, QUICK_ROWS = 20_000, 1_000
"""Of a set, at random; the second for a quick look."""

Rows = tuple[Float, Index, Index]
"""Columns (n, D), classes (n,), and the sizes of the groups, which are consecutive columns."""


@dataclass(frozen=True, eq=False)
class AcquisitionSet:
    """A data set of classes, whose groups cost 1 each.

    Attributes
    ----------
    X, y : (n, D), NaN where missing, and (n,), from 0.
    sizes : (J,) of the groups, which are consecutive columns.
    budgets : numbers of groups.
    """

    X: Float
    y: Index
    sizes: Index
    budgets: tuple[int, ...]

    def split(self, seed: int) -> dict[str, NDArray[Any]]:
        """Return the rows to fit on (`X`, `y`), to validate (`Xv`, `yv`) and to test (`Xt`, `yt`), sizes and costs.

        Columns are standardised by the rows to fit on, and a missing value is their mean, for every method.
        """
        fifth = len(self.y) // 5
        test, validate, fit = np.split(np.random.default_rng(seed).permutation(len(self.y)), [fifth, 2 * fifth])
        mean, deviation = np.nanmean(self.X[fit], axis=0), np.nanstd(self.X[fit], axis=0)
        X = np.nan_to_num((self.X - mean) / np.where(deviation > 0, deviation, 1.0))
        parts = {"": fit, "v": validate, "t": test}
        arrays = {name + part: of[rows] for part, rows in parts.items() for name, of in (("X", X), ("y", self.y))}
        return arrays | {"sizes": self.sizes, "costs": np.ones(len(self.sizes))}


def cube(rows: int) -> Rows:
    """Return the CUBE: three columns that differ by class are the bits of the class, and the other 17 are noise.

    Columns l, l + 1 and l + 2 of class l are its bits, lowest first, plus N(0, .1); all others are N(.5, .3).
    """
    rng = np.random.default_rng(0)
    y, X = rng.integers(8, size=rows), rng.normal(0.5, 0.3, (rows, 20))
    for bit in range(3):
        X[np.arange(rows), y + bit] = (y >> bit & 1) + rng.normal(0.0, 0.1, rows)
    return X, y, np.ones(20, dtype=np.intp)


def _spambase(data: Path) -> Rows:
    """Return the rows in the order before GDFS's split, which is that of seed 0."""
    parts = [pd.read_parquet(data / "spambase" / f"{part}.parquet") for part in ("test", "validation", "train")]
    table = np.concatenate([part.to_numpy(dtype=np.float64) for part in parts])
    rows = table[np.argsort(np.random.default_rng(0).permutation(len(table)))]
    return rows[:, :-1], rows[:, -1].astype(np.intp), np.ones(rows.shape[1] - 1, dtype=np.intp)


def _bank(_: Path) -> Rows:
    """Return UCI's bank marketing, which empulse ships; levels of a text are the columns of its group."""
    [packages] = installed("bank").python.parents[1].glob("lib/python*/site-packages")
    table = pd.read_csv(packages / "empulse" / "datasets" / "data" / "bankmarketing.csv.gz", sep=";").sample(
        MAX_ROWS, random_state=0
    )
    target = table.pop("y") == "yes"
    blocks = [pd.get_dummies(table[[name]]).to_numpy(dtype=np.float64) for name in table]
    return np.hstack(blocks), target.to_numpy(dtype=np.intp), np.array([block.shape[1] for block in blocks])


def _known(data: Path, name: str) -> Rows:
    """Return the rows of a set of the comparison of quality; of KDD Cup 1999 those of the same days."""
    found = quality.load(name, data)
    whole = found.fit.joined(found.choose)
    if name != "kddcup99":
        whole = whole.joined(found.test)
    sizes = np.array([len(group.features) for group in found.groups.groups if group.features])
    return whole.X, whole.y.astype(np.intp), sizes


SETS: dict[str, tuple[tuple[int, ...], int, Callable[[Path], Rows]]] = {
    "spambase": (tuple(range(1, 11)), 6, _spambase),
    "cube": ((3, 5, 10), 5, lambda _: cube(MAX_ROWS)),
    "bank": ((2, 4, 7), 5, _bank),
    "kddcup99": ((2, 4, 7), 5, partial(_known, name="kddcup99")),
    "mfeat": ((1, 2, 3), 5, partial(_known, name="mfeat")),
    "heart_cleveland": ((2, 4, 7), 5, partial(_known, name="heart_cleveland")),
}
"""The budgets of each, the number of its splits, and how it is read; the first two for a quick look."""


def load(name: str, data: Path, quick: bool) -> AcquisitionSet:
    """Load a data set; raise `FailedError` if its package is not installed."""
    budgets, _, read = SETS[name]
    X, y, sizes = read(data)
    most = QUICK_ROWS if quick else MAX_ROWS
    rows = np.random.default_rng(0).permutation(len(y))[:most] if len(y) > most else slice(None)
    return AcquisitionSet(X[rows], y[rows], sizes, budgets)


class Scores(NamedTuple):
    """Results of a method on splits of a set: AUROC and accuracy (splits, budgets), and processor seconds (splits,)."""

    auroc: Float
    accuracy: Float
    fit_s: Float
    row_s: Float
    rows_s: Float


Results = dict[str, dict[str, Scores]]
"""By set and method."""


def auroc(y: Index, likely: Float) -> float:
    """Return the area under the ROC curve; of several classes, the mean of each against the others."""
    classes = [1] if likely.shape[1] == 2 else np.unique(y).tolist()
    return float(np.mean([roc_auc_score(y == k, likely[:, k]) for k in classes]))


def measure(problem: AcquisitionSet, method: Peer, seed: int) -> Scores:
    """Fit and test a method on one split; raise `FailedError` if that fails."""
    arrays, (module, call) = problem.split(seed), method.call.split(".")
    options = {"classes": int(problem.y.max()) + 1, "budgets": problem.budgets, "seed": seed}
    with loaded(method.environment, module, {name: arrays[name] for name in method.arrays}) as process:
        numbers, found = process.arrays(call, options, TIMEOUT_S)
    y, likely = arrays["yt"], found["test"]
    areas, hits = [auroc(y, each) for each in likely], (likely.argmax(axis=2) == y).mean(axis=1)
    return Scores(*(np.array([value]) for value in (areas, hits, *(numbers[name] for name in Scores._fields[2:]))))


def adaptive(data: Path, quick: bool) -> Section:
    """Measure, and return the section."""
    peers = dict.fromkeys([*(method.environment for method in METHODS), *([] if quick else ["bank"])])
    part, results = Part("One sequence or an order for each row", *peers), Results()
    for name in list(SETS)[: 2 if quick else None]:
        with part.trying(name):
            problem, of = load(name, data, quick), dict[str, Scores]()
            for method in METHODS:
                with part.trying(f"{method.label} on {name}"):
                    splits = [measure(problem, method, seed) for seed in range(1 if quick else SETS[name][1])]
                    of[method.label] = Scores(*map(np.concatenate, zip(*splits, strict=True)))
            if SEQUENCE in of:
                results[name] = of
            print(f"{name}: measured", flush=True)
    return section(results, part)


def section(results: Results, part: Part) -> Section:
    """Return the section of some results."""
    for name, of in results.items():
        part.findings += compare_sequence(name, of)
        part.sheets += _sheets(name, of)
    lines = {
        name: {method: (SETS[name][0], scores.auroc.mean(axis=0)) for method, scores in of.items()}
        for name, of in results.items()
    }
    part.pictures.append(drawn("AUROC on the test rows for the number of groups.", lines, "groups", "AUROC (test)"))
    return part.section(*TEXT)


def compare_sequence(name: str, of: dict[str, Scores]) -> list[Finding]:
    """Compare the mean AUROC over the budgets with GDFS, and with the best peer that has one order, split by split.

    A difference beyond the 95 % quantile of Student's t counts as ahead or behind.
    """
    means = {method: scores.auroc.mean(axis=1) for method, scores in of.items()}
    ours, findings = means.pop(SEQUENCE), []
    static = [method for method in means if method != ADAPTIVE]
    for other in [*sorted(static, key=lambda method: -means[method].mean())[:1], *means.keys() & {ADAPTIVE}]:
        gain, n = ours - means[other], len(ours)
        words = f"{name}, mean AUROC over the budgets: {SEQUENCE} {ours.mean():.4f}, {other} {means[other].mean():.4f}"
        error = float(gain.std(ddof=1) / np.sqrt(n)) if n > 1 else np.inf
        text = f"{words}; over {n} splits, difference"
        findings.append(difference(text, float(gain.mean()), error, float(t.ppf(0.975, max(n - 1, 1)))))
    if name == "spambase" and len(ours) > 1:
        published = f"GDFS as published {np.mean(PUBLISHED) / 100:.4f}"
        findings.append(Finding("noted", f"spambase, the split of seed 0: {SEQUENCE} {ours[0]:.4f}, {published}"))
    return findings


def _sheets(name: str, of: dict[str, Scores]) -> list[Sheet]:
    found, budgets = [], SETS[name][0]
    for measured in ("auroc", "accuracy"):
        rows = []
        for method, scores in of.items():
            values = np.column_stack([getattr(scores, measured).mean(axis=1), getattr(scores, measured)])
            texts = [f"{mean:.3f}" for mean in values.mean(axis=0)]
            if len(values) > 1:
                deviations = values.std(axis=0, ddof=1)
                texts = [f"{text} ± {deviation:.3f}" for text, deviation in zip(texts, deviations, strict=True)]
            rows.append((method, *texts))
        caption = f"{name}: {measured} by the number of groups, {len(of[SEQUENCE].fit_s)} splits"
        found.append(Sheet(caption, ("", "mean", *map(str, budgets)), tuple(rows)))
    times = [
        (method, *(digits(value.mean()) for value in (each.fit_s, 1e3 * each.row_s, 1e3 * each.rows_s)))
        for method, each in of.items()
    ]
    columns = ("", "train (s)", "predict 1 row (ms)", "1,000 rows (ms)")
    return [*found, Sheet(f"{name}: processor time", columns, tuple(times))]
