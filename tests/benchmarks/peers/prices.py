"""The part of the report on real prices: AUC against dollars on NHANES I, and what each test is worth.

`deploy/docs/gallery/nhanes.py` shows its figures; a measurement that is no quick look writes them next to it.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from anytime.estimators import AnytimeClassifier
from anytime.types import Float, Index
from benchmarks.peers.defaults import errors
from benchmarks.peers.quality import LIGHTGBM, boosted, fitted, process_of, value_at_budgets
from benchmarks.peers.quality_sets import QualitySet, load
from benchmarks.peers.report import Part, Section, Sheet, difference, drawn

GALLERY = Path(__file__).parents[3] / "deploy" / "docs" / "gallery" / "nhanes.json"
OURS = "anytime, one model"
SPLITS = 5
TRADEOFFS = tuple(float(value) for value in np.logspace(-4.5, -1.5, 13))
"""Of LightGBM: from all tests to the free ones alone."""

COMPARED = (0.0, 5.0, 10.0, 20.0, 40.0, 68.09)
"""Dollars."""

TEXT = (
    "Of each random split, ours is trained with its defaults on 5,000 persons, once for all budgets. LightGBM is "
    "trained on the same persons at each of many trade-offs between loss and prices (cegb_tradeoff), and for each "
    "budget the model is selected that has the largest area under the ROC curve (AUC) on 1,500 other persons: one "
    "model per budget. Both are tested on 3,035 further persons. Standard errors are over the splits, which share "
    "persons, so they are too small.",
    "A test is worth what it adds to the AUC: as the first one after what is free, or as the last one after all.",
)


def prices(data: Path, quick: bool) -> Section:
    """Measure, and return the section."""
    part, offered = Part("Real prices: NHANES I and Medicare", "ours", "boosting"), []
    splits = [load("nhanes", data, seed) for seed in range(2 if quick else SPLITS)]
    for problem in splits:
        ours = fitted(problem)
        assert ours.columns is not None
        offered.append({OURS: ours.points["AUC"]})
        with part.trying(LIGHTGBM), process_of(problem, "boosting", ours.columns) as process:
            offered[-1][LIGHTGBM] = boosted(problem, process, LIGHTGBM, quick, TRADEOFFS).points["AUC"]
    names = [name for name in offered[0] if all(name in each for each in offered)]
    budgets = np.unique(np.concatenate([points.costs for each in offered for points in each.values()]))
    curves = {
        name: np.array([value_at_budgets(each[name], budgets, 0.5, chosen=name != OURS)[:, 0] for each in offered])
        for name in names
    }
    tests = worth(splits)
    if LIGHTGBM in curves:
        gains = curves[OURS] - curves[LIGHTGBM]
        for dollars in COMPARED:
            at = int(np.searchsorted(budgets, dollars + 1e-6, side="right")) - 1
            text = f"{dollars:g} dollars: {OURS} {curves[OURS][:, at].mean():.4f}, less {LIGHTGBM}"
            part.findings.append(difference(text, float(gains[:, at].mean()), float(errors(gains)[at])))
    found = {name: (budgets.tolist(), values.mean(axis=0).round(4).tolist()) for name, values in curves.items()}
    if not quick:
        GALLERY.write_text(json.dumps({"curves": found, "tests": tests}, indent=1) + "\n", encoding="utf-8")
    rows = tuple((name, f"{dollars:.2f}", *(f"{a:+.4f} ± {b:.4f}" for a, b in of)) for name, dollars, *of in tests)
    columns = ("", "dollars", "as the first one", "as the last one")
    part.sheets.append(Sheet("What each test adds to the AUC", columns, rows))
    caption = "NHANES I: AUC on the test persons for what the tests cost."
    part.pictures.append(drawn(caption, {"": found}, "dollars", "AUC (test)"))
    return part.section(*TEXT)


def worth(splits: list[QualitySet]) -> list[tuple[str, float, tuple[float, float], tuple[float, float]]]:
    """Return each priced group, its cost, and the mean and standard error of what it adds as the first and the last."""
    groups = splits[0].groups
    free, priced = (np.flatnonzero(is_priced) for is_priced in (groups.costs == 0, groups.costs > 0))
    none, every = _auc(splits, free), _auc(splits, np.arange(len(groups)))
    found = []
    for g in priced.tolist():
        first, last = (
            _auc(splits, np.append(free, g)) - none,
            every - _auc(splits, np.delete(np.arange(len(groups)), g)),
        )
        of = [(float(each.mean()), float(errors(each))) for each in (first, last)]
        found.append((groups.names[g], float(groups.costs[g]), of[0], of[1]))
    return found


def _auc(splits: list[QualitySet], chosen: Index) -> Float:
    """Return the AUC of the model of some groups on each split."""
    found = []
    for problem in splits:
        groups = problem.groups.only(chosen.tolist())
        columns = np.isin(problem.groups.features, groups.features)
        model = AnytimeClassifier(groups).fit(problem.fit.X[:, columns], problem.fit.y)
        found.append(roc_auc_score(problem.test.y, model.predict_proba(problem.test.X[:, columns])[:, 1]))
    return np.array(found)
