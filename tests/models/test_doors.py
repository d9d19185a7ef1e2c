"""Estimators and the command line: the same data, options and seed give the same model, for every family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anytime import AnytimeClassifier, AnytimeRegressor, load
from anytime.cli.main import main
from anytime.families import FAMILIES, family_of

ROWS = 300


def table() -> pd.DataFrame:
    """Numbers with gaps, and text with levels of all sizes."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(ROWS, 4)), columns=list("abcd"))
    frame["t"] = rng.choice([f"level {i}" for i in range(25)], ROWS)
    frame.loc[::7, "b"] = np.nan
    return frame


def target_of(family: Any, X: pd.DataFrame) -> Any:
    rng = np.random.default_rng(1)
    eta = 0.5 * X["a"].to_numpy() + 0.5 * (X["t"] < "level 14").to_numpy()
    noisy = eta + 0.5 * rng.normal(size=ROWS)
    tasks = family_of(family).tasks
    if "regression" in tasks:
        return noisy if family == "gaussian" else np.exp(noisy)
    if "binary" in tasks:
        return np.where(noisy > 0.3, "yes", "no")
    if "multiclass" in tasks:
        return np.array(["u", "v", "w"])[np.digitize(noisy, [0, 0.6])]
    return rng.poisson(np.exp(eta) * rng.gamma(3, 1 / 3, ROWS))


@pytest.mark.parametrize("options", [{}, {"basis": "auto"}, {"alpha": 0.01}], ids=str)
@pytest.mark.parametrize("family", list(FAMILIES))
def test_both_doors_lead_to_the_same_model(
    family: Any, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    X = table()
    y = target_of(family, X)
    X.assign(y=y).to_parquet("t.parquet")
    groups = {"groups": [{"name": c, "features": [c], "cost": 1.0} for c in X]}
    Path("g.json").write_text(json.dumps(groups))
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    call = ["train", "t.parquet", "--groups", "g.json", "--target", "y", "--family", family, "--out", "m.safetensors"]
    assert main([*call, *words]) == 0
    model = load("m.safetensors")
    kind: Any = AnytimeRegressor if model.manifest.classes is None else AnytimeClassifier
    estimator = kind(groups, family=family, cv=5, **options).fit(X, y)
    ours, theirs = model.manifest, estimator.model_.manifest
    assert ours.groups == theirs.groups
    assert [step.group for step in ours.steps] == [step.group for step in theirs.steps]
    assert [step.alpha for step in ours.steps] == [step.alpha for step in theirs.steps]
    np.testing.assert_allclose(model.prefixes.packed, estimator.fit_.prefixes.packed, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(model.prefixes.intercept, estimator.fit_.prefixes.intercept, rtol=1e-12)
