"""Tables as users have them: a column of any type is the right numbers or levels, or one line says what to do."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from scipy.sparse import csr_array

from anytime import AnytimeClassifier, AnytimeRegressor, AnytimeWarning, load
from anytime.cli.main import main
from anytime.errors import AnytimeError, TableError, TrainingError, ValuesError

pytestmark = pytest.mark.usefixtures("linear_by_default")

Column = Callable[[], Any]

ROWS = 84
CODES = np.arange(ROWS) % 4
GAPS = np.arange(ROWS) % 7 == 3
FLAGS = CODES > 1
WORDS = np.array(["a", "b", "c", "d"], dtype=object)[CODES]
OTHER = np.sin(np.arange(ROWS))
Y = CODES + 0.3 * OTHER + 0.05 * np.cos(5.0 * np.arange(ROWS))
DAYS = [date(2020, 1, 1) + timedelta(days=int(code)) for code in CODES]
TIMES = [datetime(2020, 1, 1 + int(code)) for code in CODES]
INTERVALS = pd.IntervalIndex.from_arrays(CODES, CODES + 1)
PERIODS = pd.PeriodIndex(TIMES, freq="D")

UNUSABLE = "expected (numbers|real numbers|values of one type)"
"""The end of a message about a column that is neither numbers nor text."""


def gappy(values: Any) -> list[Any]:
    return [None if gap else value for gap, value in zip(GAPS, values, strict=True)]


def objects(*of_codes: Any) -> Any:
    """Return an array of objects: of each code its object, repeated from the start if they are fewer."""
    column = np.empty(ROWS, dtype=object)
    for row, code in enumerate(CODES):
        column[row] = of_codes[code % len(of_codes)]
    return column


class Colour(Enum):
    RED = 1
    BLUE = 2


MEANINGS: dict[str, Any] = {
    "numbers": CODES.astype(float),
    "numbers, gaps": np.where(GAPS, np.nan, CODES),
    "booleans": FLAGS,
    "booleans, gaps": pd.array(gappy(FLAGS), dtype="boolean"),
    "text": WORDS,
    "text, gaps": np.array(gappy(WORDS), dtype=object),
    "levels": pd.Categorical(CODES),
    "dates": pd.Series(TIMES),
    "levels, gaps": pd.Categorical(gappy(CODES)),
    "missing": np.full(ROWS, np.nan),
    "constant": np.full(ROWS, 3.0),
}
"""The plainest column of each meaning."""


def numpy_columns() -> Iterator[tuple[str, Any, str]]:
    whole = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", ">i2", ">i8", ">u4")
    for dtype in (*whole, "float16", "float32", "float64", "longdouble", ">f2", ">f4", ">f8"):
        yield dtype, CODES.astype(dtype), "numbers"
    for dtype in ("float16", ">f4", "longdouble"):
        yield f"{dtype}, NaN", MEANINGS["numbers, gaps"].astype(dtype), "numbers, gaps"
    yield "bool", FLAGS, "booleans"
    for dtype in ("U1", ">U3"):
        yield dtype, WORDS.astype(dtype), "text"
    for dtype in ("complex64", "complex128", "m8[s]", "S2"):
        yield dtype, CODES.astype("i8").astype(dtype), UNUSABLE
    for dtype in ("M8[ns]", "M8[s]", "M8[D]"):
        yield dtype, np.array(TIMES, dtype=dtype), "dates"
    yield "void", np.zeros(ROWS, "V4"), UNUSABLE
    yield "structured", np.zeros(ROWS, [("a", int), ("b", float)]), UNUSABLE
    yield "missing", np.full(ROWS, np.nan), "missing"
    yield "constant", np.full(ROWS, 3.0), "constant"
    yield "1e-100", CODES * 1e-100, "numbers"
    yield "1e100", CODES * 1e100, "numbers"
    yield "1e-40 in float32", CODES.astype("f4") * np.float32(1e-40), "numbers"
    for size in (1e-300, 1e-320, 1e-200):
        yield f"{size}", CODES * size, "too small to square; rescale it"
    for size in (1e300, 5e307):
        yield f"{size}", CODES * size, "too large to square; rescale or fix it"
    yield "1e4000", CODES.astype("longdouble") * np.longdouble("1e4000"), "infinite values"
    yield "infinite", np.where(CODES == 1, np.inf, CODES), "infinite value"


def object_columns() -> Iterator[tuple[str, Any, str]]:
    same: dict[str, tuple[Any, ...]] = {
        "ints": (0, 1, 2, 3),
        "floats and ints": (0, 1.0, 2, np.float32(3)),
        "decimals": tuple(map(Decimal, range(4))),
        "decimals and ints": (0, Decimal(1), 2, 3),
        "fractions": (Fraction(0), Fraction(2, 2), 2, 3),
        "NumPy's numbers": (np.int8(0), np.uint64(1), np.float16(2), np.float64(3)),
        "beyond 64 bits": tuple(10**30 * code for code in range(4)),
        "2^63": tuple(2**62 * code for code in range(4)),
        "beyond 76 digits": tuple(10**90 * code for code in range(4)),
    }
    for name, values in same.items():
        yield name, objects(*values), "numbers"
    for name, gap in (("None", None), ("NaN", math.nan), ("NA", pd.NA), ("NaT", pd.NaT)):
        yield f"ints, {name}", np.where(GAPS, objects(gap), objects(0, 1, 2, 3)), "numbers, gaps"
        yield f"text, {name}", np.where(GAPS, objects(gap), WORDS), "text, gaps"
    yield "text, empty", np.where(GAPS, objects(""), WORDS), "text, gaps"
    yield "booleans, None", np.where(GAPS, objects(None), FLAGS.astype(object)), "booleans, gaps"
    yield "text of NumPy", objects(*map(np.str_, "abcd")), "text"
    yield "None", objects(None), "missing"
    unusable: dict[str, tuple[Any, ...]] = {
        "ints and text": (1, "a"),
        "booleans and ints": (True, 2),
        "complex": (1j, 2j),
        "bytes": (b"a", b"b"),
        "bytes of no text": (b"\xff", b"\xfe"),
        "tuples": ((1, 2), (3, 4)),
        "lists": ([1], [2, 3]),
        "dicts": ({"a": 1}, {"a": 2}),
        "sets": ({1}, {2}),
        "arrays": (np.array([1]), np.array([2])),
        "objects": (object(), object()),
        "types": (int, str),
        "an enum": tuple(Colour),
        "UUIDs": (UUID(int=1), UUID(int=2)),
        "times": (time(1), time(2)),
        "durations": (timedelta(1), timedelta(2)),
        "Periods": tuple(PERIODS[:4]),
        "Intervals": tuple(INTERVALS[:4]),
    }
    for name, values in unusable.items():
        yield name, objects(*values), UNUSABLE
    moments: dict[str, list[Any]] = {"dates": DAYS, "datetimes": TIMES, "Timestamps": list(map(pd.Timestamp, TIMES))}
    for name, listed in moments.items():
        yield name, np.array(listed, dtype=object), "dates"
    yield "ISO text", np.array([f"{day}T00:00:00Z" for day in DAYS], dtype=object), "dates"
    yield "infinite decimals", objects(Decimal("Infinity"), Decimal(1)), "infinite values"
    yield "numbers in another form", objects("1.234,56", "7,5"), "numbers in another form"


def pandas_columns() -> Iterator[tuple[str, Any, str]]:
    for dtype in ("Int8", "Int64", "UInt8", "UInt64", "Float32", "Float64"):
        yield dtype, pd.Series(CODES).astype(dtype), "numbers"
        yield f"{dtype}, gaps", pd.Series(gappy(CODES), dtype=dtype), "numbers, gaps"
    yield "boolean", pd.Series(FLAGS).astype("boolean"), "booleans"
    yield "boolean, gaps", pd.Series(gappy(FLAGS), dtype="boolean"), "booleans, gaps"
    for dtype in ("string", "string[python]", "string[pyarrow]", "category"):
        yield f"text as {dtype}", pd.Series(WORDS).astype(dtype), "text"
        yield f"{dtype}, gaps", pd.Series(gappy(WORDS)).astype(dtype), "text, gaps"
    yield "unused categories", pd.Categorical(WORDS, list("zdcba"), ordered=True), "text"
    yield "category of ints", pd.Categorical(CODES), "levels"
    yield "category of ints, gaps", pd.Categorical(gappy(CODES)), "levels, gaps"
    yield "category of whole floats", pd.Categorical(CODES.astype(float)), "levels"
    yield "category of floats", pd.Categorical(CODES + 0.5), "numbers"
    yield "category of dates", pd.Categorical(TIMES), "dates"
    yield "category of intervals", pd.Categorical(INTERVALS), UNUSABLE
    yield "category of several types", pd.Categorical(objects(1, "a")), UNUSABLE
    yield "sparse", pd.arrays.SparseArray(CODES.astype(float), fill_value=0.0), "numbers"
    yield "sparse ints", pd.arrays.SparseArray(CODES), "numbers"
    yield "sparse booleans", pd.arrays.SparseArray(FLAGS), "booleans"
    yield "sparse, NaN", pd.arrays.SparseArray(MEANINGS["numbers, gaps"]), "numbers, gaps"
    yield "NaN in Float64", pd.Series(MEANINGS["numbers, gaps"]).astype("Float64"), "numbers, gaps"
    yield "intervals", pd.Series(INTERVALS), UNUSABLE
    yield "periods", pd.Series(PERIODS), UNUSABLE
    yield "dates", pd.Series(TIMES), "dates"
    yield "dates of a zone", pd.Series(TIMES).dt.tz_localize("UTC").dt.tz_convert("Europe/Oslo"), "dates"
    yield "durations", pd.Series(TIMES) - TIMES[0], UNUSABLE
    for kind in (pa.int8(), pa.uint64(), pa.float32()):
        yield f"{kind} of Arrow", pd.Series(CODES, dtype=pd.ArrowDtype(kind)), "numbers"


def coded(of_codes: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(CODES.astype(np.int32)), of_codes)


def arrow_columns() -> Iterator[tuple[str, Any, str]]:
    numbers = (pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.decimal128(9, 2), pa.decimal256(50))
    for kind in numbers:
        yield f"{kind}", pa.array(CODES.tolist(), pa.int8()).cast(kind), "numbers"
        cells = gappy(CODES.tolist())
        yield f"{kind}, gaps", pa.array(cells, pa.int8()).cast(kind), "numbers, gaps"
    yield "bool", pa.array(FLAGS), "booleans"
    yield "bool, gaps", pa.array(gappy(FLAGS.tolist())), "booleans, gaps"
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        yield f"{kind}", pa.array(WORDS.tolist(), kind), "text"
        yield f"{kind}, gaps", pa.array(gappy(WORDS), kind), "text, gaps"
        yield f"dictionary of {kind}", coded(pa.array(list("abcd"), kind)), "text"
    yield "dictionary of ints", coded(pa.array(range(4))), "levels"
    yield ("runs of text", pa.RunEndEncodedArray.from_arrays(pa.array(range(1, ROWS + 1), pa.int32()), WORDS), "text")
    ends = range(1, ROWS + 1)
    yield "runs", pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), CODES * 1.0), "numbers"
    yield "null", pa.nulls(ROWS), "missing"
    integers = pa.array(CODES.astype(np.int32))
    longs = pa.array(CODES)
    yield "time32", integers.cast(pa.time32("s")), UNUSABLE
    yield "duration", longs.cast(pa.duration("s")), UNUSABLE
    for kind in (
        pa.date32(),
        pa.date64(),
        pa.timestamp("s"),
        pa.timestamp("us", "UTC"),
        pa.timestamp("ns", "Asia/Tokyo"),
    ):
        yield f"{kind}", pa.array(TIMES).cast(kind), "dates"
    yield "dictionary of dates", coded(pa.array(TIMES[:4])), "dates"
    for cell in ([1], {"a": 1}, b"a", (1, 2, 3)):
        kind = pa.month_day_nano_interval() if isinstance(cell, tuple) else None
        yield f"{cell!r}", pa.array([cell] * ROWS, kind), UNUSABLE


def polars_columns() -> Iterator[tuple[str, Column, str]]:
    def series(kind: str, values: list[Any]) -> Column:
        def made() -> Any:
            pl = pytest.importorskip("polars")
            dtype = pl.Enum(list("abcd")) if kind == "Enum" else getattr(pl, kind)
            return pl.Series("c", values, dtype=dtype)

        return made

    for kind in ("Int8", "UInt64", "Float32", "Float64"):
        yield kind, series(kind, CODES.tolist()), "numbers"
        yield f"{kind}, gaps", series(kind, gappy(CODES.tolist())), "numbers, gaps"
    yield "Boolean, gaps", series("Boolean", gappy(FLAGS.tolist())), "booleans, gaps"
    yield "Decimal", series("Decimal", [Decimal(int(code)) for code in CODES]), "numbers"
    for kind in ("String", "Categorical", "Enum"):
        yield kind, series(kind, WORDS.tolist()), "text"
        yield f"{kind}, gaps", series(kind, gappy(WORDS)), "text, gaps"
    yield "Null", series("Null", [None] * ROWS), "missing"
    yield "Int128", series("Int128", CODES.tolist()), "expected an array or a frame"
    for kind, days in (("Date", DAYS), ("Datetime", TIMES)):
        yield kind, series(kind, days), "dates"
    unusable: dict[str, list[Any]] = {"Duration": [timedelta(1)] * ROWS, "Time": [time(1)] * ROWS}
    unusable |= {"Binary": [b"a"] * ROWS, "Object": [object()] * ROWS}
    for kind, values in unusable.items():
        yield kind, series(kind, values), UNUSABLE


COLUMNS = {
    f"{library}: {name}": (column, meaning)
    for library, columns in {
        "NumPy": numpy_columns(),
        "objects": object_columns(),
        "pandas": pandas_columns(),
        "Arrow": arrow_columns(),
        "polars": polars_columns(),
    }.items()
    for name, column, meaning in columns
}


def tables_of(column: Any) -> Iterator[Any]:
    """Yield tables with the column c, and z: those of the column's own library, and lazy ones."""
    column = column() if callable(column) else column
    if isinstance(column, pa.Array):
        yield pa.table({"c": column, "z": OTHER})
    elif type(column).__module__.startswith("polars"):
        pl = pytest.importorskip("polars")
        yield pl.DataFrame({"c": column, "z": OTHER})
        yield pl.DataFrame({"c": column, "z": OTHER}).lazy()
    else:
        yield pd.DataFrame({"c": column, "z": OTHER})
        if isinstance(column, np.ndarray):
            array = np.zeros((ROWS, 2), dtype=column.dtype)
            array[:, 0] = column
            if column.dtype == object:
                array[:, 1] = OTHER
                yield array
            elif column.dtype.kind in "iufbcm":
                yield array


@cache
def plainest(meaning: str, *, has_other: bool = True) -> tuple[list[str], Any]:
    """Return the names of the terms and the predictions of the plainest column of a meaning."""
    X = pd.DataFrame({"c": MEANINGS[meaning], "z": OTHER if has_other else 0.0})
    fitted = AnytimeRegressor(GROUPS, alpha=1e-3).fit(X, Y)
    return list(fitted.get_feature_names_out()), fitted.predict(X)


GROUPS = {"groups": [{"name": "one", "features": ["c"], "cost": 1}, {"name": "two", "features": ["z"], "cost": 1}]}


def one_line(caught: pytest.ExceptionInfo[AnytimeError]) -> None:
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    assert "pydantic" not in message


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_any_type_is_what_it_means_or_one_line(name: str, method: str) -> None:
    column, meaning = COLUMNS[name]
    for X in tables_of(column):
        estimator = AnytimeRegressor(GROUPS, alpha=1e-3)
        if meaning not in MEANINGS:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always", AnytimeWarning)
                try:
                    getattr(estimator, method)(X, Y)
                except AnytimeError as error:
                    message = str(error)
                else:  # the column is left out
                    message = next(str(each.message) for each in said if "left out" in str(each.message))
            assert re.search(meaning, message)
            assert len(message.splitlines()) == 1
            continue
        fitted = getattr(estimator, method)(X, Y)
        terms, predictions = plainest(meaning, has_other=not isinstance(X, np.ndarray) or X.dtype == object)
        assert list(fitted.get_feature_names_out()) == terms
        np.testing.assert_allclose(fitted.predict(X), predictions, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in COLUMNS if not name.startswith("polars")])
def test_a_model_reads_a_column_of_any_type_by_the_types_of_training(name: str) -> None:
    """Predictions of a model of numbers, and of one of text, are right, or one line."""
    column = COLUMNS[name][0]
    for meaning in ("numbers, gaps", "text, gaps"):
        plain = pd.DataFrame({"c": MEANINGS[meaning], "z": OTHER})
        fitted = AnytimeRegressor(GROUPS, alpha=1e-3).fit(plain, Y)
        for X in tables_of(column):
            if isinstance(X, np.ndarray):
                continue
            if COLUMNS[name][1] == meaning:
                np.testing.assert_allclose(fitted.predict(X), fitted.predict(plain), rtol=1e-9)
                continue
            with suppress(AnytimeError):
                assert np.isfinite(fitted.predict(X)).all()


def files_of(column: Any) -> Iterator[Path]:
    """Write the files that can hold the column c, with z and y."""
    is_coded = getattr(column, "dtype", None) == "category" or isinstance(column, pa.DictionaryArray)
    try:
        table = pa.table({"c": column if isinstance(column, pa.Array) else pd.Series(column), "z": OTHER, "y": Y})
        pa.parquet.write_table(table, "t.parquet")
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return  # no such file exists
    if not is_coded:  # Parquet has dictionaries of text only
        yield Path("t.parquet")
    pa.feather.write_feather(table, "t.arrow", compression="uncompressed")
    yield Path("t.arrow")


@pytest.fixture
def desk(desk: Path) -> Path:
    Path("g.json").write_text(json.dumps(GROUPS))
    return desk


TRAIN = [
    "--groups",
    "g.json",
    "--target",
    "y",
    "--alpha",
    "0.001",
    "--folds",
    "0",
    "--basis",
    "linear",
    "--clamp",
    "off",
]


@pytest.mark.parametrize("name", [name for name in COLUMNS if not name.startswith(("polars", "objects"))])
def test_commands_read_a_column_of_any_type_or_say_why_not(
    name: str, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    column, meaning = COLUMNS[name]
    if meaning == "dates":  # --basis states another one
        Path("g.json").write_text(json.dumps(GROUPS | {"bases": {"c": "date"}}))
    for path in files_of(column):
        capsys.readouterr()
        found = main(["train", str(path), *TRAIN, "--out", "m.safetensors"])
        errors = capsys.readouterr().err.splitlines()
        if meaning not in MEANINGS:
            if found == 0:  # Parquet has no durations of seconds
                continue
            assert found == 2, errors
            assert errors[-1].startswith("error: ")
            continue
        assert found == 0, errors
        assert main(["evaluate", "m.safetensors", str(path), "--json"]) == 0
        terms, predictions = plainest(meaning)
        assert list(load("m.safetensors").terms.features) == terms
        evaluated = json.loads(capsys.readouterr().out)["prefixes"][-1]["mse"]
        assert evaluated == pytest.approx(np.mean((predictions - Y) ** 2), rel=1e-9)


# Answers

CELLS: dict[str, tuple[Any, float | str | None]] = {
    "int": (2, 2.0),
    "float": (2.0, 2.0),
    "bool": (True, 1.0),
    "float16": (np.float16(2), 2.0),
    "uint64": (np.uint64(2), 2.0),
    "big-endian": (np.array(2, ">f4")[()], 2.0),
    "None": (None, math.nan),
    "NaN": (math.nan, math.nan),
    "NA": (pd.NA, math.nan),
    "NaT": (pd.NaT, math.nan),
    "NaN of float32": (np.float32("nan"), math.nan),
    "text": ("b", "b"),
    "text of NumPy": (np.str_("b"), "b"),
    "empty text": ("", ""),
    "another level": ("zz", "zz"),
}
"""Values of one cell, and what each is for a column of numbers, or of text."""

NO_CELLS = {
    "bytes": b"b",
    "complex": 1j,
    "date": DAYS[0],
    "tuple": (1, 2),
    "array": np.arange(3),
    "dict": {},
    "set": {1},
    "object": object(),
    "large": 10**400,
    "infinite": math.inf,
    "1e300": 1e300,
    "interval": INTERVALS[0],
    "period": PERIODS[0],
    "type": int,
}


@pytest.mark.parametrize("meaning", ["numbers, gaps", "text, gaps"])
def test_an_answer_reads_cells_as_a_prediction_reads_a_frame(meaning: str) -> None:
    X = pd.DataFrame({"c": MEANINGS[meaning], "z": OTHER})
    fitted = AnytimeRegressor(GROUPS, alpha=1e-3).fit(X, Y)
    for name, (cell, value) in CELLS.items():
        prediction = fitted.model_.open()
        if isinstance(value, str) == (meaning == "numbers, gaps") and not pd.isna(cell):
            with pytest.raises(ValuesError) as caught:
                prediction.add("one", [cell])
            one_line(caught)
            continue
        prediction.add("one", [cell])
        prediction.add("two", [0.5])
        expected = fitted.predict(pd.DataFrame({"c": pd.Series([value], dtype=X["c"].dtype), "z": [0.5]}))
        np.testing.assert_allclose(prediction.answer().prediction, expected[0], rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("cell", NO_CELLS.values(), ids=NO_CELLS)
@pytest.mark.parametrize("meaning", ["numbers, gaps", "text, gaps"])
def test_other_cells_of_an_answer_are_one_line(meaning: str, cell: Any) -> None:
    model = AnytimeRegressor(GROUPS).fit(pd.DataFrame({"c": MEANINGS[meaning], "z": OTHER}), Y).model_
    for values, rows in (([cell], 1), ([[cell], [cell]], 2)):
        with pytest.raises(ValuesError) as caught:
            model.open(rows=rows).add("one", values)
        one_line(caught)


# Targets, weights and queries

X = pd.DataFrame({"c": CODES.astype(float), "z": OTHER})

TARGETS: dict[str, Column] = {
    **{dtype: partial(CODES.astype, dtype) for dtype in ("f2", ">f8", "longdouble", "u8", ">i4")},
    "Int64": lambda: pd.Series(CODES, dtype="Int64"),
    "category": lambda: pd.Series(CODES).astype("category"),
    "sparse": lambda: pd.Series(pd.arrays.SparseArray(CODES.astype(float))),
    "decimals": lambda: objects(*map(Decimal, range(4))),
    "fractions": lambda: objects(*map(Fraction, range(4))),
    "Arrow": lambda: pa.array(CODES),
    "list": CODES.tolist,
    "polars": lambda: pytest.importorskip("polars").Series(CODES),
    "text": lambda: CODES.astype(str),
}


@pytest.mark.parametrize("made", TARGETS.values(), ids=TARGETS)
def test_a_target_may_have_any_type_of_numbers(made: Column) -> None:
    for method in ("fit", "partial_fit"):
        fitted = getattr(AnytimeRegressor(alpha=1e-9), method)(X, made())
        np.testing.assert_allclose(fitted.predict(X), CODES, atol=1e-6)


NO_TARGETS: dict[str, Column] = {
    "complex": lambda: Y + 1j,
    "dates": lambda: pd.Series(TIMES),
    "durations": lambda: pd.Series(TIMES) - TIMES[0],
    "intervals": lambda: pd.Series(INTERVALS),
    "periods": lambda: pd.Series(PERIODS),
    "bytes": lambda: objects(b"a", b"b"),
    "tuples": lambda: objects((1, 2), (3, 4)),
    "None": lambda: [None] * ROWS,
    "some None": lambda: objects(1.0, None),
    "NaN": lambda: np.where(GAPS, np.nan, Y),
    "infinite": lambda: np.where(GAPS, np.inf, Y),
    "1e-300": lambda: Y * 1e-300,
    "1e300": lambda: Y * 1e300,
    "1e308": lambda: np.where(FLAGS, 1e308, -1e308),
    "void": lambda: np.zeros(ROWS, "V4"),
    "objects": lambda: objects(object(), object()),
}


@pytest.mark.parametrize("kind", [AnytimeRegressor, AnytimeClassifier])
@pytest.mark.parametrize("made", NO_TARGETS.values(), ids=NO_TARGETS)
def test_another_target_is_one_line(made: Column, kind: Any) -> None:
    for method in ("fit", "partial_fit"):
        estimator = kind(family="gaussian")
        if method == "fit" and kind is AnytimeClassifier:
            estimator = kind()
        y = made()
        if kind is AnytimeClassifier and getattr(getattr(y, "dtype", None), "kind", "") == "f" and len(set(y)) == 2:
            continue  # two classes, whatever they are
        with pytest.raises(AnytimeError) as caught:
            getattr(estimator, method)(X, y)
        one_line(caught)


@pytest.mark.parametrize("kind", [AnytimeRegressor, AnytimeClassifier])
@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: [None, *WORDS[1:]], "y has no value in 1 row, the first in row 0"),
        (lambda: [math.nan, *WORDS[1:]], "y has no value in 1 row, the first in row 0"),
        (lambda: objects(1.5, pd.NA), f"y has no value in {ROWS // 2} rows, the first in row"),
        (lambda: pl.Series([*Y[:-1], None]), f"y has no value in 1 row, the first in row {ROWS - 1}"),
        (lambda: [1, *WORDS[1:]], "y holds numbers and text; expected numbers, or text, in every row"),
        (lambda: objects(date(2020, 1, 1), date(2020, 1, 2)), "y holds date; expected numbers, or text, in every row"),
    ],
)  # fmt: skip
def test_an_error_about_the_target_names_it_and_the_row(made: Column, said: str, kind: Any) -> None:
    with pytest.raises(TableError, match=re.escape(said)):
        kind().fit(X, made())


def test_dates_beyond_the_calendar_leave_their_column_out(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = np.where(np.arange(ROWS) % 9 == 5, 2**39, np.arange(ROWS) * 10**6)
    frame = pa.table({"a": Y, "when": pa.array(seconds, pa.timestamp("s"))})
    said = "'when' holds {} dates beyond the years 1 to 9999, the first in row 5 (counted from 0)"
    many = said.format(int((seconds == 2**39).sum()))
    with pytest.warns(AnytimeWarning, match=re.escape(f"left out 1 column: {many}")):
        assert AnytimeRegressor().fit(frame, Y).sequence_ == ["a"]
    near = frame.set_column(1, "when", pa.array(np.arange(ROWS) * 10**6, pa.timestamp("s")))
    fitted = AnytimeRegressor().fit(near, Y)
    fitted.save("m.safetensors")
    pa.parquet.write_table(frame, "far.parquet")
    for predict in (fitted.predict, fitted.model_.predict):
        with pytest.raises(TableError, match=re.escape(f"{many}; expected dates of these years")):
            predict(frame)
    assert main(["predict", "m.safetensors", "far.parquet", "--out", "p.csv"]) == 2
    assert f"far.parquet: column {many}" in capsys.readouterr().err


@pytest.mark.parametrize("size", [1e-140, 1e-30, 1e30, 1e140])
def test_a_target_of_any_size_is_predicted(size: float) -> None:
    predictions = AnytimeRegressor(alpha=1e-3).fit(X, Y * size).predict(X)
    np.testing.assert_allclose(predictions / size, AnytimeRegressor(alpha=1e-3).fit(X, Y).predict(X), rtol=1e-9)


def test_values_too_small_to_square_do_not_matter_next_to_larger_ones() -> None:
    shares = np.where(np.arange(ROWS) < ROWS // 2, CODES * 1e-200, CODES)
    fitted = AnytimeRegressor(alpha=1e-9, cv=2).fit(shares[:, np.newaxis], shares)
    np.testing.assert_allclose(fitted.predict(shares[:, np.newaxis]), shares, atol=1e-6)


def test_terms_that_are_constant_in_a_table_are_no_small_values(desk: Path) -> None:
    pd.DataFrame({"c": WORDS, "z": OTHER, "y": Y}).to_csv("all.csv", index=False)
    pd.DataFrame({"c": WORDS, "z": OTHER, "y": Y})[FLAGS].to_csv("some.csv", index=False)
    assert main(["train", "all.csv", *TRAIN, "--test", "some.csv", "--out", "m.safetensors"]) == 0
    assert main(["evaluate", "m.safetensors", "some.csv"]) == 0
    numbers = np.where(np.arange(ROWS) == 0, 9.0, np.where(np.arange(ROWS) == 1, -9.0, 0.0))
    fitted = AnytimeRegressor(clamp=0.1).fit(numbers[:, np.newaxis], Y)
    np.testing.assert_allclose(fitted.predict(numbers[:, np.newaxis]), Y.mean(), rtol=1e-9)


@pytest.mark.parametrize("options", [{}, {"basis": "hinge:2"}, {"basis": "auto", "alpha": "cv"}])
@pytest.mark.parametrize("weight", [1e-100, 1e-30, 0.1, 1 / ROWS])
def test_only_the_ratios_of_weights_count(weight: float, options: dict[str, Any]) -> None:
    mixed = X.assign(word=WORDS)
    plain = AnytimeRegressor(**options).fit(mixed, Y)
    for method in ("fit", "partial_fit"):
        fitted = getattr(AnytimeRegressor(**options), method)(mixed, Y, np.full(ROWS, weight))
        assert list(fitted.get_feature_names_out()) == list(plain.get_feature_names_out())
        np.testing.assert_allclose(fitted.predict(mixed), plain.predict(mixed), rtol=1e-7)


@pytest.mark.parametrize("weight", [1e20, 1e100])
def test_weights_may_be_large(weight: float) -> None:
    fitted = AnytimeRegressor(alpha="cv").fit(X, Y, np.full(ROWS, weight))
    np.testing.assert_allclose(fitted.predict(X), AnytimeRegressor(alpha="cv").fit(X, Y).predict(X), rtol=1e-7)


NO_WEIGHTS = {
    "infinite": math.inf,
    "missing": math.nan,
    "negative": -1.0,
    "1e300": 1e300,
    "5e-324": 5e-324,
    "complex": 1j,
    "text": "heavy",
    "large": 10**400,
    "date": DAYS[0],
    "tuple": (1, 2),
}


@pytest.mark.parametrize("weight", NO_WEIGHTS.values(), ids=NO_WEIGHTS)
def test_another_weight_is_one_line(weight: Any) -> None:
    weights = objects(1.0)
    weights[5] = weight
    for given in (weights, [*weights]):
        for method in ("fit", "partial_fit"):
            with pytest.raises((TrainingError, TableError), match="sample_weight") as caught:
                getattr(AnytimeRegressor(), method)(X, Y, given)
            one_line(caught)


KEYS: dict[str, Column] = {
    "text": lambda: WORDS,
    "uint64": lambda: CODES.astype("u8") + np.uint64(2**63),
    "integers beyond 64 bits": lambda: [10**20 + int(code) for code in CODES],
    "some beyond 63 bits": lambda: [2**63 + int(code) if code else 1 for code in CODES],
    "decimals": lambda: [Decimal(10**30 + int(code)) for code in CODES],
    "float16": lambda: CODES.astype("f2"),
    "longdouble": lambda: CODES.astype("longdouble"),
    "big-endian": lambda: CODES.astype(">i8"),
    "bytes": lambda: WORDS.astype("S3"),
    "dates": lambda: DAYS,
    "UUIDs": lambda: [UUID(int=int(code)) for code in CODES],
    "category": lambda: pd.Series(WORDS).astype("category"),
    "Int64": lambda: pd.Series(CODES, dtype="Int64"),
    "sparse": lambda: pd.Series(pd.arrays.SparseArray(CODES)),
    "decimals of Arrow": lambda: pa.array([Decimal(10**30 + int(code)) for code in CODES]),
    "polars": lambda: pytest.importorskip("polars").Series(CODES),
}


def errors_by_query(query: Any) -> Any:
    return np.array(AnytimeRegressor(alpha="cv", cv=3).fit(X, Y, query=query).curve_.cv_error).tolist()


@pytest.mark.parametrize("made", KEYS.values(), ids=KEYS)
def test_keys_of_any_type_compare_exactly(made: Column) -> None:
    assert errors_by_query(made()) == errors_by_query(CODES)


NO_KEYS: dict[str, Column] = {
    "tuples": lambda: [(int(code), 1) for code in CODES],
    "a frame": lambda: pd.DataFrame({"q": CODES}),
    "missing": lambda: gappy(CODES.tolist()),
    "missing text": lambda: gappy(WORDS),
    "empty text": lambda: objects("", "a"),
    "NaN": lambda: MEANINGS["numbers, gaps"],
    "missing Int64": lambda: pd.Series(gappy(CODES), dtype="Int64"),
    "complex": lambda: CODES + 1j,
    "bytes of no text": lambda: objects(b"\xff", b"a"),
    "too few": lambda: CODES[1:],
    "a number": lambda: 3,
    "ragged": lambda: [[1], *CODES[1:].tolist()],
    "objects": lambda: objects(object(), object()),
    "intervals": lambda: pd.Series(INTERVALS),
}


@pytest.mark.parametrize("made", NO_KEYS.values(), ids=NO_KEYS)
def test_other_keys_are_one_line(made: Column) -> None:
    with pytest.raises(AnytimeError) as caught:
        errors_by_query(made())
    one_line(caught)


# The same rows from every source

MIXED: dict[str, list[Any]] = {
    "city": gappy(np.array(["Oslo", "Rome", "Bonn", "NA"], dtype=object)[CODES]),
    "member": FLAGS.tolist(),
    "visits": gappy(((np.arange(ROWS) * 7) % 11).tolist()),
    "weight": np.cos(1.7 * np.arange(ROWS)).round(3).tolist(),
}
TARGET = [
    float(round(y + w + 0.3 * (v or 0) * m, 6))
    for y, w, v, m in zip(Y, MIXED["weight"], MIXED["visits"], MIXED["member"], strict=True)
]
IMPORTANCE = (1.0 + np.arange(ROWS) % 3).tolist()
QUERY = [f"{10**19 + k // 4}" for k in range(ROWS)]
ROLES: dict[str, list[Any]] = {"y": TARGET, "importance": IMPORTANCE, "request": QUERY}
MIXED_GROUPS = {
    "groups": [
        {"name": "who", "features": ["city", "member"], "cost": 1.0},
        {"name": "what", "features": ["visits", "weight"], "cost": 2.0},
    ]
}


def in_memory(library: str) -> Any:
    if library == "array":
        array = np.empty((ROWS, len(MIXED)), dtype=object)
        for j, column in enumerate(MIXED.values()):
            array[:, j] = column
        return array
    if library == "pandas":
        return pd.DataFrame(MIXED)
    if library == "polars":
        return pytest.importorskip("polars").DataFrame(MIXED)
    if library == "duckdb":
        duckdb = pytest.importorskip("duckdb")
        pa.parquet.write_table(pa.table(MIXED), "mixed.parquet")
        return duckdb.connect().read_parquet("mixed.parquet")
    return pa.table(MIXED)


def on_disk(suffix: str) -> str:
    table = pa.table({**MIXED, **ROLES})
    if suffix == "parquet":
        pa.parquet.write_table(table, "t.parquet", row_group_size=31)
    elif suffix == "arrow":
        pa.feather.write_feather(table, "t.arrow", compression="uncompressed", chunksize=31)
    else:
        frame = table.to_pandas().astype({"visits": "Int64"})
        frame.to_csv("t.csv", index=False)
    return f"t.{suffix}"


@pytest.mark.parametrize(
    ("basis", "folds"), [("linear", 4), ("auto", 4), ("hinge:2", 4), ("linear", 0), ("hinge:2", 0)]
)
@pytest.mark.parametrize("has_query", [False, True])
@pytest.mark.parametrize("has_weights", [False, True])
def test_the_same_rows_from_every_source_are_the_same_model(
    has_weights: bool, has_query: bool, basis: str, folds: int, desk: Path
) -> None:
    Path("g.json").write_text(json.dumps(MIXED_GROUPS))
    weights, query = IMPORTANCE if has_weights else None, QUERY if has_query else None
    alpha: Any = "cv" if folds else 0.01
    models = {}
    for library in ("array", "pandas", "polars", "pyarrow", "duckdb"):
        estimator = AnytimeRegressor(MIXED_GROUPS, alpha=alpha, cv=folds or None, basis=basis)
        models[library] = estimator.fit(in_memory(library), TARGET, weights, query).model_
    for suffix in ("csv", "parquet", "arrow"):
        command = ["train", on_disk(suffix), "--groups", "g.json", "--target", "y", "--alpha", str(alpha)]
        command += ["--folds", str(folds)]
        command += [*["--weights", "importance"] * has_weights, *["--query", "request"] * has_query]
        assert main([*command, "--basis", basis, "--number", "visits", "--out", f"{suffix}.safetensors"]) == 0
        models[suffix] = load(f"{suffix}.safetensors")
    first = models["pyarrow"]
    for name, model in models.items():
        assert model.terms.features == first.terms.features, name
        assert model.computed == first.computed, name
        assert [step.alpha for step in model.manifest.steps] == [step.alpha for step in first.manifest.steps], name
        assert all((step.cv_error is None) == (not folds) for step in model.manifest.steps), name
        np.testing.assert_allclose(model.prefixes.packed, first.prefixes.packed, rtol=1e-12, atol=1e-12, err_msg=name)


def test_a_sparse_matrix_is_its_array() -> None:
    numbers = np.column_stack([CODES * 1.0, np.where(GAPS, OTHER, 0.0)])
    for options in ({}, {"basis": "hinge:2"}, {"alpha": "cv", "cv": 3}):
        dense, sparse = (
            AnytimeRegressor(**options).fit(X, Y, IMPORTANCE, QUERY) for X in (numbers, csr_array(numbers))
        )
        np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-12, atol=1e-12)


def in_pieces(library: str) -> list[Any]:
    """Return the same frame in one piece and in three."""
    whole = pa.table(MIXED)
    pieces = [whole[:9], whole[9:50], whole[50:]]
    if library == "pyarrow":
        return [whole, pa.concat_tables(pieces)]
    if library == "pandas":
        frames = [each.to_pandas(types_mapper=pd.ArrowDtype) for each in (whole, *pieces)]
        return [frames[0], pd.concat(frames[1:])]
    pl = pytest.importorskip("polars")
    return [pl.from_arrow(whole), pl.concat(map(pl.from_arrow, pieces), rechunk=False)]


@pytest.mark.parametrize("library", ["pyarrow", "pandas", "polars"])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_a_frame_in_several_pieces_is_one_table(method: str, library: str) -> None:
    whole, pieces = in_pieces(library)
    one, other = (getattr(AnytimeRegressor(MIXED_GROUPS, alpha=0.01), method)(each, TARGET) for each in (whole, pieces))
    for budget in (None, 2.0, 0.0):
        np.testing.assert_allclose(other.predict(pieces, budget), one.predict(whole, budget), rtol=1e-11)
        np.testing.assert_array_equal(one.predict(pieces, budget), one.predict(whole, budget))


def test_a_lazy_frame_that_fails_is_one_line() -> None:
    pl = pytest.importorskip("polars")
    with pytest.raises(TableError, match=r"X is a LazyFrame that gives no table: .*zz") as caught:
        AnytimeRegressor().fit(pl.LazyFrame({"a": CODES}).with_columns(pl.col("zz")), Y)
    one_line(caught)


@pytest.mark.parametrize("X", [{"a": list(range(500))}, 3.0, "words"], ids=["dict", "number", "text"])
def test_what_is_no_table_is_one_line_without_its_content(X: Any) -> None:
    with pytest.raises(TableError, match="Expected 2D array, got scalar array instead: Reshape") as caught:
        AnytimeRegressor().fit(X, Y)
    one_line(caught)


FILES = {
    "Latin-1 in one of several columns": ("a,t,y\n1,é,2\n2,p,3\n".encode("latin-1"), "is not UTF-8 text; save it in"),
    "a header without an end": (b"a,t,y", "has no rows; expected at least one"),
    "another kind of text": (b'[{"a": 1, "y": 2}]', "has no rows; expected at least one"),
}


@pytest.mark.parametrize(("content", "why"), FILES.values(), ids=FILES)
def test_a_file_that_is_no_table_is_one_line(
    content: bytes, why: str, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (desk / "t.csv").write_bytes(content)
    assert main(["train", "t.csv", "--target", "y", "--out", "m.safetensors"]) == 2
    assert why in capsys.readouterr().err.splitlines()[-1]


def test_a_target_of_numbers_as_text_becomes_no_classes_in_silence(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pa.parquet.write_table(pa.table({"c": CODES, "z": OTHER, "y": list(map(str, Y))}), desk / "t.parquet")
    command = ["train", "t.parquet", *TRAIN, "--out", "m.safetensors"]
    assert main(command) == 2
    said = "error: t.parquet: target 'y' holds numbers as text, such as '-0.09"
    assert capsys.readouterr().err.splitlines()[-1].startswith(said)
    assert main([*command, "--task", "multiclass"]) == 0
    assert main([*command, "--number", "y"]) == 0
    found = load("m.safetensors")
    expected = AnytimeRegressor(GROUPS, alpha=1e-3).fit(X, Y).model_
    np.testing.assert_allclose(found.prefixes.packed, expected.prefixes.packed, rtol=1e-9)
