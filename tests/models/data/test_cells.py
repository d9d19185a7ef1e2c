"""Every cell as it was: columns that are passed on, types across parts and tables, tables without rows or values."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st
from scipy import sparse

from anytime import AnytimeClassifier, AnytimeRegressor, load, open_table
from anytime.cli.main import main
from anytime.loaded import LoadedModel
from models.commands import ran, refusal
from models.opening import opened
from models.properties import quick

pytestmark = pytest.mark.usefixtures("linear_by_default")

OUT = (".csv", ".csv.gz", ".tsv", ".parquet", ".arrow")
TEXT = ("06015", "60150", "1.10", "1.1", "2.5", "TRUE", "true", "12345678901234567890", "9007199254740993", "7", "-3")
WORDS = ("NA", "nan", "a,b", 'a "b"', " 7", "2024-01-01 00:00", "1e-05", "243.0", "")


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of x and of the levels of a and b, which accept any text."""
    frame = pd.DataFrame({"x": np.arange(60.0), "a": ["p", "q"] * 30, "b": ["r", "s", "t"] * 20})
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    AnytimeRegressor(alpha=1e-3).fit(frame, frame["x"] + (frame["a"] == "p")).save(path)
    return path


def write(content: pa.Table, path: Path) -> Path:
    """Write a table by its suffix; CSV files have the text of the cells as it is."""
    if path.suffix == ".parquet":
        pq.write_table(content, path)
    elif path.suffix == ".arrow":
        pyarrow.feather.write_feather(content, str(path), compression="uncompressed")
    else:
        with (gzip.open if path.suffix == ".gz" else open)(path, "wt", newline="", encoding="utf-8") as file:
            rows = csv.writer(file, delimiter="\t" if ".tsv" in path.name else ",")
            rows.writerow(content.column_names)
            rows.writerows(zip(*(column.to_pylist() for column in content.columns), strict=True))
    return path


def written(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return pq.read_table(path)
    if path.suffix == ".arrow":
        return pyarrow.feather.read_table(path)
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", newline="", encoding="utf-8") as file:
        names, *rows = csv.reader(file, delimiter="\t" if ".tsv" in path.name else ",")
    return pa.table({name: pa.array([row[j] for row in rows], pa.string()) for j, name in enumerate(names)})


@quick(40)
@given(
    data=st.data(),
    source=st.sampled_from((".csv", ".csv.gz", ".tsv", ".parquet", ".arrow")),
    out=st.sampled_from(OUT),
    parts=st.integers(1, 2),
    prefix=st.sampled_from([[], ["--prefix", "0"]]),
)
def test_cells_of_text_that_are_kept_are_the_same_text(
    text_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    source: str,
    out: str,
    parts: int,
    prefix: list[str],
) -> None:
    folder = tmp_path_factory.mktemp("kept")
    kinds = data.draw(st.sampled_from([TEXT, TEXT[-2:], TEXT[4:5] + WORDS[-2:-1], TEXT + WORDS]))
    cells = {name: data.draw(st.lists(st.sampled_from(kinds), min_size=4, max_size=4)) for name in "ab"}
    content = pa.table({"x": ["1", "0.50", "2", "3.25"], **cells})
    if source in (".parquet", ".arrow"):
        content = content.set_column(0, "x", pa.array([1.0, 0.5, 2.0, 3.25]))
    (folder / "t").mkdir()
    for part in range(parts):
        write(content[part::parts] if parts == 1 else content[2 * part : 2 * part + 2], folder / f"t/{part}{source}")
    command = ["predict", str(text_model), str(folder / "t"), *prefix, "--out", str(folder / f"p{out}")]
    assert main([*command, *(word for name in ("a", "x", "b") for word in ("--keep", name))]) == 0
    found = written(folder / f"p{out}")
    for name in "ab":
        shown = [
            ""
            if cell is None
            else {True: "true", False: "false"}.get(cell, str(cell))
            if isinstance(cell, bool)
            else str(cell)
            for cell in found[name].to_pylist()
        ]
        assert [cell.removesuffix(".0") for cell in shown] == [cell.removesuffix(".0") for cell in cells[name]]
        if source in (".parquet", ".arrow"):
            assert found[name].type == pa.string()
    np.testing.assert_array_equal(np.array(found["x"].to_pylist(), dtype=float), [1, 0.5, 2, 3.25])


EXACT: dict[str, pa.Array] = {
    "next to a gap": pa.array([2**53 + 1, None, -(2**62) - 1], pa.int64()),
    "uint64": pa.array([2**64 - 1, 2**63 + 1, None], pa.uint64()),
    "decimals": pa.array([Decimal("1.10"), Decimal("12345678901234567890.12"), None], pa.decimal128(38, 2)),
    "float32": pa.array([0.1, None, 16777217.0], pa.float32()),
    "float16": pa.array(np.array([0.5, 2.0, 3.25], np.float16)),
    "moments": pa.array([datetime(2024, 1, 1, 2, 3, 4, 5), None, datetime(1, 1, 1)], pa.timestamp("us")),
    "moments of a zone": pa.array([datetime(2024, 7, 1, tzinfo=UTC)] * 3, pa.timestamp("us", "Europe/Oslo")),
    "days": pa.array([date(2024, 2, 29), None, date(9999, 12, 31)], pa.date32()),
    "booleans": pa.array([True, None, False]),
    "levels": pa.array(["b", None, "b"]).dictionary_encode(),
    "text of digits": pa.array(["007", None, "1e5"]),
    "long text": pa.array(["a", None, ""], pa.large_string()),
    "nothing": pa.nulls(3),
    "lists": pa.array([[1, None], None, []]),
    "bytes": pa.array([b"a", b"\xff", None]),
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("source", [".parquet", ".arrow"])
def test_a_kept_column_of_any_type_has_its_values_and_its_type(
    name: str, source: str, text_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = pa.table({"x": [1.0, 2.0, 3.0], "a": ["p"] * 3, "b": ["r"] * 3, "kept": EXACT[name]})
    path, kind = write(content, tmp_path / f"t{source}"), EXACT[name].type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    for out in OUT:
        command = ["predict", str(text_model), str(path), "--keep", "kept", "--out", str(tmp_path / f"p{out}")]
        if name in ("lists", "bytes") and out not in (".parquet", ".arrow"):
            said = refusal(capsys, *command)
            assert f"column 'kept' is {'list' if name == 'lists' else 'binary'}" in said
            assert "cannot store; write Parquet or Arrow" in said
            assert not list(tmp_path.glob("*p.*"))
            continue
        assert main(command) == 0
        found = written(tmp_path / f"p{out}")["kept"]
        if out in (".parquet", ".arrow"):
            assert (found.type, found.to_pylist()) == (kind, EXACT[name].to_pylist())
        else:
            assert found.to_pylist() == [cell or "" for cell in EXACT[name].cast(kind).cast(pa.string()).to_pylist()]
        (tmp_path / f"p{out}").unlink()


PARTS: dict[str, tuple[list[Any], dict[str, tuple[pa.DataType, ...]]]] = {
    "whole": ([3, 1], {"integer": (pa.int8(), pa.int32(), pa.int64(), pa.uint64())}),
    "numbers": ([3, None], {"number": (pa.float64(), pa.float32(), pa.int64(), pa.decimal128(9, 2), pa.null())}),
    "text": (["b", None], {"text": (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string()), pa.null())}),
    "flags": ([True, None], {"bool": (pa.bool_(), pa.null())}),
    "days": (
        [datetime(2024, 5, 17), None],
        {"date": (pa.date32(), pa.timestamp("s"), pa.timestamp("us", "UTC"), pa.null())},
    ),
}
"""Values of a part of a folder, and the types that it may have there, by the type of the whole."""


@quick(60)
@given(data=st.data(), name=st.sampled_from(sorted(PARTS)), rows=st.integers(1, 7))
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_parts_whose_types_differ_are_one_table(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, name: str, rows: int, suffix: str
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    values, ((kind, types),) = PARTS[name][0], tuple(PARTS[name][1].items())
    chosen = [*data.draw(st.lists(st.sampled_from(types), min_size=1, max_size=4)), types[0]]
    whole: list[Any] = []
    for part, each in enumerate(chosen):
        cells = [None] * len(values) if each == pa.null() else values
        cells = data.draw(st.sampled_from([cells, cells, []]))
        write(pa.table({"c": pa.array(cells, each), "n": pa.array(cells and [part, part])}), folder / f"{part}{suffix}")
        whole += cells
    table = open_table(folder)
    stated: Any = {"c": kind}
    assert table.types(["c"])["c"] in (kind, "number" if whole.count(None) == len(whole) else kind)
    write(pa.table({"c": pa.array(whole, types[0])}), folder.with_suffix(".parquet"))
    (expected,) = open_table(folder.with_suffix(".parquet")).batches(["c"], types=stated)
    found = np.concatenate([batch.columns["c"] for batch in table.batches(["c"], rows, types=stated)])
    np.testing.assert_array_equal(found, expected.columns["c"])
    numbers = [n for batch in table.batches(["n"], rows) for n in batch.columns["n"].tolist()]
    for start in table.starts:
        assert [n for batch in table.batches(["n"], start=start) for n in batch.columns["n"].tolist()] == numbers[
            start:
        ]


LATER: dict[str, Any] = {
    "text": "gold",
    "numbers": 3.5,
    "whole": 7,
    "booleans": True,
    "moments": pd.Timestamp("2024-05-17"),
    "days": date(2024, 5, 17),
    "nothing": None,
}
EMPTY: dict[str, Any] = {
    "None": pd.Series([None] * 90, dtype=object),
    "NaN": np.full(90, np.nan),
    "NaT": pd.Series([pd.NaT] * 90),
    "boolean": pd.Series([None] * 90, dtype="boolean"),
    "string": pd.Series([None] * 90, dtype="string"),
}


@pytest.mark.parametrize("basis", ["auto", "linear", "hinge:2"])
@pytest.mark.parametrize("name", EMPTY)
def test_what_a_column_without_values_has_later_does_not_matter(name: str, basis: str, desk: Path) -> None:
    x = np.sin(np.arange(90.0))
    frame = pd.DataFrame({"x": x, "z": EMPTY[name]})
    fitted = AnytimeRegressor({"both": ["x", "z"]}, basis=basis, alpha=1e-3).fit(frame, 2 * x)
    fitted.save("m.safetensors")
    model, expected = load("m.safetensors"), fitted.predict(frame)
    for kind, value in LATER.items():
        filled = frame.assign(z=pd.Series([value] * 90))
        filled.to_csv("later.csv", index=False)
        filled.to_parquet("later.parquet")
        for found in (fitted.predict(filled), *map(model.predict, (filled, "later.csv", "later.parquet"))):
            np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=kind)
        for row, values in enumerate([[x[0], value], np.array([x[1], value])] if kind in ("numbers", "whole") else []):
            assert opened(model, {"both": values}).answer().prediction == pytest.approx(expected[row], rel=1e-12)


@pytest.mark.parametrize("cell", ["", "NA"])
def test_a_column_without_values_in_a_file_accepts_text_later(
    cell: str, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{x:.3f},{{}},{2 * x:.3f}" for x in np.sin(np.arange(90.0))]
    for path, each in (("t.csv", cell), ("later.csv", "gold")):
        Path(path).write_text("\n".join(["x,z,y", *(line.format(each) for line in lines)]) + "\n")
    ran(capsys, "train", "t.csv", "--target", "y", "--test", "later.csv", "--out", "m.safetensors")
    first, other = (ran(capsys, "evaluate", "m.safetensors", path).out for path in ("t.csv", "later.csv"))
    assert first == other


@cache
def of_classes() -> LoadedModel:
    x = np.sin(np.arange(90.0))
    y = np.array(["a", "b", "c"])[np.digitize(x, [-0.5, 0.5])]
    model: LoadedModel = AnytimeClassifier(family="multinomial").fit(pd.DataFrame({"x": x, "z": x**2}), y).model_
    return model


NO_ROWS: dict[str, Callable[[Path], Any]] = {
    "pandas": lambda _: pd.DataFrame({"x": [], "z": []}),
    "objects": lambda _: pd.DataFrame(columns=["x", "z"]),
    "polars": lambda _: pl.DataFrame({"x": [], "z": []}),
    "Arrow": lambda _: pa.table({"x": pa.array([], pa.float64()), "z": pa.array([], pa.float64())}),
    "array": lambda _: np.empty((0, 2)),
    "sparse": lambda _: sparse.coo_array((0, 2)),
    "rows": lambda _: [],
    **{
        suffix: lambda folder, suffix=suffix: write(
            pa.table({"x": pa.array([], pa.float64()), "z": pa.array([], pa.float64())}), folder / f"t{suffix}"
        )  # type: ignore[misc]
        for suffix in (".csv", ".csv.gz", ".tsv", ".parquet", ".arrow")
    },
}


@pytest.mark.parametrize("name", NO_ROWS)
def test_a_table_without_rows_has_an_answer_for_none(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, table = of_classes(), NO_ROWS[name](tmp_path)
    assert model.predict(table).shape == (0,)
    assert model.predict_proba(table, budget=0).shape == (0, 3)
    answer = model.answer(table, explain=True)
    assert (len(answer), answer.imputed, answer.groups) == (0, (), ("x", "z"))
    assert {len(column) for column in answer.columns().values()} == {0}
    if not isinstance(table, Path):
        return
    model.save(tmp_path / "m.safetensors")
    for out in OUT:
        path = tmp_path / f"p{out}"
        command = ["predict", str(tmp_path / "m.safetensors"), str(table), "--keep", "x", "--proba", "--out", str(path)]
        assert main(command) == 0
        columns = ["x", "prediction", *(f"probability_{label}" for label in "abc")]
        assert (written(path).column_names, written(path).num_rows) == (columns, 0)
    for command in (
        ["train", str(table), "--target", "x", "--out", "n.safetensors"],
        ["moments", str(table), "--target", "x", "--out", "n.moments"],
        ["groups", str(table), "--target", "x", "--out", "n.yaml"],
    ):
        assert "has no rows; expected at least one" in refusal(capsys, *command)


@pytest.mark.parametrize("first", ["", "sep={0}\n", '"sep={0}"\r\n', "\ufeffsep={0}\n"])
@pytest.mark.parametrize("mark", [";", "\t", "|", ","])
def test_a_first_line_and_a_suffix_name_the_separator(first: str, mark: str, tmp_path: Path) -> None:
    text = first.format(mark) + mark.join(["a", "b"]) + "\n" + "".join(f"{i}{mark}w{i}\n" for i in range(3))
    path = tmp_path / f"t{'.tsv' if mark == chr(9) else '.csv'}"
    path.write_text(text, encoding="utf-8")
    (batch,) = open_table(path).batches(["a", "b"])
    assert [column.tolist() for column in batch.columns.values()] == [[0, 1, 2], ["w0", "w1", "w2"]]
    path.write_text(text + f"4{mark}5{mark}6\n", encoding="utf-8")
    with pytest.raises(Exception, match=r"row 3 \(counted from 0\) has 3 cells; expected 2"):
        list(open_table(path).batches(["a"]))


CODES = ["7", "07", "12"]


@pytest.mark.parametrize("door", ["csv", "pandas", "array"])
def test_categories_of_quoted_numbers_are_text(door: str, desk: Path) -> None:
    code = np.array(CODES, dtype=object)[np.arange(120) % 3]
    x, y = np.sin(np.arange(120.0)), np.array([1.0, -2.0, 3.0])[np.arange(120) % 3]
    groups: dict[str, Any] = {"groups": {"c": ["x0"], "x": ["x1"]}, "bases": {"x0": "categories"}}
    if door == "csv":
        Path("g.json").write_text(json.dumps(groups))
        rows = [f'"{c}",{v:.4f},{t}' for c, v, t in zip(code, x, y, strict=True)]
        Path("t.csv").write_text("\n".join(["x0,x1,y", *rows]) + "\n")
        command = ["train", "t.csv", "--groups", "g.json", "--target", "y", "--alpha", "1e-6"]
        assert main([*command, "--out", "m.safetensors"]) == 0
        model = load("m.safetensors")
    else:
        X: Any = pd.DataFrame({"x0": pd.Series(code, dtype=object), "x1": x})
        X = X if door == "pandas" else np.column_stack([code, x.astype(object)])
        model = AnytimeRegressor(groups, alpha=1e-6).fit(X, y).model_
    assert set(model.groups.bases["x0"].levels or ()) == set(CODES)
    for cell, value in zip(CODES, [1.0, -2.0, 3.0], strict=True):
        assert opened(model, {"c": [cell], "x": [0.0]}).answer().prediction == pytest.approx(value, abs=1e-2)
