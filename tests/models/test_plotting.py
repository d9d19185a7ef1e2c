"""Pictures say what they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="no pictures without matplotlib")

from anytime import plotting
from anytime.estimators import AnytimeClassifier

LEAST_SQUARES = ["explained variance (r2, training)", "cross-validated error"]
DEVIANCE = ["deviance explained (training)", "cross-validated deviance"]


@pytest.mark.parametrize(("family", "labels"), [("gaussian", LEAST_SQUARES), ("binomial", DEVIANCE)])
def test_axes_are_named_after_what_the_family_explains(
    monkeypatch: pytest.MonkeyPatch, family: Any, labels: list[str]
) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(plotting, "write_figure", lambda figure, _path: figures.append(figure))
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = X[:, 0] + np.random.default_rng(1).normal(size=60) > 0
    plotting.plot_model(AnytimeClassifier(family=family, alpha=0.1, folds=2).fit(X, y).model_, Path("m.png"))
    assert [axis.get_ylabel() for axis in figures[0].axes] == labels
