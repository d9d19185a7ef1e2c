"""The part of the report on adaptive selection: one sequence for all rows, and an order of groups for each row."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from anytime.types import Float, Index
from benchmarks.peers.adaptive_sets import SETS, AcquisitionSet, load
from benchmarks.peers.environments import Absent, prepared
from benchmarks.peers.measurements import FailedError, digits
from benchmarks.peers.problems import write_arrays
from benchmarks.peers.report import Finding, Section, Sheet, compared, drawn, missing_peers
from benchmarks.peers.solvers import Peer, Process

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


@dataclass(frozen=True, eq=False)
class Scores:
    """Results of a method on the splits of a set: AUROC and accuracy (splits, budgets), and seconds of each split."""

    auroc: Float
    accuracy: Float
    fit_s: Float
    row_s: Float
    rows_s: Float

    @staticmethod
    def joined(splits: Sequence[Scores]) -> Scores:
        """Return the splits of all."""
        return Scores(*(np.concatenate([vars(each)[name] for each in splits]) for name in vars(splits[0])))


Results = dict[str, dict[str, Scores]]
"""By set and method."""


def auroc(y: Index, likely: Float) -> float:
    """Return the area under the ROC curve; of several classes, the mean of each against the others."""
    classes = [1] if likely.shape[1] == 2 else np.unique(y).tolist()
    return float(np.mean([roc_auc_score(y == k, likely[:, k]) for k in classes]))


def measure(problem: AcquisitionSet, method: Peer, seed: int) -> Scores:
    """Fit and test a method on one split; raise `FailedError` if that fails."""
    environment, (module, call) = prepared(method.environment), method.call.split(".")
    if isinstance(environment, Absent):
        raise FailedError(environment.why)
    arrays = problem.split(seed)
    options = {"classes": int(problem.y.max()) + 1, "budgets": problem.budgets, "seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        write_arrays(Path(folder), {name: arrays[name] for name in method.arrays})
        with Process(environment, module, 1, Path(folder) / "log") as process:
            process.load(Path(folder), method.arrays)
            numbers, found = process.arrays(call, options, TIMEOUT_S)
    y, likely = arrays["yt"], found["test"]
    by_budget = [auroc(y, each) for each in likely], (likely.argmax(axis=2) == y).mean(axis=1)
    return Scores(*(np.array([value]) for value in (*by_budget, *(numbers[f"{what}_s"] for what in TIMES))))


TIMES = ("fit", "row", "rows")


def adaptive(data: Path, quick: bool) -> Section:
    """Measure, and return the section."""
    results: Results = {}
    failed = missing_peers([prepared(method.environment) for method in METHODS])
    usable = [method for method in METHODS if not isinstance(prepared(method.environment), Absent)]
    for name in list(SETS)[: 2 if quick else None]:
        try:
            problem = load(name, data, quick)
        except FailedError as error:
            failed.append(Finding("absent", f"{name}: {error}"))
            continue
        results[name] = {}
        for method in usable:
            try:
                splits = [measure(problem, method, seed) for seed in range(1 if quick else SETS[name][1])]
                results[name][method.label] = Scores.joined(splits)
            except FailedError as error:
                failed.append(Finding("absent", f"{method.label} on {name}: {error}"))
        print(f"{name}: measured", flush=True)
    return section(results, failed)


def section(results: Results, failed: Sequence[Finding]) -> Section:
    """Return the section of some results."""
    findings = [*failed, *(finding for name, of in results.items() for finding in compare_sequence(name, of))]
    sheets = [sheet for name, of in results.items() for sheet in _sheets(name, of)]
    lines = {
        name: {method: (SETS[name][0], scores.auroc.mean(axis=0)) for method, scores in of.items()}
        for name, of in results.items()
    }
    axes = {"xlabel": "groups", "ylabel": "AUROC (test)"}
    picture = drawn("AUROC on the test rows for the number of groups.", lines, 3.6, "lower right", **axes)
    peers = [prepared(name) for name in dict.fromkeys(method.environment for method in METHODS)]
    versions = tuple(peer.versions_text for peer in peers if not isinstance(peer, Absent))
    return Section(
        "One sequence or an order for each row", versions, tuple(findings), TEXT, tuple(sheets), (picture,)
    )


def compare_sequence(name: str, of: dict[str, Scores]) -> list[Finding]:
    """Compare the mean AUROC over the budgets with GDFS, and with the best peer that has one order, split by split."""
    means = {method: scores.auroc.mean(axis=1) for method, scores in of.items()}
    static = [method for method in means if method not in (SEQUENCE, ADAPTIVE)]
    others = [ADAPTIVE] if ADAPTIVE in means else []
    others += [max(static, key=lambda method: float(means[method].mean()))] if static else []
    findings = []
    for other in others if SEQUENCE in means else []:
        ours, theirs = means[SEQUENCE], means[other]
        gain, n = ours - theirs, len(ours)
        words = f"{name}, mean AUROC over the budgets: {SEQUENCE} {ours.mean():.4f}, {other} {theirs.mean():.4f}"
        if n == 1:
            findings.append(Finding("noted", words))
            continue
        error = gain.std(ddof=1) / np.sqrt(n)
        text = f"{words}, difference {gain.mean():+.4f} ± {error:.4f} over {n} splits"
        is_clear = abs(gain.mean()) > 2 * error
        findings.append(compared(text, bool(gain.mean() > 0)) if is_clear else Finding("noted", text))
    if name == "spambase":
        texts = [f"{method} {values[0]:.4f}" for method, values in means.items() if method in (SEQUENCE, ADAPTIVE)]
        published = f"{np.mean(PUBLISHED) / 100:.4f} published of GDFS"
        findings.append(Finding("noted", f"spambase, split of seed 0, mean AUROC: {', '.join([*texts, published])}"))
    return findings


def _sheets(name: str, of: dict[str, Scores]) -> list[Sheet]:
    found = []
    for measure_name in ("auroc", "accuracy"):
        rows: list[tuple[Any, ...]] = []
        for method, scores in of.items():
            values = getattr(scores, measure_name)
            cells = np.column_stack([values.mean(axis=1), values])
            spread = cells.std(axis=0, ddof=1) if len(cells) > 1 else None
            texts = [f"{mean:.4f}" for mean in cells.mean(axis=0)]
            if spread is not None:
                texts = [f"{text} ± {deviation:.4f}" for text, deviation in zip(texts, spread, strict=True)]
            rows.append((method, *texts))
        columns = ("", "mean", *(str(budget) for budget in SETS[name][0]))
        splits = max(len(scores.auroc) for scores in of.values())
        found.append(Sheet(f"{name}: {measure_name} by the number of groups, {splits} splits", columns, tuple(rows)))
    times = [
        (method, digits(scores.fit_s.mean()), *(digits(1000 * each.mean()) for each in (scores.row_s, scores.rows_s)))
        for method, scores in of.items()
    ]
    return [*found, Sheet(f"{name}: processor time", ("", "train (s)", "1 row (ms)", "1,000 rows (ms)"), tuple(times))]
