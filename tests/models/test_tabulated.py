"""Tables of results as text, JSON, HTML and frames; what a notebook shows is never an address in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from anytime import AnytimeClassifier, AnytimeRegressor, Runner, certify, evaluate, load_groups, open_table, tabulated
from anytime.data.formats import table_of
from anytime.errors import TableError
from anytime.evaluation.shapes import column_shapes
from anytime.tabulated import FRAMES, R2, SHARE, Series, Tabulated
from models.opening import opened

GROUPS = {"a <b>": ["x", "city"], "b": ["z"]}


def rows() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(rng.normal(size=(60, 2)), columns=["x", "z"]).assign(city=rng.choice(["Oslo", "Rome"], 60))


def test_every_rendering_has_the_same_values_and_numbers_are_aligned_at_their_points() -> None:
    table = Tabulated.of(
        Series("cost (ms)", np.array([0.5, 12.0, 1234.56]), "cost"),
        Series("r2", [-1e-17, None, np.nan], form=R2),
        Series("of full", [0.0123, 1.0, 0.5], None, SHARE),
        Series(None, [1, 2, 3], "prefix"),
        Series("absent", None),
        Series("more", ["a <b> [c]", ("東京", "x"), ()]),
        Series("rows", [7]),
        caption="A caption",
        notes=["a note"],
    )
    assert str(table).splitlines() == [
        "A caption",
        "",
        "cost (ms)      r2   of full  more       rows",
        "      0.5  0.0000    1.23 %  a <b> [c]     7",
        "     12    -       100 %     東京, x",
        "   1235    -        50 %     -",
        "a note",
    ]
    assert table.take([0, 0], Series("k", [7, 8])).records()[1] == {
        **{"k": 8, "cost": 0.5, "r2": -1e-17, "prefix": 1, "more": "a <b> [c]", "rows": 7}
    }
    assert '<td>1.23 %</td><td class="words">a &lt;b&gt; [c]</td><td>7</td></tr>' in table.html()
    assert Tabulated.of(Series("n", [1]), Series("names", ["the second of three " * 2])).text(10).splitlines() == [
        *("n  names", "1  the second of three", "   the second of three")
    ]


@pytest.fixture(scope="module")
def estimator() -> Any:
    return AnytimeRegressor(GROUPS, alpha=1e-2, basis="hinge:1", cv=3, nested=True).fit(
        rows(), (rows()["x"] ** 2).rename("y")
    )


def test_values_are_shown_as_text_and_as_html(estimator: Any) -> None:
    model = estimator.model_
    prediction = opened(model, {"a <b>": rows()}, None)
    classes = AnytimeClassifier(GROUPS, alpha=1e-2).fit(rows(), rows()["city"])
    certified = certify(model, nodes=10, seconds=5)
    values = {
        "model": model,
        "curve": estimator.curve_,
        "prediction": prediction,
        "answer": prediction.answer(explain=True),
        "answer of a table": model.answer(rows(), explain=True),
        "answer of classes": classes.model_.answer(rows()),
        "certificate": certified.manifest.certificate,
        "certified model": certified,
        "what if": model.what_if(without=["a <b>"]),
    }
    for name, value in values.items():
        html = value._repr_html_()
        assert html.startswith("<"), name
        assert "<b>" not in html, name
        assert " at 0x" not in html + repr(value), name
    for name in ("model", "curve"):
        assert "a &lt;b&gt;" in values[name]._repr_html_()


def test_nothing_public_shows_its_address(estimator: Any, tmp_path: Any) -> None:
    model = estimator.model_
    rows().to_csv(tmp_path / "t.csv", index=False)
    others = [
        *(estimator, model.manifest, load_groups(GROUPS), open_table(tmp_path / "t.csv"), table_of("X", rows())),
        *(table_of("X", np.eye(2)), estimator.guarantee_, model.what_if(without=["b"]), *column_shapes(model)),
    ]
    with Runner(model, {"a <b>": lambda _: [1.0, "Oslo"], "b": lambda _: 1.0}) as runner:
        assert repr(runner) == f"<Runner of {model.name}>"
    for each in others:
        assert " at 0x" not in repr(each), type(each)


@pytest.mark.parametrize("library", FRAMES)
def test_frames_are_of_the_library_that_is_there(estimator: Any, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    module = pytest.importorskip(library)
    monkeypatch.setattr(tabulated, "FRAMES", (library,))
    model, kind = estimator.model_, module.Table if library == "pyarrow" else module.DataFrame
    answer = model.answer(rows(), explain=True)
    frames = {
        "curve": (estimator.curve_.to_frame(), 3),
        "steps": (model.to_frame(), 3),
        "answer": (answer.to_frame(), 60),
        "groups": (answer.contributions.to_frame(), 60),
        "features": (answer.contributions.to_frame("features"), 60),
        "evaluation": (evaluate(model, table_of("rows", rows().assign(y=rows()["z"]))).to_frame(), 3),
        "what if": (model.what_if(without=["b"]).to_frame(), 2),
        "one row": (estimator.predict(rows()[:1], explain=True)[1].to_frame(), 1),
        "shape": (column_shapes(model)[0].to_frame(), None),
    }
    for name, (frame, count) in frames.items():
        assert isinstance(frame, kind), name
        assert count is None or len(frame) == count, name
    columns = frames["curve"][0].column_names if library == "pyarrow" else list(frames["curve"][0].columns)
    assert columns == ["step", "group", "cost", "explained_variance", "r2", "cv_error"]


def test_a_frame_has_the_values(estimator: Any) -> None:
    frame = estimator.curve_.to_frame()
    assert frame["group"].tolist() == ["(base rate)", *estimator.sequence_]
    np.testing.assert_allclose(frame["r2"], [estimator.model_.expected(k).r2 for k in range(3)])
    answer = estimator.model_.answer(rows(), explain=True)
    np.testing.assert_allclose(answer.to_frame()["prediction"], estimator.predict(rows()))
    parts = answer.contributions.to_frame()
    np.testing.assert_allclose(parts.sum(axis=1) + answer.contributions.intercept, answer.prediction)


def test_an_answer_shows_its_contributions_and_what_if_without_a_change_one_model(estimator: Any) -> None:
    model = estimator.model_
    prediction = opened(model, {"b": [0.123456]})
    answer = prediction.answer(policy="arrived", explain=True)
    html = answer._repr_html_()
    assert answer.contributions is not None
    assert f'<td class="words">contribution of b</td><td class="words">{answer.contributions.groups["b"]:.4g}<' in html
    assert f">{answer.prediction:.4g}<" in html
    assert "of 1 row: b; prefix" in repr(prediction)
    same, changed = model.what_if(budgets=[1])._repr_html_(), model.what_if(without=["b"])._repr_html_()
    assert "new r2" not in same
    assert "new r2" in changed


def test_without_a_library_of_frames_the_error_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tabulated, "FRAMES", ("no_such_frames",))
    with pytest.raises(TableError, match="pandas, polars or pyarrow"):
        Tabulated.of(Series("a", [1])).frame()
