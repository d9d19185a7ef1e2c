"""What training learns of its columns: from weighted rows, in any number of parts, and only from rows that count."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from anytime import AnytimeClassifier, AnytimeRegressor
from anytime.data.formats import Table, table_of
from anytime.data.survey import survey, surveyed
from anytime.errors import AnytimeError
from anytime.features import learning
from anytime.features.bases import ColumnSample
from anytime.features.readers import DATES
from anytime.groups import load_groups, singletons
from anytime.types import Float
from models.present import present
from models.refusals import assert_refused

OPTIONS: list[dict[str, Any]] = [
    {"basis": "linear"},
    {"basis": "linear", "clamp": 0.05},
    {"basis": "hinge"},
    {"basis": "hinge:2", "clamp": 0.01},
    {"basis": "poly:3"},
    {"basis": "auto"},
    {"basis": "linear", "pairs": 1},
]


def frame(rows: int = 240) -> tuple[pd.DataFrame, Float]:
    """A curve, text with rare levels, gaps, and a column of a few values."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=rows).round(2)
    few = rng.integers(0, 4, rows).astype(float)
    city = rng.choice(["Oslo", "Rome", "Bonn", "Cork"], rows, p=[0.5, 0.36, 0.1, 0.04])
    y = np.sin(2 * x) + 0.3 * few + (city == "Rome") + 0.1 * rng.normal(size=rows)
    few[::11] = np.nan
    return pd.DataFrame({"x": x, "few": few, "city": city}), y


X, Y = frame()


def table(**columns: Any) -> Table:
    """A table of columns, of text with gaps if they are lists, and of y."""
    frame = pd.DataFrame({n: pd.Series(c, dtype="string") if isinstance(c, list) else c for n, c in columns.items()})
    return table_of("t", frame).with_columns({"y": np.arange(float(len(frame)))})


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.float32, np.float64])
def test_quantiles_are_those_of_numpy(kind: type) -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 10, 101):
        values = rng.choice(np.array([-128, -127, 0, 3, 126, 127]), size)
        levels = [0.0, *rng.random(5), 1.0]
        found = ColumnSample(values.astype(kind), float(size)).quantiles(levels)
        assert found == tuple(np.quantile(values.astype(np.float64), levels).tolist())


@given(
    st.lists(st.tuples(st.integers(-4, 4), st.integers(1, 4)), min_size=1, max_size=12),
    st.lists(st.floats(0, 1), max_size=5),
)
def test_weighted_statistics_are_those_of_repeated_values(rows: list[tuple[int, int]], levels: list[float]) -> None:
    values, weights = (np.array(each, dtype=float) for each in zip(*rows, strict=True))
    copies = np.repeat(values, weights.astype(int))
    for scale in (1.0, 0.25):  # a unit of weight may be any number
        found = ColumnSample(values, float(len(copies)), weights * scale)
        if scale == 1.0 or weights.min() == 1:
            np.testing.assert_allclose(found.quantiles(levels), np.quantile(copies, levels), rtol=0, atol=1e-9)
        assert found.mean() == pytest.approx(copies.mean(), abs=1e-12)
        assert found.deviation() == pytest.approx(copies.std(), abs=1e-12)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_row_of_weight_zero_changes_nothing(options: dict[str, Any]) -> None:
    wild = X.assign(x=np.where(X["x"] > 0, np.inf, 1e3), city="Atlantis", few=99.0)
    rows, all_y = (
        pd.concat([wild[:60], X[:100], wild[60:], X[100:]]),
        np.concatenate([Y[:60] - 50, Y[:100], Y[60:], Y[100:]]),
    )
    weights = np.concatenate([np.zeros(60), np.ones(100), np.zeros(180), np.ones(140)])
    without = AnytimeRegressor(alpha="cv", cv=3, **options).fit(X, Y)
    found = AnytimeRegressor(alpha="cv", cv=3, **options).fit(rows, all_y, weights)
    assert found.sequence_ == without.sequence_
    assert found.model_.groups == without.model_.groups
    np.testing.assert_allclose(found.alphas_, without.alphas_)
    np.testing.assert_allclose(found.predict(X), without.predict(X), rtol=1e-9)


@pytest.mark.parametrize("options", [each for each in OPTIONS if each.get("basis") != "auto"], ids=str)
def test_a_row_of_weight_three_counts_as_three_rows(options: dict[str, Any]) -> None:
    times = np.random.default_rng(1).integers(0, 4, len(X))
    rows = np.repeat(np.arange(len(X)), times)
    weighted = AnytimeRegressor(alpha=1e-3, **options).fit(X, Y, times)
    repeated = AnytimeRegressor(alpha=1e-3, **options).fit(X.iloc[rows], Y[rows])
    assert weighted.get_feature_names_out().tolist() == repeated.get_feature_names_out().tolist()
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), rtol=1e-7, atol=1e-9)


def test_weights_count_in_given_splits_and_for_classes() -> None:
    times = np.random.default_rng(1).integers(0, 3, len(X))
    rows, fold = np.repeat(np.arange(len(X)), times), np.arange(len(X)) % 3
    splits = [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(3)]
    repeated = [(np.flatnonzero(fold[rows] != k), np.flatnonzero(fold[rows] == k)) for k in range(3)]
    labels = np.where(np.median(Y) < Y, "high", "low")
    a = AnytimeClassifier(alpha="cv", cv=splits, basis="hinge:2", family="gaussian").fit(X, labels, times)
    b = AnytimeClassifier(alpha="cv", cv=repeated, basis="hinge:2", family="gaussian").fit(X.iloc[rows], labels[rows])
    assert a.sequence_ == b.sequence_
    np.testing.assert_allclose(a.alphas_, b.alphas_)
    np.testing.assert_allclose(a.predict_proba(X), b.predict_proba(X), atol=1e-9)


@pytest.mark.parametrize(("first", "chunk"), [(40, 100), (110, 37), (236, 1)])
@pytest.mark.parametrize("options", [each for each in OPTIONS if "pairs" not in each], ids=str)
def test_a_stream_gives_the_model_of_all_rows(options: dict[str, Any], first: int, chunk: int) -> None:
    order = np.argsort(X["x"].to_numpy(), kind="stable")  # the first rows show neither the range nor every level
    rows, targets = X.iloc[order], Y[order]
    fitted = AnytimeRegressor(alpha=0.01, cv=3, **options).fit(rows, targets)
    stream = AnytimeRegressor(alpha=0.01, cv=3, **options).partial_fit(rows[:first], targets[:first])
    for start in range(first, len(rows), chunk):
        stream.partial_fit(rows[start : start + chunk], targets[start : start + chunk])
    assert stream.model_.groups == fitted.model_.groups
    assert stream.sequence_ == fitted.sequence_
    np.testing.assert_allclose(stream.predict(X), fitted.predict(X), rtol=1e-9, atol=1e-9)
    # Their folds are the same.
    np.testing.assert_allclose(present(stream.curve_.cv_error), present(fitted.curve_.cv_error), rtol=1e-9)


@pytest.mark.parametrize("basis", ["linear", "hinge:2"])
def test_a_stream_forgets_by_weight(basis: str) -> None:
    weights = np.concatenate([np.full(100, 0.25), np.full(100, 0.5), np.ones(40)])
    fitted = AnytimeRegressor(basis=basis).fit(X, Y, weights)
    stream = AnytimeRegressor(basis=basis)
    for part in (slice(0, 100), slice(100, 200), slice(200, None)):
        stream.partial_fit(X[part], Y[part], decay=0.5)
    assert stream.model_.groups == fitted.model_.groups
    np.testing.assert_allclose(stream.predict(X), fitted.predict(X), rtol=1e-9)


def test_a_long_stream_keeps_its_bases_and_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "SAMPLE_ROWS", 100)
    stream = AnytimeRegressor(basis="hinge:2", min_level_rows=10).partial_fit(X[:60], Y[:60])
    assert len(stream._stream.stored) == 1
    stream.partial_fit(X[60:120], Y[60:120])
    assert not stream._stream.stored
    bases = stream.model_.groups.bases
    stream.partial_fit(X[120:], Y[120:], decay=0.5)
    assert stream.model_.groups.bases == bases
    assert (stream.fit_.moments.rows, stream.fit_.moments.weight) == (len(X), len(X) - 60)


def test_text_that_looks_like_numbers_is_no_level_unless_levels_are_common() -> None:
    def learned(cells: list[str]) -> Any:
        return surveyed(table(c=cells), singletons(["c"]), ["y"])[0]

    assert learned(["12", "7"] * 20).types == {"c": "text"}
    assert learned([f"2024-01-{i:02}" for i in range(1, 31)]).types == {"c": "date"}
    for cells, said in (
        ([f"{i}.5" for i in range(40)], "'c' holds text, as '0.5' in row 0"),
        (["1", "2", "x", "3"] * 10, "'c' holds text, as 'x' in row 2"),
        ([f"{i},5" for i in range(40)], "'c' holds numbers in another form, as '0,5' in row 0"),
        (["5 kg", "7 kg"] * 20, "'c' holds numbers in another form, as '5 kg' in row 0"),
        (["5kg", "7kg", "9kg"] * 13, "'c' holds numbers in another form, as '5kg' in row 0"),
        ([*(f"2024-01-{i:02}" for i in range(1, 31)), "soon"], "'c' holds dates, and 'soon', which is no date"),
    ):
        assert_refused(partial(learned, cells), said)


DAYS = [f"2024-01-{i:02}" for i in range(1, 31)]


@pytest.mark.parametrize("word", ["NA", "n/a", "null", " NaN ", "", None])
def test_words_for_missing_are_missing_among_dates(word: str | None) -> None:
    days = table(c=[word, *DAYS, word])
    groups, found = surveyed(days, singletons(["c"]), ["y"])
    assert (groups.types, found.unusable) == ({"c": "date"}, {})
    read = next(iter(days.batches(["c"], types={"c": "date"}))).column("c")
    assert np.flatnonzero(np.isnan(read)).tolist() == [0, 31]


FORMS = (
    *("%d.%m.%Y", "%Y/%m/%d", "%d %b %Y", "%B %d, %Y", "%m/%d/%y", "%d-%b-%Y", "%d.%m.%Y %H:%M", "%Y-%b-%d"),
    *("%d.%m.%y", "%m/%d/%Y %I:%M %p", "%a, %d %b %Y %H:%M:%S GMT", "%Y/%m/%d %H:%M:%S+0200"),
)


@pytest.mark.parametrize("form", FORMS)
def test_dates_in_another_form_leave_the_column_out_unless_levels_are_common(form: str) -> None:
    def learned(days: list[datetime]) -> tuple[Any, Any]:
        dated = table(c=[day.strftime(form) for day in days], x=np.arange(len(days)) % 7.0)
        return surveyed(dated, singletons(["c", "x"]), ["y"])

    days = [datetime(2024, 1, 1, 9, 30) + timedelta(days=7 * i) for i in range(60)]
    groups, found = learned(days)
    assert groups.features == ("x",)
    assert "which is no date in ISO form" in found.unusable["c"]
    groups, found = learned(days[:2] * 30)
    assert (groups.types, found.unusable) == ({"c": "text"}, {})


def test_levels_that_differ_in_blanks_only_are_said() -> None:
    _, found = surveyed(table(c=["a", " a", "b", "b "] * 10, d=["a", "b"] * 20), singletons(["c", "d"]), ["y"])
    assert found.remarks == (
        "levels that differ in blanks only are different levels: ' a' and 'a' of 'c'; write them alike if they are the "
        "same",
    )


@pytest.mark.parametrize("cells", [["1.1.10", "1.2.0"] * 20, ["march", "may"] * 20, ["10.0.0.1", "10.0.0.2"] * 20])
def test_versions_and_words_are_no_dates(cells: list[str]) -> None:
    assert not any(map(DATES.has_other_form, cells))


@pytest.mark.parametrize(("values", "what"), [([20240101, 20240217], "days written"), ([1999, 2024], "years")])
@pytest.mark.parametrize("stated", ["type", "basis"])
def test_numbers_that_are_no_seconds_are_no_dates(values: list[int], what: str, stated: str) -> None:
    numbers = table(c=np.array(values * 20))
    content = {"groups": [{"name": "c", "features": ["c"], "cost": 1}]}
    own = {"types": {"c": "date"}} if stated == "type" else {"bases": {"c": {"basis": "date"}}}
    assert_refused(
        lambda: surveyed(numbers, load_groups(content | own), ["y"]),
        "column 'c'",
        f"as {values[0]}, look like {what}",
        "expected seconds since 1970",
        error=AnytimeError,
    )


def test_rows_that_do_not_count_are_in_no_count() -> None:
    columns = {"y": np.array([1.0, np.nan, 2.0, 9.0]), "w": np.array([1.0, 1.0, 2.0, 0.0])}
    counted = table_of("t", np.arange(4.0)[:, np.newaxis]).with_columns(columns)
    found = survey(counted, ["y"], ["x0"], weights="w", drop_missing=True)
    assert (found.rows, found.missing, found.used) == (4, 1, 2)
    assert found.values == (frozenset({1.0, 2.0}),)
    sample = present(found.sample)
    assert (sample.columns["x0"].tolist(), present(sample.weights).tolist()) == ([0.0, 2.0], [1.0, 2.0])
