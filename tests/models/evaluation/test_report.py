"""The report of a model: one page, complete in itself, whose numbers are those of the commands."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anytime import AnytimeClassifier, AnytimeError, AnytimeRegressor, ValuesError, evaluate, open_table
from anytime.evaluation.page.charts import Chart, bar_rows, ticks
from anytime.evaluation.report import measured_on, report
from anytime.inference.subsets import arrived_model
from models.present import present
from models.refusals import assert_refused

GROUPS: dict[str, Any] = {
    "cost_unit": "ms",
    "groups": [
        {"name": "a <b>&", "features": ["x0", "x1"], "cost": 4.0},
        {"name": "visit", "features": [], "cost": 1.0},
        {"name": "b", "features": ["x2"], "cost": 0.5, "requires": ["visit"]},
        {"name": "c", "features": ["city"], "cost": 2.0},
    ],
}
KINDS = ("gaussian", "responses", "poisson", "binomial", "multinomial", "squares")
VOID = {"meta", "br", "path", "circle", "rect"}


class Page(HTMLParser):
    """What a page holds; raises if an element is not closed, or anything could be loaded or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.headings: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "img", "iframe", "link", "b")
        assert not {name for name, _ in attrs} & {"src", "href", "onclick", "onload"}
        if tag not in VOID or tag in ("circle", "rect"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        assert tag in ("path",)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self._open and self._open[-1] == "h2":
            self.headings.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


FEATURES = ["x0", "x1", "x2", "city"]


def rows(count: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(count, 3)), columns=["x0", "x1", "x2"])
    frame["city"] = rng.choice(["Oslo", "Rome <i>", "Lima"], count)
    frame.loc[rng.random(count) < 0.1, "x1"] = np.nan
    signal = frame["x0"] + frame["x2"] ** 2 + (frame["city"] == "Oslo")
    frame["gaussian"] = signal + rng.normal(size=count)
    frame["second"] = rng.normal(size=count)
    frame["poisson"] = rng.poisson(np.exp(signal / 4))
    frame["binomial"] = frame["squares"] = np.where(signal + rng.logistic(size=count) > 1, "yes", "no <i>")
    frame["multinomial"] = np.digitize(frame["gaussian"], [0, 2])
    return frame


def trained(kind: str) -> Any:
    frame = rows(300, 0)
    X = frame[FEATURES]
    options: dict[str, Any] = {"alpha": 1e-3, "basis": "hinge:2", "cv": 3, "nested": True}
    if kind == "responses":
        return AnytimeRegressor(GROUPS, **options).fit(X, frame[["gaussian", "second"]])
    made: Any = AnytimeRegressor if kind in ("gaussian", "poisson") else AnytimeClassifier
    return made(GROUPS, family="gaussian" if kind == "squares" else kind, **options).fit(X, frame[kind])


@pytest.fixture(scope="module", params=KINDS)
def estimator(request: pytest.FixtureRequest) -> Any:
    return trained(request.param)


@pytest.fixture(scope="module")
def gaussian() -> Any:
    return trained("gaussian")


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Any, Any]:
    for name, seed in (("test", 1), ("calibration", 2)):
        rows(200, seed).to_parquet(tmp_path / f"{name}.parquet")
    return open_table(tmp_path / "test.parquet"), open_table(tmp_path / "calibration.parquet")


def test_a_page_is_complete_and_loads_nothing(estimator: Any, tables: tuple[Any, Any]) -> None:
    model = estimator.model_
    text = report(model, *tables)
    page = Page(text)
    expected = ["Quality by cost", "Warnings", "Budgets", "Steps", "Groups", "Shapes"]
    classes = model.manifest.classes
    expected += ["Reliability", *(["Confusion", "Ranking"] if classes else []), "Intervals", "Data", "Provenance"]
    said = {0: "mean prediction of", 2: f"predicted probability of {(classes or ['', ''])[1]}"}
    assert said.get(len(classes or ()), "predicted probability of the most likely class") in page.text
    assert page.headings == expected
    # Moments tell what a set of groups explains; a likelihood has a lower bound.
    assert ("if the others are refitted" in page.text) is (model.moments is not None)
    assert "http" not in text
    assert "nan" not in re.findall(r"[a-z]+", page.text.lower())
    assert all(words in page.text for words in ("a <b>&", "for a coverage of 90 %"))
    assert page.text.count("Rome <i>") >= 2
    assert len(text) < 300_000


def test_a_page_without_tables_says_how_to_get_what_is_missing(estimator: Any) -> None:
    page = Page(report(estimator.model_))
    text = page.text.replace(" , ", ", ").replace("  ", " ")
    assert all(words in text for words in ("Give --test TABLE", "anytime report --calibrate TABLE", "--test TABLE"))
    assert "Confusion" not in page.headings


def test_its_numbers_are_those_of_evaluate_and_of_the_optimum_without_a_group(
    gaussian: Any, tables: tuple[Any, Any]
) -> None:
    model = gaussian.model_
    found = evaluate(model, tables[0])
    all_r2 = model.expected(model.steps).r2
    every = frozenset(model.needed[-1])
    losses = [all_r2 - arrived_model(model, every - {name}).expected.r2 for name in every]
    page = Page(report(model, tables[0])).text
    for value in (*map("{:.4g}".format, (*present(found.r2), *found.mse, all_r2)), *map("{:.4f}".format, losses)):
        assert value in page


def test_standard_errors_are_those_of_the_rows(gaussian: Any, tables: tuple[Any, Any]) -> None:
    frame = rows(200, 1)
    losses = np.square(gaussian.predict(frame[FEATURES]) - frame["gaussian"])
    error = losses.std(ddof=1) / np.sqrt(len(frame)) / frame["gaussian"].var(ddof=0)
    assert present(measured_on(gaussian.model_, tables[0]).errors)[-1] == pytest.approx(error)


def test_pictures_of_a_model_are_the_parts_of_its_report(
    estimator: Any, tables: tuple[Any, Any], tmp_path: Path
) -> None:
    model, frame = estimator.model_, rows(200, 1)
    whole = report(model, tables[0]).replace("test.parquet", "the table")
    for picture in (model.plot(frame), model.plot_shapes(), model.plot_calibration(frame)):
        assert picture.html in whole
        assert Page(picture.html).words
        assert picture.html in picture._repr_html_()
        assert ":root" not in picture._repr_html_()  # the style of a notebook stays as it is
        picture.save(tmp_path / "picture.html")
        assert Page((tmp_path / "picture.html").read_text(encoding="utf-8")).headings == []
    assert "cross-validated" in model.plot().html
    assert len(re.findall("<figure>", model.plot_shapes(top=1).html)) <= 2
    assert_refused(lambda: model.plot_shapes(prefix=0), "prefix 0 of model 'model' has no columns", error=ValuesError)
    assert_refused(
        lambda: model.plot_shapes(top=0), "top is 0; expected a number of columns, 1 or more", error=ValuesError
    )
    assert_refused(lambda: model.plot().save(tmp_path / "picture.png"), "ends in", error=AnytimeError)


def test_rows_without_a_target_are_left_out_and_counted(gaussian: Any, tmp_path: Path) -> None:
    frame = rows(100, 1)
    frame.loc[[3, 7], "gaussian"] = np.nan
    frame.to_parquet(tmp_path / "test.parquet")
    test = open_table(tmp_path / "test.parquet")
    text = Page(report(gaussian.model_, test, test)).text
    assert text.count("Left out: 2 of 100 rows of test.parquet without a target.") == 2
    assert "on 98 rows of test.parquet" in text


@pytest.mark.parametrize("kind", ["gaussian", "binomial"])
def test_few_rows_have_no_verdict(kind: str) -> None:
    model = trained(kind).model_
    assert "1 test row is too few" in model.plot_calibration(rows(1, 1)).html
    assert "19 test rows are too few" in model.plot_calibration(rows(19, 1)).html
    assert "too few" not in model.plot_calibration(rows(20, 1)).html


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.2, 17.0), (1e-9, 2e-9), (0.0, 1e12), (5.0, 5.0)])
def test_ticks_are_round_numbers_within_the_range(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 1 <= len(found) <= 11
    assert all(low - 1e-9 * abs(high) <= value <= high + 1e-9 * abs(high) for value in found)
    assert ticks(2.0, 2000.0, log=True) == [10.0, 100.0, 1000.0]


def test_charts_survive_what_data_may_be() -> None:
    chart = Chart("t <b>", (0.0, 0.0), (np.nan, np.inf), "x & y", levels=["a", "<i>"])
    chart.line(np.array([0.0, 1.0, 2.0]), np.array([np.nan, 1.0, np.inf]), stairs="after")
    chart.points(np.array([0.0, 1.0]), np.array([np.nan, 1.0]), ["<b>", "next"], errors=np.array([np.nan, np.nan]))
    assert "next" in Page(chart.svg()).text
    chart.bars(np.array([-1.0, 2.0]), ["one", "two <i>"])
    for html, words in ((chart.svg(), "two <i>"), (bar_rows([("<b>", np.nan, "-"), ("b", -2.0, "-2")]), "<b>")):
        assert words in Page(html).text
        assert not re.search("nan|inf", html)


def test_the_largest_share_of_a_strip_is_drawn_equally_tall_whatever_it_is() -> None:
    def heights(*shares: float) -> list[float]:
        chart = Chart("t", (0.0, 2.0), (0.0, 1.0), "x", "y")
        chart.strip(np.array([0.0, 1.0, 2.0]), np.array(shares), ["a", "b"])
        return [float(each) for each in re.findall(r'<rect class="rows".*?height="([\d.]+)"', chart.svg())]

    assert heights(0.1, 0.2) == heights(0.4, 0.8) == [heights(0.8, 0.8)[0] / 2, heights(0.8, 0.8)[0]]
    assert heights(0.0, 0.0) == [0.0, 0.0]


def test_labels_do_not_cover_each_other() -> None:
    chart = Chart("t", (0.0, 100.0), (0.0, 1.0), "x", "y")
    for x, words in ((10.0, "first"), (11.0, "hidden"), (40.0, "second"), (99.0, "third"), (98.0, "hidden too")):
        chart.label(x, 0.4, 0.5, words)
    assert re.findall(r'<text class="name"[^>]*>([^<]*)', chart.svg()) == ["first", "second", "third"]


def test_the_page_of_300_columns_is_below_3_mb_and_shows_the_first_rows_of_its_tables() -> None:
    X = np.random.default_rng(0).normal(size=(900, 300))
    text = report(AnytimeRegressor(alpha=0.01, basis="hinge:3").fit(X, X[:, :9].sum(axis=1)).model_)
    assert len(text.encode()) < 3e6
    assert Page(text).text.count("261 more rows") == 1  # of the steps, and the base rate
    assert Page(text).text.count("260 more rows") == 1  # of the data
