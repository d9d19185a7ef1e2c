"""Pictures say what they show, and show what the page does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("matplotlib", reason="no pictures without matplotlib")

from matplotlib.figure import Figure
from matplotlib.text import Text

from anytime.errors import ValuesError
from anytime.estimators import AnytimeClassifier, AnytimeRegressor
from anytime.evaluation.certificate.certify import certify
from anytime.evaluation.plots import plot_model, plot_shapes
from anytime.evaluation.shapes import column_shapes
from models.present import present


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are drawn, in place of their files."""
    drawn: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    return drawn


def lines_of(axis: Any) -> dict[str, Any]:
    """The lines of an axis by their labels."""
    return {line.get_label(): line for line in axis.lines}


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_the_curve_is_that_of_the_family_with_a_stair_for_each_table(figures: list[Any], family: Any) -> None:
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = X[:, 0] + np.random.default_rng(1).normal(size=60) > 0
    model = AnytimeClassifier(family=family, alpha=0.1, cv=2).fit(X, y).model_
    plot_model(model, Path("m.png"))
    (axis,) = figures[0].axes
    assert ("deviance" in axis.get_ylabel().lower()) == (family == "binomial")
    assert axis.get_xlabel() == "cost of the groups used (units)"
    lines = lines_of(axis)
    assert {"training", "cross-validated"} <= lines.keys()
    assert lines["training"].get_ydata().tolist() == [model.expected(k).r2 for k in range(model.steps + 1)]
    assert lines["training"].get_drawstyle() == "steps-post"
    # A name on the right of a step stands below its lines.
    assert axis.texts[0].xy == (1.0, min(lines[name].get_ydata()[1] for name in ("training", "cross-validated")))


@pytest.mark.parametrize("epsilon", [None, 0.3])
def test_the_bound_of_a_certificate_is_drawn_over_the_curve(figures: list[Any], epsilon: float | None) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4)) + rng.normal(size=(60, 1))
    Y = X @ rng.normal(size=(4, 2)) * [1.0, 100.0] + rng.normal(size=(60, 2))
    model = AnytimeRegressor(alpha=0.1, epsilon=epsilon).fit(X, Y).model_
    certified = certify(model)
    plot_model(model, Path("m.png"))
    plot_model(certified, Path("m.png"))
    without, lines = (lines_of(figure.axes[0]) for figure in figures)
    assert lines.keys() - without.keys() == {"training, minus the penalty", "best possible, certified"}
    bound, penalised = lines["best possible, certified"], lines["training, minus the penalty"]
    # Where nothing but the prefixes was certified, what a dearer one cannot exceed holds.
    assert bound.get_drawstyle() == "steps-pre"
    # The bound is on F, which includes the penalty; R² may exceed it, and so F is drawn too.
    F = np.array([0.0, *(step.explained_variance for step in model.manifest.steps)])
    np.testing.assert_allclose(penalised.get_ydata(), 2 * F / 2)
    assert (bound.get_ydata() >= F - 1e-12).all()
    assert bound.get_ydata()[-1] == pytest.approx(F[-1])
    assert lines["training"].get_ydata()[-1] == model.manifest.steps[-1].r2 > F[-1]
    assert bound.get_xdata().tolist() == model.costs.tolist()
    looks = {
        (line.get_linestyle(), line._unscaled_dash_pattern) for line in lines.values() if line.get_marker() == "None"
    }
    assert len(looks) == sum(line.get_marker() == "None" for line in lines.values()), "distinct without colour"


def test_long_names_do_not_narrow_the_plot_and_no_name_is_a_formula(figures: list[Any]) -> None:
    X = np.random.default_rng(0).normal(size=(200, 4))
    for name in ("laboratory values of the morning visit", "$v$"):
        groups = {"groups": [{"name": f"{name} {j}", "features": [str(j)], "cost": 1.0} for j in range(4)]}
        frame = pd.DataFrame(X, columns=list("0123"))
        plot_model(AnytimeRegressor(groups, alpha=0.1).fit(frame, X @ [1.0, 1.0, 1.0, 2.0]).model_, Path("m.png"))
    for figure in figures:
        figure.draw_without_rendering()
        assert not any(text.get_parse_math() for text in figure.findobj(Text) if text.get_text())
    long, short = (figure.axes[0].get_position().width for figure in figures)
    assert {text.get_text() for text in figures[1].axes[0].texts} == {f"$v$ {j}" for j in range(4)}
    assert long == pytest.approx(short)


def shapes_figure(estimator: Any, figures: list[Any], **options: Any) -> Any:
    plot_shapes(estimator.model_, Path("m.png"), **options)
    figures[-1].draw_without_rendering()
    return figures[-1]


def test_shapes_are_lines_levels_are_bars_and_missing_values_a_dashed_line(figures: list[Any]) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.uniform(0, 80, 200), "port": rng.choice(["Oslo", "Rome"], 200)})
    frame["dose"] = rng.choice([4.2, 4.6000000000000005, 80.0], 200)
    y = np.abs(frame["age"] - 40) / 20 + (frame["port"] == "Rome")
    frame.loc[::5, "age"] = np.nan
    estimator = AnytimeRegressor(basis="hinge:2", alpha=1e-6).fit(frame, y)
    shapes = {shape.name: shape for shape in column_shapes(estimator.model_)}
    for axis in shapes_figure(estimator, figures).axes:
        shape = shapes[axis.get_title().split(",")[0]]
        if shape.name == "age":
            line, missing = axis.lines
            inner = np.isin(line.get_xdata(), [point.x for point in shape.points])
            assert inner.sum() == 2, "the corners between the quantiles"
            assert missing.get_ydata().tolist() == [present(shape.missing).contribution] * 2
        else:
            bars = [bar.get_height() for bar in axis.containers[-1]]
            short = {"4.6000000000000005": "4.6", "80.0": "80"}  # in single precision
            heights = {short.get(str(each.level), str(each.level)): each.contribution for each in shape.levels}
            assert dict(zip((label.get_text() for label in axis.get_xticklabels()), bars, strict=True)) == heights


def test_the_strongest_columns_are_drawn_and_each_class_has_its_line(figures: list[Any]) -> None:
    X = np.random.default_rng(0).normal(size=(100, 13))
    y = np.digitize(X @ np.arange(13.0), [-10.0, 10.0])
    estimator = AnytimeClassifier(alpha=0.01, basis="linear").fit(X, np.array(["a", "b", "c"])[y])
    titles = [shape.name for shape in column_shapes(estimator.model_)]
    for top, count in ((None, 12), (2, 2), (100, 13)):
        figure = shapes_figure(estimator, figures, **({} if top is None else {"top": top}))
        assert [axis.get_title().split(",")[0] for axis in figure.axes] == titles[:count]
    first = shapes_figure(estimator, figures, prefix=1).axes[0]
    assert [text.get_text() for text in first.get_legend().get_texts()] == ["a", "b", "c"]
    styles = {(line.get_linestyle(), line._unscaled_dash_pattern) for line in first.lines}
    assert len(styles) == 3, "distinguishable without colour"
    with pytest.raises(ValuesError, match="prefix 0 of model 'model' has no columns"):
        shapes_figure(estimator, figures, prefix=0)
