"""Pictures say what they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("matplotlib", reason="no pictures without matplotlib")

from anytime.errors import ValuesError
from anytime.estimators import AnytimeClassifier, AnytimeRegressor
from anytime.evaluation import plots as plotting
from anytime.evaluation.certificate.certify import certify
from anytime.evaluation.shapes import column_shapes
from models.present import present

MIN_SQUARES = ["R² (training)", "cross-validated error"]
DEVIANCE = ["deviance explained (training)", "cross-validated deviance"]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are drawn, in place of their files."""
    drawn: list[Any] = []
    monkeypatch.setattr(plotting, "write_figure", lambda figure, _path: drawn.append(figure))
    return drawn


@pytest.mark.parametrize(("family", "labels"), [("gaussian", MIN_SQUARES), ("binomial", DEVIANCE)])
def test_axes_are_named_after_what_the_family_explains(figures: list[Any], family: Any, labels: list[str]) -> None:
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = X[:, 0] + np.random.default_rng(1).normal(size=60) > 0
    plotting.plot_model(AnytimeClassifier(family=family, alpha=0.1, cv=2).fit(X, y).model_, Path("m.png"))
    assert [axis.get_ylabel() for axis in figures[0].axes] == labels


@pytest.mark.parametrize(("epsilon", "sets"), [(None, "groups"), (0.3, "retained groups")])
def test_the_bound_of_a_certificate_is_drawn_over_the_curve(
    figures: list[Any], epsilon: float | None, sets: str
) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4)) + rng.normal(size=(60, 1))
    Y = X @ rng.normal(size=(4, 2)) * [1.0, 100.0] + rng.normal(size=(60, 2))
    model = AnytimeRegressor(alpha=0.1, epsilon=epsilon).fit(X, Y).model_
    plotting.plot_model(model, Path("m.png"))
    assert figures[0].axes[0].get_legend() is None
    plotting.plot_model(certify(model), Path("m.png"))
    axis = figures[1].axes[0]
    (bound,) = (line for line in axis.lines if line.get_label().startswith("no set"))
    assert bound.get_label() == f"no set of {sets} of this cost has a larger R² minus penalty (certified)"
    # Where nothing but the prefixes was certified, what a dearer one cannot exceed holds.
    assert bound.get_drawstyle() == "steps-pre"
    # The bound is on F, which includes the penalty; R² may exceed it, and so F is drawn too.
    F = np.array([0.0, *(step.explained_variance for step in model.manifest.steps)])
    (penalised,) = (line for line in axis.lines if line.get_label() == "R² minus penalty")
    np.testing.assert_allclose(penalised.get_ydata(), 2 * F / 2)
    assert (bound.get_ydata() >= F - 1e-12).all()
    assert bound.get_ydata()[-1] == pytest.approx(F[-1])
    assert axis.lines[0].get_ydata()[-1] == model.manifest.steps[-1].r2 > F[-1]
    assert bound.get_xdata().tolist() == model.costs.tolist()
    # Told apart without colour.
    assert (bound.get_linestyle(), bound.get_color()) == ("--", "0.45")
    assert axis.lines[0].get_linestyle() == "-"


def test_ticks_of_logarithmic_axes_are_numbers_and_not_formulas(tmp_path: Path) -> None:
    figure, (axis,) = plotting.blank_figure(1)
    axis.plot([1, 10, 1000], [1e-3, 1e-1, 1])
    axis.set(xscale="log", yscale="log")
    plotting.write_figure(figure, tmp_path / "logs.png")
    labels = [text.get_text() for text in (*axis.get_xticklabels(), *axis.get_yticklabels())]
    assert {"10", "100", "0.01"} <= set(labels)
    assert not any("$" in label for label in labels)


def test_long_names_of_late_steps_do_not_narrow_the_plot(figures: list[Any]) -> None:
    X = np.random.default_rng(0).normal(size=(200, 4))
    for name in ("laboratory values of the morning visit", "v"):
        groups = {"groups": [{"name": f"{name} {j}", "features": [str(j)], "cost": 1.0} for j in range(4)]}
        frame = pd.DataFrame(X, columns=list("0123"))
        plotting.plot_model(
            AnytimeRegressor(groups, alpha=0.1).fit(frame, X @ [1.0, 1.0, 1.0, 2.0]).model_, Path("m.png")
        )
    for figure in figures:
        figure.draw_without_rendering()
    long, short = (figure.axes[0].get_position().width for figure in figures)
    assert len(figures[0].axes[0].texts) == 4
    assert long == pytest.approx(short)


def shapes_figure(estimator: Any, figures: list[Any], **options: Any) -> Any:
    plotting.plot_shapes(estimator.model_, Path("m.png"), **options)
    figures[-1].draw_without_rendering()
    return figures[-1]


def test_shapes_are_lines_levels_are_bars_and_missing_values_a_mark(figures: list[Any]) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.uniform(0, 80, 200), "port": rng.choice(["Oslo", "Rome"], 200)})
    y = np.abs(frame["age"] - 40) / 20 + (frame["port"] == "Rome")
    frame.loc[::5, "age"] = np.nan
    estimator = AnytimeRegressor(basis="hinge:2", alpha=1e-6).fit(frame, y)
    figure = shapes_figure(estimator, figures)
    shapes = column_shapes(estimator.model_)
    tops = figure.axes[::2]
    assert [axis.get_title().split()[0] for axis in tops] == [shape.name for shape in shapes]
    for axis, below, shape in zip(tops, figure.axes[1::2], shapes, strict=True):
        if shape.name == "age":
            line, mark = axis.lines[1], axis.lines[-2]
            assert line.get_xydata().tolist() == [[point.x, point.contribution] for point in shape.points]
            assert (mark.get_marker(), mark.get_ydata().tolist()) == ("D", [present(shape.missing).contribution])
            assert below.get_xticklabels()[-1].get_text() == "missing"
        else:
            assert [bar.get_height() for bar in axis.patches] == [level.contribution for level in shape.levels]
            assert [bar.get_height() for bar in below.patches] == [level.share for level in shape.levels]
            assert [label.get_text() for label in below.get_xticklabels()] == [str(e.level) for e in shape.levels]


def test_the_strongest_columns_are_drawn_and_each_class_has_its_line(figures: list[Any]) -> None:
    X = np.random.default_rng(0).normal(size=(300, 15))
    y = np.digitize(X @ np.arange(15.0), [-10.0, 10.0])
    estimator = AnytimeClassifier(alpha=0.01).fit(X, np.array(["a", "b", "c"])[y])
    titles = [shape.name for shape in column_shapes(estimator.model_)]
    for top, count in ((None, 12), (2, 2), (100, 15)):
        figure = shapes_figure(estimator, figures, **({} if top is None else {"top": top}))
        assert [axis.get_title().split()[0] for axis in figure.axes[::2]] == titles[:count]
    first = shapes_figure(estimator, figures, prefix=1).axes[0]
    assert [text.get_text() for text in first.get_legend().get_texts()] == ["a", "b", "c"]
    styles = {(line.get_linestyle(), line._unscaled_dash_pattern) for line in first.lines[1:]}
    assert len(styles) == 3, "distinguishable without colour"
    with pytest.raises(ValuesError, match="prefix 0 of model 'model' has no columns"):
        shapes_figure(estimator, figures, prefix=0)
