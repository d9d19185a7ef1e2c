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

from anytime import AnytimeClassifier, AnytimeRegressor, AnytimeWarning, load
from anytime.cli.main import main
from anytime.errors import AnytimeError, TableError, TrainingError, ValuesError
from models.commands import document, refusal
from models.refusals import assert_refused

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


NO_VALUES = {"None": None, "NaN": math.nan, "NA": pd.NA, "NaT": pd.NaT}
WHOLE = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", ">i2", ">i8", ">u4")
FLOATS = ("float16", "float32", "float64", "longdouble", ">f2", ">f4", ">f8")
NULLABLE = ("Int8", "Int64", "UInt8", "UInt64", "Float32", "Float64")
STRINGS = ("string", "string[python]", "string[pyarrow]", "category")
REALS = (pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.decimal128(9, 2), pa.decimal256(50))
TEXTS = (pa.string(), pa.large_string(), pa.string_view())
MOMENTS = (pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("us", "UTC"), pa.timestamp("ns", "Asia/Tokyo"))
ENDS = pa.array(range(1, ROWS + 1), pa.int32())


def coded(of_codes: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(CODES.astype(np.int32)), of_codes)


def series(kind: str, values: Any) -> Any:
    return pl.Series("c", list(values), dtype=pl.Enum(list("abcd")) if kind == "Enum" else getattr(pl, kind))


LIBRARIES: dict[str, dict[str, dict[str, Any]]] = {
    "NumPy": {
        "numbers": {
            **{dtype: CODES.astype(dtype) for dtype in (*WHOLE, *FLOATS)},
            "1e-100": CODES * 1e-100,
            "1e99": CODES * 1e99,
            "1e-40 in float32": CODES.astype("f4") * np.float32(1e-40),
        },
        "numbers, gaps": {
            f"{dtype}, NaN": MEANINGS["numbers, gaps"].astype(dtype) for dtype in ("float16", ">f4", "longdouble")
        },
        "booleans": {"bool": FLAGS},
        "text": {dtype: WORDS.astype(dtype) for dtype in ("U1", ">U3")},
        "dates": {dtype: np.array(TIMES, dtype=dtype) for dtype in ("M8[ns]", "M8[s]", "M8[D]")},
        "missing": {"missing": np.full(ROWS, np.nan)},
        "constant": {"constant": np.full(ROWS, 3.0)},
        UNUSABLE: {
            **{dtype: CODES.astype("i8").astype(dtype) for dtype in ("complex64", "complex128", "m8[s]", "S2")},
            "void": np.zeros(ROWS, "V4"),
            "structured": np.zeros(ROWS, [("a", int), ("b", float)]),
        },
        "too small to square; rescale it": {f"{size}": CODES * size for size in (1e-300, 1e-320, 1e-200)},
        "too large to square; rescale or fix it": {f"{size}": CODES * size for size in (1e300, 5e307)},
        "infinite values": {"1e4000": CODES.astype("longdouble") * np.longdouble("1e4000")},
        "infinite value": {"infinite": np.where(CODES == 1, np.inf, CODES)},
    },
    "objects": {
        "numbers": {
            "ints": objects(0, 1, 2, 3),
            "floats and ints": objects(0, 1.0, 2, np.float32(3)),
            "decimals": objects(*map(Decimal, range(4))),
            "decimals and ints": objects(0, Decimal(1), 2, 3),
            "fractions": objects(Fraction(0), Fraction(2, 2), 2, 3),
            "NumPy's numbers": objects(np.int8(0), np.uint64(1), np.float16(2), np.float64(3)),
            "beyond 64 bits": objects(*(10**30 * code for code in range(4))),
            "2^63": objects(*(2**62 * code for code in range(4))),
            "beyond 76 digits": objects(*(10**90 * code for code in range(4))),
        },
        "numbers, gaps": {
            f"ints, {name}": np.where(GAPS, objects(gap), objects(0, 1, 2, 3)) for name, gap in NO_VALUES.items()
        },
        "booleans, gaps": {"booleans, None": np.where(GAPS, objects(None), FLAGS.astype(object))},
        "text": {"text of NumPy": objects(*map(np.str_, "abcd"))},
        "text, gaps": {
            f"text, {name}": np.where(GAPS, objects(gap), WORDS) for name, gap in {**NO_VALUES, "empty": ""}.items()
        },
        "dates": {
            "dates": np.array(DAYS, dtype=object),
            "datetimes": np.array(TIMES, dtype=object),
            "Timestamps": np.array([*map(pd.Timestamp, TIMES)], dtype=object),
            "ISO text": np.array([f"{day}T00:00:00Z" for day in DAYS], dtype=object),
        },
        "missing": {"None": objects(None)},
        UNUSABLE: {
            "ints and text": objects(1, "a"),
            "booleans and ints": objects(True, 2),
            "complex": objects(1j, 2j),
            "bytes": objects(b"a", b"b"),
            "bytes of no text": objects(b"\xff", b"\xfe"),
            "tuples": objects((1, 2), (3, 4)),
            "lists": objects([1], [2, 3]),
            "dicts": objects({"a": 1}, {"a": 2}),
            "sets": objects({1}, {2}),
            "arrays": objects(np.array([1]), np.array([2])),
            "objects": objects(object(), object()),
            "types": objects(int, str),
            "an enum": objects(*Colour),
            "UUIDs": objects(UUID(int=1), UUID(int=2)),
            "times": objects(time(1), time(2)),
            "durations": objects(timedelta(1), timedelta(2)),
            "Periods": objects(*PERIODS[:4]),
            "Intervals": objects(*INTERVALS[:4]),
        },
        "infinite values": {"infinite decimals": objects(Decimal("Infinity"), Decimal(1))},
        "numbers in another form": {"numbers in another form": objects("1.234,56", "7,5")},
    },
    "pandas": {
        "numbers": {
            **{dtype: pd.Series(CODES).astype(dtype) for dtype in NULLABLE},
            **{
                f"{kind} of Arrow": pd.Series(CODES, dtype=pd.ArrowDtype(kind))
                for kind in (pa.int8(), pa.uint64(), pa.float32())
            },
            "category of floats": pd.Categorical(CODES + 0.5),
            "sparse": pd.arrays.SparseArray(CODES.astype(float), fill_value=0.0),
            "sparse ints": pd.arrays.SparseArray(CODES),
        },
        "numbers, gaps": {
            **{f"{dtype}, gaps": pd.Series(gappy(CODES), dtype=dtype) for dtype in NULLABLE},
            "sparse, NaN": pd.arrays.SparseArray(MEANINGS["numbers, gaps"]),
            "NaN in Float64": pd.Series(MEANINGS["numbers, gaps"]).astype("Float64"),
        },
        "booleans": {"boolean": pd.Series(FLAGS).astype("boolean"), "sparse booleans": pd.arrays.SparseArray(FLAGS)},
        "booleans, gaps": {"boolean, gaps": pd.Series(gappy(FLAGS), dtype="boolean")},
        "text": {
            **{f"text as {dtype}": pd.Series(WORDS).astype(dtype) for dtype in STRINGS},
            "unused categories": pd.Categorical(WORDS, list("zdcba"), ordered=True),
        },
        "text, gaps": {f"{dtype}, gaps": pd.Series(gappy(WORDS)).astype(dtype) for dtype in STRINGS},
        "levels": {
            "category of ints": pd.Categorical(CODES),
            "category of whole floats": pd.Categorical(CODES.astype(float)),
        },
        "levels, gaps": {"category of ints, gaps": pd.Categorical(gappy(CODES))},
        "dates": {
            "dates": pd.Series(TIMES),
            "category of dates": pd.Categorical(TIMES),
            "dates of a zone": pd.Series(TIMES).dt.tz_localize("UTC").dt.tz_convert("Europe/Oslo"),
        },
        UNUSABLE: {
            "category of intervals": pd.Categorical(INTERVALS),
            "category of several types": pd.Categorical(objects(1, "a")),
            "intervals": pd.Series(INTERVALS),
            "periods": pd.Series(PERIODS),
            "durations": pd.Series(TIMES) - TIMES[0],
        },
    },
    "Arrow": {
        "numbers": {
            **{f"{kind}": pa.array(CODES.tolist(), pa.int8()).cast(kind) for kind in REALS},
            "runs": pa.RunEndEncodedArray.from_arrays(ENDS, CODES * 1.0),
        },
        "numbers, gaps": {f"{kind}, gaps": pa.array(gappy(CODES.tolist()), pa.int8()).cast(kind) for kind in REALS},
        "booleans": {"bool": pa.array(FLAGS)},
        "booleans, gaps": {"bool, gaps": pa.array(gappy(FLAGS.tolist()))},
        "text": {
            **{f"{kind}": pa.array(WORDS.tolist(), kind) for kind in TEXTS},
            **{f"dictionary of {kind}": coded(pa.array(list("abcd"), kind)) for kind in TEXTS},
            "runs of text": pa.RunEndEncodedArray.from_arrays(ENDS, WORDS),
        },
        "text, gaps": {f"{kind}, gaps": pa.array(gappy(WORDS), kind) for kind in TEXTS},
        "levels": {"dictionary of ints": coded(pa.array(range(4)))},
        "dates": {
            **{f"{kind}": pa.array(TIMES).cast(kind) for kind in MOMENTS},
            "dictionary of dates": coded(pa.array(TIMES[:4])),
        },
        "missing": {"null": pa.nulls(ROWS)},
        UNUSABLE: {
            "time32": pa.array(CODES.astype(np.int32)).cast(pa.time32("s")),
            "duration": pa.array(CODES).cast(pa.duration("s")),
            "month_day_nano_interval": pa.array([(1, 2, 3)] * ROWS, pa.month_day_nano_interval()),
            **{f"{cell!r}": pa.array([cell] * ROWS) for cell in ([1], {"a": 1}, b"a")},
        },
    },
    "polars": {
        "numbers": {
            **{kind: series(kind, CODES.tolist()) for kind in ("Int8", "UInt64", "Float32", "Float64")},
            "Decimal": series("Decimal", [Decimal(int(code)) for code in CODES]),
        },
        "numbers, gaps": {
            f"{kind}, gaps": series(kind, gappy(CODES.tolist())) for kind in ("Int8", "UInt64", "Float32", "Float64")
        },
        "booleans, gaps": {"Boolean, gaps": series("Boolean", gappy(FLAGS.tolist()))},
        "text": {kind: series(kind, WORDS.tolist()) for kind in ("String", "Categorical", "Enum")},
        "text, gaps": {f"{kind}, gaps": series(kind, gappy(WORDS)) for kind in ("String", "Categorical", "Enum")},
        "dates": {"Date": series("Date", DAYS), "Datetime": series("Datetime", TIMES)},
        "missing": {"Null": series("Null", [None] * ROWS)},
        "expected an array or a frame": {"Int128": series("Int128", CODES.tolist())},
        UNUSABLE: {
            "Duration": series("Duration", [timedelta(1)] * ROWS),
            "Time": series("Time", [time(1)] * ROWS),
            "Binary": series("Binary", [b"a"] * ROWS),
            "Object": series("Object", [object()] * ROWS),
        },
    },
}
"""Columns of each library, by their meaning, or by what is said of them."""

COLUMNS = {
    f"{library}: {name}": (column, meaning)
    for library, meanings in LIBRARIES.items()
    for meaning, columns in meanings.items()
    for name, column in columns.items()
}


def tables_of(column: Any) -> Iterator[Any]:
    """Yield tables with the column c, and z: those of the column's own library, and lazy ones."""
    columns = {"c": column, "z": OTHER}
    if isinstance(column, pa.Array):
        yield pa.table(columns)
    elif isinstance(column, pl.Series):
        yield pl.DataFrame(columns)
        yield pl.DataFrame(columns).lazy()
    else:
        yield pd.DataFrame(columns)
    if isinstance(column, np.ndarray) and column.dtype.kind in "iufbcmO":
        array = np.zeros((ROWS, 2), dtype=column.dtype)
        array[:, 0] = column
        if column.dtype == object:
            array[:, 1] = OTHER
        yield array


@cache
def plainest(meaning: str, *, has_other: bool = True) -> tuple[pd.DataFrame, AnytimeRegressor]:
    """Return the plainest column of a meaning in a table, and what is fitted to it."""
    X = pd.DataFrame({"c": MEANINGS[meaning], "z": OTHER if has_other else 0.0})
    return X, AnytimeRegressor(GROUPS, alpha=1e-3).fit(X, Y)


GROUPS = {"groups": [{"name": "one", "features": ["c"], "cost": 1}, {"name": "two", "features": ["z"], "cost": 1}]}


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
        plain, expected = plainest(meaning, has_other=not isinstance(X, np.ndarray) or X.dtype == object)
        terms = list(expected.get_feature_names_out())
        if method == "partial_fit" and meaning == "missing":
            terms = ["c", "c is missing", *terms[1:]]  # a number: later rows may have values
        assert list(fitted.get_feature_names_out()) == terms
        np.testing.assert_allclose(fitted.predict(X), expected.predict(plain), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in COLUMNS if not name.startswith("polars")])
def test_a_model_reads_a_column_of_any_type_by_the_types_of_training(name: str) -> None:
    """Predictions of a model of numbers, and of one of text, are right, or one line."""
    column = COLUMNS[name][0]
    for meaning in ("numbers, gaps", "text, gaps"):
        plain, fitted = plainest(meaning)
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
        found = main(["train", str(path), *TRAIN, "--out", "m.safetensors"])
        errors = capsys.readouterr().err.splitlines()
        if meaning not in MEANINGS:
            # Parquet has no durations of seconds.
            assert found == 0 or (found == 2 and errors[-1].startswith("error: ")), errors
            continue
        assert found == 0, errors
        plain, expected = plainest(meaning)
        assert list(load("m.safetensors").terms.features) == list(expected.get_feature_names_out())
        evaluated = document(capsys, "evaluate", "m.safetensors", str(path))["prefixes"][-1]["mse"]
        assert evaluated == pytest.approx(np.mean((expected.predict(plain) - Y) ** 2), rel=1e-9)


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
    X, fitted = plainest(meaning)
    for name, (cell, value) in CELLS.items():
        prediction = fitted.model_.open()
        if isinstance(value, str) == (meaning == "numbers, gaps") and not pd.isna(cell):
            assert_refused(partial(prediction.add, "one", [cell]), error=ValuesError)
            continue
        prediction.add("one", [cell])
        prediction.add("two", [0.5])
        expected = fitted.predict(pd.DataFrame({"c": pd.Series([value], dtype=X["c"].dtype), "z": [0.5]}))
        np.testing.assert_allclose(prediction.answer().prediction, expected[0], rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("cell", NO_CELLS.values(), ids=NO_CELLS)
@pytest.mark.parametrize("meaning", ["numbers, gaps", "text, gaps"])
def test_other_cells_of_an_answer_are_one_line(meaning: str, cell: Any) -> None:
    model = plainest(meaning)[1].model_
    for values, rows in (([cell], 1), ([[cell], [cell]], 2)):
        assert_refused(partial(model.open(rows=rows).add, "one", values), error=ValuesError)


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
    "polars": lambda: pl.Series(CODES),
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
        estimator = kind() if method == "fit" and kind is AnytimeClassifier else kind(family="gaussian")
        y = made()
        if kind is AnytimeClassifier and getattr(getattr(y, "dtype", None), "kind", "") == "f" and len(set(y)) == 2:
            continue  # two classes, whatever they are
        assert_refused(partial(getattr(estimator, method), X, y), error=AnytimeError)


EXPECTED = "expected numbers, booleans or text in every row"


@pytest.mark.parametrize("kind", [AnytimeRegressor, AnytimeClassifier])
@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: [None, *WORDS[1:]], "y has no value in 1 row, the first in row 0"),
        (lambda: [math.nan, *WORDS[1:]], "y has no value in 1 row, the first in row 0"),
        (lambda: objects(1.5, pd.NA), f"y has no value in {ROWS // 2} rows, the first in row"),
        (lambda: pl.Series([*Y[:-1], None]), f"y has no value in 1 row, the first in row {ROWS - 1}"),
        (lambda: [1, *WORDS[1:]], f"y holds numbers and text; {EXPECTED}"),
        (lambda: objects(date(2020, 1, 1), date(2020, 1, 2)), f"y holds date; {EXPECTED}"),
    ],
)  # fmt: skip
def test_an_error_about_the_target_names_it_and_the_row(made: Column, said: str, kind: Any) -> None:
    assert_refused(lambda: kind().fit(X, made()), said)


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
        assert_refused(partial(predict, frame), f"{many}; expected dates of these years")
    said = refusal(capsys, "predict", "m.safetensors", "far.parquet", "--out", "p.csv")
    assert f"far.parquet: column {many}" in said


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


@pytest.mark.parametrize(
    ("weight", "options"),
    [
        *(
            (weight, options)
            for weight in (1e-100, 1e-30, 0.1, 1 / ROWS)
            for options in ({}, {"basis": "hinge:2"}, {"basis": "auto", "alpha": "cv"})
        ),
        *((weight, {"alpha": "cv"}) for weight in (1e20, 1e100)),  # rows of more than 1 count as that many
    ],
)
def test_only_the_ratios_of_weights_count(weight: float, options: dict[str, Any]) -> None:
    mixed = X.assign(word=WORDS)
    plain = AnytimeRegressor(**options).fit(mixed, Y)
    for method in ("fit", "partial_fit"):
        fitted = getattr(AnytimeRegressor(**options), method)(mixed, Y, np.full(ROWS, weight))
        assert list(fitted.get_feature_names_out()) == list(plain.get_feature_names_out())
        np.testing.assert_allclose(fitted.predict(mixed), plain.predict(mixed), rtol=1e-7)


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
            fit = partial(getattr(AnytimeRegressor(), method), X, Y, given)
            assert_refused(fit, "sample_weight", error=(TrainingError, TableError))


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
    "polars": lambda: pl.Series(CODES),
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
    "too many": lambda: [*CODES, 1],
    "a number": lambda: 3,
    "ragged": lambda: [[1], *CODES[1:].tolist()],
    "objects": lambda: objects(object(), object()),
    "intervals": lambda: pd.Series(INTERVALS),
}


@pytest.mark.parametrize("made", NO_KEYS.values(), ids=NO_KEYS)
def test_other_keys_are_one_line(made: Column) -> None:
    assert_refused(lambda: errors_by_query(made()), error=AnytimeError)


# The same rows from every source

MIXED: dict[str, list[Any]] = {
    "city": gappy(np.array(["Oslo", "Rome", "Bonn", "NA"], dtype=object)[CODES]),
    "member": FLAGS.tolist(),
    "visits": gappy(((np.arange(ROWS) * 7) % 11).tolist()),
    "weight": np.cos(1.7 * np.arange(ROWS)).round(3).tolist(),
    "day": [datetime(1900 + 13 * row % 97, 5, 17) for row in range(ROWS)],
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
        {"name": "what", "features": ["visits", "weight", "day"], "cost": 2.0},
    ]
}


def in_duckdb() -> Any:
    duckdb = pytest.importorskip("duckdb")
    pa.parquet.write_table(pa.table(MIXED), "mixed.parquet")
    return duckdb.connect().read_parquet("mixed.parquet")


IN_MEMORY: dict[str, Column] = {
    "array": lambda: np.array([*zip(*MIXED.values(), strict=True)], dtype=object),
    "pandas": lambda: pd.DataFrame(MIXED),
    "polars": lambda: pl.DataFrame(MIXED),
    "pyarrow": lambda: pa.table(MIXED),
    "duckdb": in_duckdb,
}
ON_DISK: dict[str, Callable[[pa.Table, str], object]] = {
    "csv": lambda table, path: table.to_pandas().astype({"visits": "Int64"}).to_csv(path, index=False),
    "parquet": partial(pa.parquet.write_table, row_group_size=31),
    "arrow": partial(pa.feather.write_feather, compression="uncompressed", chunksize=31),
}


@pytest.mark.parametrize(
    ("basis", "folds", "has_query", "has_weights"),
    [
        *(("linear", 4, has_query, has_weights) for has_query in (False, True) for has_weights in (False, True)),
        ("auto", 4, False, True),
        ("auto", 4, True, False),
        ("hinge:2", 4, False, False),
        ("hinge:2", 4, True, True),
        ("linear", 0, False, True),
        ("hinge:2", 0, False, False),
    ],
)
def test_the_same_rows_from_every_source_are_the_same_model(
    has_weights: bool, has_query: bool, basis: str, folds: int, desk: Path
) -> None:
    Path("g.json").write_text(json.dumps(MIXED_GROUPS))
    weights, query = IMPORTANCE if has_weights else None, QUERY if has_query else None
    alpha: Any = "cv" if folds else 0.01
    models = {}
    for library, table in IN_MEMORY.items():
        estimator = AnytimeRegressor(MIXED_GROUPS, alpha=alpha, cv=folds or None, basis=basis)
        models[library] = estimator.fit(table(), TARGET, weights, query).model_
    options = ["--target", "y", "--alpha", str(alpha), "--folds", str(folds), "--basis", basis, "--number", "visits"]
    options += [*["--weights", "importance"] * has_weights, *["--query", "request"] * has_query]
    for suffix, write in ON_DISK.items():
        write(pa.table({**MIXED, **ROLES}), f"t.{suffix}")
        assert main(["train", f"t.{suffix}", "--groups", "g.json", *options, "--out", f"{suffix}.safetensors"]) == 0
        models[suffix] = load(f"{suffix}.safetensors")
    first = models["pyarrow"]
    for name, model in models.items():
        assert model.terms.features == first.terms.features, name
        assert model.computed == first.computed, name
        assert [step.alpha for step in model.manifest.steps] == [step.alpha for step in first.manifest.steps], name
        assert all((step.cv_error is None) == (not folds) for step in model.manifest.steps), name
        np.testing.assert_allclose(model.prefixes.packed, first.prefixes.packed, rtol=1e-11, atol=1e-11, err_msg=name)


def in_pieces(library: str) -> list[Any]:
    """Return the same frame in one piece and in three."""
    whole = pa.table(MIXED)
    pieces = [whole[:9], whole[9:50], whole[50:]]
    if library == "pyarrow":
        return [whole, pa.concat_tables(pieces)]
    if library == "pandas":
        frames = [each.to_pandas(types_mapper=pd.ArrowDtype) for each in (whole, *pieces)]
        return [frames[0], pd.concat(frames[1:])]
    return [pl.DataFrame(whole), pl.concat(map(pl.DataFrame, pieces), rechunk=False)]


@pytest.mark.parametrize("library", ["pyarrow", "pandas", "polars"])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_a_frame_in_several_pieces_is_one_table(method: str, library: str) -> None:
    whole, pieces = in_pieces(library)
    one, other = (getattr(AnytimeRegressor(MIXED_GROUPS, alpha=0.01), method)(each, TARGET) for each in (whole, pieces))
    for budget in (None, 2.0, 0.0):
        np.testing.assert_allclose(other.predict(pieces, budget), one.predict(whole, budget), rtol=1e-11)
        np.testing.assert_array_equal(one.predict(pieces, budget), one.predict(whole, budget))


def test_a_lazy_frame_that_fails_is_one_line() -> None:
    lazy = pl.LazyFrame({"a": CODES}).with_columns(pl.col("zz"))
    assert_refused(lambda: AnytimeRegressor().fit(lazy, Y), "X is a LazyFrame that is not a table: ", "zz")


@pytest.mark.parametrize("X", [{"a": list(range(500))}, 3.0, "words"], ids=["dict", "number", "text"])
def test_what_is_no_table_is_one_line_without_its_content(X: Any) -> None:
    assert_refused(lambda: AnytimeRegressor().fit(X, Y), "Expected 2D array, got scalar array instead: Reshape")


def test_a_target_of_numbers_as_text_becomes_no_classes_in_silence(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pa.parquet.write_table(pa.table({"c": CODES, "z": OTHER, "y": list(map(str, Y))}), desk / "t.parquet")
    command = ["train", "t.parquet", *TRAIN, "--out", "m.safetensors"]
    assert refusal(capsys, *command).startswith("error: t.parquet: target 'y' holds numbers as text, such as '-0.09")
    assert main([*command, "--task", "multiclass"]) == 0
    assert main([*command, "--number", "y"]) == 0
    found = load("m.safetensors")
    expected = AnytimeRegressor(GROUPS, alpha=1e-3).fit(X, Y).model_
    np.testing.assert_allclose(found.prefixes.packed, expected.prefixes.packed, rtol=1e-9)
