"""Tables: one content, the same columns from every format; damage is one line that names it."""

from __future__ import annotations

import gzip
import pickle
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from numpy.typing import NDArray

from anytime.data.formats import (
    NumberStyle,
    Table,
    csv as csv_format,
    memory as memory_format,
    open_table,
    table as table_format,
)
from anytime.data.formats.arrow import foreign_number, is_number
from anytime.errors import TableError
from models.refusals import assert_refused
from models.spies import spied

Columns = dict[str, NDArray[Any]]

CONTENT = pa.table(
    {
        "hog.0": pa.array([0.5, None, -1.25e10, 3.0, 0.1], pa.float64()),
        "count": pa.array([1, 2, 3, -4, 2**53 + 1], pa.int64()),
        "gappy": pa.array([1, None, 3, 4, 5], pa.int32()),
        "flag": pa.array([True, False, True, True, False]),
        "maybe": pa.array([True, None, False, True, True]),
        "colour": pa.array(["red", None, "grün, hell", 'a "b"', "1"]),
        "late": pa.array([1, 2, 3, 4, 4.5], pa.float64()),
    }
)
EXPECTED: Columns = {
    "hog.0": np.array([0.5, np.nan, -1.25e10, 3.0, 0.1]),
    "count": np.array([1, 2, 3, -4, 2**53 + 1]),
    "gappy": np.array([1, np.nan, 3, 4, 5]),
    "flag": np.array([True, False, True, True, False]),
    "maybe": np.array([1, np.nan, 0, 1, 1]),
    "colour": np.array(["red", None, "grün, hell", 'a "b"', "1"], dtype=object),
    "late": np.array([1, 2, 3, 4, 4.5]),
}
CSV = (
    "hog.0,count,gappy,flag,maybe,colour,late\n"
    "0.5,1,1,true,True,red,1\n"
    "NA,2,,false,,,2\n"
    '-1.25e10,3,3,TRUE,false,"grün, hell",3\n'
    '3.0,-4,4,true,TRUE,"a ""b""",4\n'
    "0.1,9007199254740993,5,False,true,1,4.5\n"
)


CODED = CONTENT.set_column(5, "colour", CONTENT["colour"].dictionary_encode())


def write_ipc(new: Any, path: Path) -> None:
    with new(path, CONTENT.schema) as writer:
        writer.write_table(CONTENT, max_chunksize=2)


WRITERS: dict[str, Callable[[Path], object]] = {
    "t.parquet": partial(pq.write_table, CONTENT, row_group_size=2),
    "without_statistics.parquet": partial(pq.write_table, CONTENT, row_group_size=3, write_statistics=False),
    "t.csv": lambda path: path.write_text(CSV, encoding="utf-8"),
    "OF_EXCEL.CSV": lambda path: path.write_bytes(CSV.replace("\n", "\r\n").encode("utf-8-sig")),
    "t.csv.gz": lambda path: path.write_bytes(gzip.compress(CSV.encode())),
    "t.arrow": partial(write_ipc, pa.ipc.new_file),
    "stream.arrow": partial(write_ipc, pa.ipc.new_stream),
    "t.feather": lambda path: pyarrow.feather.write_feather(CODED, str(path), compression="zstd"),
}


@pytest.fixture(params=WRITERS)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path: Path = tmp_path / request.param
    WRITERS[request.param](path)
    return path


@pytest.fixture
def table(file: Path) -> Table:
    return open_table(file)


def whole(table: Table, columns: list[str] | None = None, rows: int = 1000) -> Columns:
    """All batches put together, after the promises every batch keeps were checked."""
    names = list(table.columns) if columns is None else columns
    batches = list(table.batches(names, rows))
    start = 0
    for batch in batches:
        assert batch.start == start
        assert 1 <= batch.rows <= rows
        assert list(batch.columns) == names
        assert {len(column) for column in batch.columns.values()} == {batch.rows}
        start += batch.rows
    return {name: np.concatenate([batch.columns[name] for batch in batches]) for name in names}


def assert_same(got: Columns, expected: Columns) -> None:
    assert list(got) == list(expected)
    for name, column in expected.items():
        assert got[name].dtype == column.dtype, name
        np.testing.assert_array_equal(got[name], column, err_msg=name)


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# One content, every format


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 1000])
def test_every_format_gives_the_same_columns_in_batches_of_any_size(file: Path, table: Table, rows: int) -> None:
    assert (table.name, table.columns) == (str(file), tuple(EXPECTED))
    assert_same(whole(table, rows=rows), EXPECTED)


def test_columns_come_as_asked_and_as_often_as_asked(file: Path) -> None:
    table = open_table(str(file))
    for names in (["colour", "hog.0", "flag"], ["colour", "hog.0", "flag"], ["late"]):
        assert_same(whole(table, names, rows=2), {name: EXPECTED[name] for name in names})
    assert list(next(table.batches(["late", "count", "late"])).columns) == ["late", "count"]


@pytest.mark.parametrize("between", [(0, 3), (1, None), (2, 5), (3, 3), (0, 1000), (1000, None)])
def test_a_range_of_rows_is_what_a_whole_reading_has_there(table: Table, between: tuple[int, int | None]) -> None:
    start, stop = between
    batches = list(table.batches(["colour", "count"], 2, start=start, stop=stop))
    assert [batch.start for batch in batches] == np.cumsum([start, *(batch.rows for batch in batches)])[:-1].tolist()
    for name in ("colour", "count"):
        found = np.concatenate([EXPECTED[name][:0], *(batch.columns[name] for batch in batches)])
        np.testing.assert_array_equal(found, EXPECTED[name][start:stop])


def test_two_readings_do_not_disturb_each_other(table: Table) -> None:
    pairs = zip(table.batches(["count"], 2), table.batches(["count"], 2), strict=True)
    assert all(np.array_equal(a.columns["count"], b.columns["count"]) for a, b in pairs)


def test_a_table_can_be_sent_to_another_process(table: Table) -> None:
    assert_same(whole(pickle.loads(pickle.dumps(table))), EXPECTED)


def test_an_unknown_column_is_named_with_the_nearest_when_asked_for(file: Path, table: Table) -> None:
    assert table.has("colour")
    assert not table.has("color")
    assert_refused(lambda: list(table.batches(["count", "color"])), str(file), "'color'", "did you mean 'colour'?")
    assert_refused(lambda: list(table.batches([])), "no column was requested")
    assert_refused(lambda: list(table.batches(["count"], rows=0)), "0 rows")


def test_a_file_that_goes_away_is_one_line(file: Path, table: Table) -> None:
    file.unlink()
    assert_refused(lambda: list(table.batches(["colour"])), str(file))


# Pieces of Parquet


def pieces(path: Path, start: int, rows: int, **columns: Any) -> Path:
    """A file of rows counted from `start`, four in a row group."""
    pq.write_table(pa.table({"n": pa.array(range(start, start + rows), pa.int32())} | columns), path, row_group_size=4)
    return path


def test_row_groups_before_a_range_are_not_read(tmp_path: Path) -> None:
    table = open_table(pieces(tmp_path / "t.parquet", 0, 12))
    next(table.batches(["n"]))  # the kind is settled
    with spied(pq.ParquetFile, "iter_batches") as read:
        assert sum(batch.rows for batch in table.batches(["n"], start=9)) == 3
    assert [call.kwargs["row_groups"] for call in read.call_args_list] == [[2]]


def test_a_directory_of_parquet_files_is_one_table_in_the_order_of_their_names(tmp_path: Path) -> None:
    for number, (start, rows) in enumerate([(0, 5), (5, 0), (5, 3), (8, 9)]):
        pieces(tmp_path / f"part-{number}.parquet", start, rows)
    (tmp_path / "_SUCCESS").touch()
    table = open_table(tmp_path)
    assert table.name == str(tmp_path)
    assert table.starts == (0, 4, 5, 8, 12, 16)
    assert whole(table, rows=3)["n"].tolist() == list(range(17))
    assert [n for batch in table.batches(["n"], start=6, stop=10) for n in batch.columns["n"].tolist()] == [6, 7, 8, 9]
    assert whole(pickle.loads(pickle.dumps(table)))["n"].tolist() == list(range(17))


def test_hidden_files_of_a_folder_are_no_tables_and_a_broken_part_is_named(tmp_path: Path) -> None:
    pieces(tmp_path / "a.parquet", 0, 4)
    for name in ("._a.parquet", "_temporary.parquet", ".crc"):
        (tmp_path / name).write_bytes(b"junk")
    assert whole(open_table(tmp_path))["n"].tolist() == [0, 1, 2, 3]
    (tmp_path / "b.parquet").write_bytes(b"junk")
    assert_refused(lambda: open_table(tmp_path), f"cannot read {tmp_path / 'b.parquet'} as Parquet")


def test_a_folder_of_other_files_is_one_table(tmp_path: Path) -> None:
    written(tmp_path / "a.csv", "n,t\n1,2\n2,7\n")
    written(tmp_path / "b.csv", "t,n\nx,3.5\n")
    written(tmp_path / "_log.txt", "no table")
    (tmp_path / "words").mkdir()
    for name, cell in (("a", "true"), ("b", "0")):
        written(tmp_path / "words" / f"{name}.csv", f"c\n{cell}\n")
    assert open_table(tmp_path / "words").types(["c"]) == {"c": "text"}
    table = open_table(tmp_path)
    assert table.types(["n", "t"]) == {"n": "number", "t": "text"}
    assert_same(whole(table), {"n": np.array([1.0, 2, 3.5]), "t": np.array(["2", "7", "x"], dtype=object)})
    written(tmp_path / "c.csv", "n,u\n1,2\n")
    assert_refused(lambda: open_table(tmp_path), "c.csv has other columns than a.csv: 't', 'u'")


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        (([True, False], [0, 1]), "number"),
        (([True, False], pa.array([None, None], pa.float64())), "bool"),
        (([2.5, 1.0], ["x", "y"]), "text"),
        ((pa.array([0, 1], pa.timestamp("s")), pa.array([None], pa.float64())), "date"),
        ((pa.array([0, 1], pa.timestamp("s")), [2.5]), "'c' holds date and number; expected one type"),
        ((pa.array([0, 1], pa.timestamp("s")), ["2024-05-17"]), "text"),
        ((pa.array([0, 1], pa.timestamp("s")), pa.array([None], pa.string())), "date"),
        ((pa.array([None], pa.timestamp("s")), [2.5]), "'c' holds date and number; expected one type"),
        ((pa.array([None], pa.string()), [2, 3]), "integer"),
    ],
)
def test_parts_of_a_table_with_other_types_have_a_common_one_or_are_refused(
    columns: tuple[Any, Any], kind: str, tmp_path: Path
) -> None:
    for name, column in zip("ab", columns, strict=True):
        pq.write_table(pa.table({"c": column}), tmp_path / f"{name}.parquet")
    if kind.isalpha():
        assert open_table(tmp_path).types(["c"]) == {"c": kind}
        assert [len(batch.columns["c"]) for batch in open_table(tmp_path).batches(["c"])] == [*map(len, columns)]
    else:
        assert_refused(lambda: open_table(tmp_path).types(["c"]), kind)


def test_columns_are_read_as_stated(tmp_path: Path) -> None:
    content = pa.table(
        {"i": pa.array([1, None, 3]), "b": [True, False, True], "t": ["1", "2.5", " 7"], "f": [0.0, 1.0, 2]}
    )
    pq.write_table(content, tmp_path / "t.parquet")
    table = open_table(tmp_path / "t.parquet")
    assert table.types(["i", "b", "t", "f"]) == {"i": "integer", "b": "bool", "t": "text", "f": "number"}
    (batch,) = table.batches(["i", "b", "t"], types=dict.fromkeys(["i", "b", "t"], "number"))
    numbers = {"i": [1.0, np.nan, 3.0], "b": [1.0, 0.0, 1.0], "t": [1.0, 2.5, 7.0]}
    assert_same(dict(batch.columns), {name: np.array(column) for name, column in numbers.items()})
    (batch,) = table.batches(["i", "b", "f"], types=dict.fromkeys(["i", "b", "f"], "text"))
    assert [column.tolist() for column in batch.columns.values()] == [
        *(["1", None, "3"], ["true", "false", "true"], ["0", "1", "2"])
    ]
    assert_refused(
        lambda: list(table.batches(["f"], types={"f": "bool"})), "'f' holds 2 in row 2", "expected true or false"
    )


# Types


def arrow_table(tmp_path: Path, suffix: str, content: pa.Table) -> Table:
    path = tmp_path / f"types{suffix}"
    feather = partial(pyarrow.feather.write_feather, compression="uncompressed")
    (pq.write_table if suffix == ".parquet" else feather)(content, str(path))
    return open_table(path)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_arrow_types_become_four_dtypes(tmp_path: Path, suffix: str) -> None:
    content = pa.table(
        {
            "f4": pa.array([0.5, None], pa.float32()),
            "f2": pa.array(np.array([0.5, 2.0], np.float16)),
            "nan": pa.array([float("nan"), 1.0]),
            "money": pa.array([Decimal("1.25"), None], pa.decimal128(9, 2)),
            "i1": pa.array([1, -1], pa.int8()),
            "u8": pa.array([1, 2**63 - 1], pa.uint64()),
            "huge": pa.array([1, 2**63 + 2**20], pa.uint64()),
            "wide": pa.array([2**60 + 1, None], pa.int64()),
            "nothing": pa.nulls(2),
            "large": pa.array(["a", None], pa.large_string()),
            "coded": pa.array(["b", "a"]).dictionary_encode(),
            "levels": pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), pa.array([10, 20])),
            "gaps": pa.DictionaryArray.from_arrays(pa.array([1, None], pa.int8()), pa.array([10, 20])),
        }
    )
    expected: Columns = {
        "f4": np.array([0.5, np.nan]),
        "f2": np.array([0.5, 2.0]),
        "nan": np.array([np.nan, 1.0]),
        "money": np.array([1.25, np.nan]),
        "i1": np.array([1, -1]),
        "u8": np.array([1, 2**63 - 1]),
        "huge": np.array([1.0, 2.0**63 + 2**20]),
        "wide": np.array([2.0**60, np.nan]),
        "nothing": np.array([np.nan, np.nan]),
        "large": np.array(["a", None], dtype=object),
        "coded": np.array(["b", "a"], dtype=object),
        "levels": np.array([20, 10]),
        "gaps": np.array([20, np.nan]),
    }
    assert_same(whole(arrow_table(tmp_path, suffix, content), rows=1), expected)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_other_types_are_refused_only_when_asked_for(tmp_path: Path, suffix: str) -> None:
    content = pa.table({"x": [1.0], "when": pa.array([0], pa.timestamp("ms")), "list": [[1, 2]], "raw": [b"\0"]})
    table = arrow_table(tmp_path, suffix, content)
    assert_same(whole(table, ["x"]), {"x": np.array([1.0])})
    assert table.types(["when"]) == {"when": "date"}
    assert_same(whole(table, ["when"]), {"when": np.array([0.0])})
    assert_refused(
        lambda: list(table.batches(["when"], types={"when": "number"})), "'when' is timestamp[ms]; expected num"
    )
    assert_refused(lambda: list(table.batches(["list"])), "'list'", "list<")
    assert_refused(lambda: list(table.batches(["raw"])), "'raw'", "binary")


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_two_columns_of_one_name_and_no_columns_are_refused(tmp_path: Path, suffix: str) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pa.ipc.new_file(tmp_path / "types.arrow", twice.schema) as writer:
        writer.write_table(twice)
    pq.write_table(twice, tmp_path / "types.parquet")
    assert_refused(lambda: open_table(tmp_path / f"types{suffix}"), "more than one column named 'a'")
    assert_refused(lambda: arrow_table(tmp_path, suffix, pa.table({})), "no columns")


# CSV: what cells mean


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the file were large: blocks of 64 bytes."""
    monkeypatch.setattr(csv_format, "BLOCK", 64)


def csv_columns(tmp_path: Path, text: str) -> Columns:
    return whole(open_table(written(tmp_path / "t.csv", text)))


@pytest.mark.usefixtures("small_blocks")
def test_a_word_far_down_a_column_of_numbers_is_named_with_its_row(tmp_path: Path) -> None:
    rows = [f"{i},{i / 4}" for i in range(500)]
    rows[321] = "321,n.a."
    table = open_table(written(tmp_path / "t.csv", "a,b\n" + "\n".join(rows)))
    assert table.types(["a", "b"]) == {"a": "integer", "b": "text"}
    said = "'b'", "'n.a.'", "row 321 (counted from 0)", "`types: {b: text}`"
    assert_refused(lambda: list(table.batches(["a", "b"], 10, types={"b": "number"})), *said)


@pytest.mark.parametrize("cell", ["", "NA", "NaN", "nan", "null", "NULL", "N/A", '""', '"NA"', " NA "])
def test_the_usual_spellings_are_missing_among_numbers_and_levels_of_text(tmp_path: Path, cell: str) -> None:
    got = csv_columns(tmp_path, f"a,b,c\n1,1.5,true\n{cell},{cell},{cell}\n")
    for column, first in zip(got.values(), [1.0, 1.5, 1.0], strict=True):
        np.testing.assert_array_equal(column, [first, np.nan])
    level = cell.strip('"') or None
    assert csv_columns(tmp_path, f"a,b\n1,x\n2,{cell}\n")["b"].tolist() == ["x", level]


def test_quoted_headers_commas_newlines_and_blank_lines_are_read(tmp_path: Path) -> None:
    got = csv_columns(tmp_path, '\n"a, b","c ""d"""\n"1","x\ny"\n\n2,z\n')
    assert_same(got, {"a, b": np.array([1, 2]), 'c "d"': np.array(["x\ny", "z"], dtype=object)})


CELLS = ["1", "2.5", " 3", "+8", "1e3", "1e400", "99999999999999999999", "", "  ", "NA", "0x1F"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cells=st.lists(st.sampled_from([*CELLS, "true", "FALSE", "x"]), min_size=1), block=st.integers(16, 200))
def test_types_do_not_depend_on_where_blocks_end(tmp_path: Path, cells: list[str], block: int) -> None:
    path = written(tmp_path / "t.csv", "a,b\n" + "".join(f"{cell},0\n" for cell in cells))
    expected = whole(open_table(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_format, "BLOCK", block)
        table = open_table(path)
        assert_same(whole(table, rows=3), expected)
        assert table.types(["a"]) == open_table(path).types(["a"])


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("", ["is empty", "header"]),
        ("\n\n", ["is empty"]),
        ("a,t,y", ["has no rows; expected at least one"]),
        ('[{"a": 1, "y": 2}]', ["has no rows; expected at least one"]),
        ("a,a\n1,2\n", ["more than one column named 'a'"]),
        ("a,b\n1,2\n3,4\n5,6,7\n", ["row 2 (counted from 0)", "3 cells", "expected 2"]),
        ("a,b\n1,2\n3\n", ["row 1", "1 cells", "expected 2"]),
        ('a,b\n1,2\n"3,4\n5,6\n', ["row 1", "1 cells"]),
        ("a,b\n1,2\n".encode("utf-16"), ["binary or UTF-16", "UTF-8"]),
        ("é,b\n1,2\n".encode("latin-1"), ["not UTF-8"]),
        (gzip.compress(b"a,b\n1,2\n", mtime=0), ["binary"]),
        (b"PAR1\0\0\0\0", ["binary"]),
    ],
)
def test_a_csv_that_is_none_is_refused_when_opened(tmp_path: Path, content: str | bytes, parts: list[str]) -> None:
    path = written(tmp_path / "t.csv", content)
    assert_refused(lambda: open_table(path), str(path), *parts)


def test_text_in_another_encoding_is_refused_when_asked_for(tmp_path: Path) -> None:
    table = open_table(written(tmp_path / "t.csv", "a,b\n1,é\n".encode("latin-1")))
    assert_same(whole(table, ["a"]), {"a": np.array([1])})
    assert_refused(lambda: list(table.batches(["b"])), "is not UTF-8 text; save it in")


@pytest.mark.usefixtures("small_blocks")
def test_a_broken_row_far_down_is_named_before_any_batch(tmp_path: Path) -> None:
    table = open_table(written(tmp_path / "t.csv", "a,b\n" + "1,2\n" * 100 + "1,2,3\n" + "1,2\n" * 100))
    assert_refused(lambda: list(table.batches(["a"])), "row 100 (counted from 0)", "3 cells")
    endless = open_table(written(tmp_path / "u.csv", "a,b\n" + "1,2\n" * 100 + '"' + "1,2\n" * 100))
    assert_refused(lambda: list(endless.batches(["a"])), "unclosed quote")


def test_a_csv_that_changes_between_typing_and_reading_is_one_line(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "a,b\n1,2\n")
    batches = open_table(path).batches(["a"], types={"a": "number"})
    written(path, "a,b\nx,2\n")
    assert_refused(lambda: list(batches), str(path), "'x'")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("kept", ["in memory", "in a file", "nowhere"])
def test_cells_are_the_same_wherever_they_are_kept(kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The second column becomes text, the third gets decimals, after the first block.
    rows = [
        f"{i},{i if i < 90 else 'x'},{i if i < 80 else i / 4},{'NA' if i % 7 else 'é'},{i % 2 == 0}" for i in range(100)
    ]
    path = written(tmp_path / "t.csv", "a,b,c,d,e\n" + "\n".join(rows))
    if kept != "in memory":
        monkeypatch.setattr(csv_format, "STORE_BYTES", 500)
    if kept == "nowhere":
        monkeypatch.setattr(csv_format, "STORE_SHARE", 0.0)
    table = open_table(path)
    assert table.types(table.columns) == {"a": "integer", "b": "text", "c": "number", "d": "text", "e": "bool"}
    expected: Columns = {
        "a": np.arange(100),
        "b": np.array([str(i) if i < 90 else "x" for i in range(100)], dtype=object),
        "c": np.array([i if i < 80 else i / 4 for i in range(100)]),
        "d": np.array(["NA" if i % 7 else "é" for i in range(100)], dtype=object),
        "e": np.arange(100) % 2 == 0,
    }
    with spied(csv_format.CsvTable, "_reader") as cells:
        assert_same(whole(table, rows=7), expected)
    parsed = [tuple(call.args[1]) for call in cells.call_args_list]
    assert parsed == [("a", "b", "c", "d", "e") if kept == "nowhere" else ("b",)]
    stated: Any = {"a": "text", "b": "text", "d": "text"}
    (batch,) = table.batches(["a", "d"], types=stated, stop=2)
    assert batch.columns["a"].tolist() == ["0", "1"]
    assert_same(whole(pickle.loads(pickle.dumps(table))), expected)


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_separators_are_recognised_in_the_header_or_stated(separator: str, tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "\n".join(["a{0}b", "1{0}x,y", "2{0}z"]).format(separator))
    assert_same(whole(open_table(path)), {"a": np.array([1, 2]), "b": np.array(["x,y", "z"], dtype=object)})
    path = written(tmp_path / "u.csv", '"a;|","b"\n1,2\n')
    assert open_table(path).columns == ("a;|", "b")
    path = written(tmp_path / "v.csv", f"a,c{separator}b\n1{separator}2\n")
    assert open_table(path, separator=separator).columns == ("a,c", "b")
    assert_refused(lambda: open_table(path, separator=";;"), "separator is ';;'; expected one character")


def test_numbers_of_another_locale_are_read_by_their_marks(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "a;b\n1.234,5;7\n-2,25;1.000\nNA;\n1.234.567;3\n")
    style = NumberStyle(decimal=",", thousands=".")
    got = whole(open_table(path, style=style))
    assert_same(got, {"a": np.array([1234.5, -2.25, np.nan, 1234567]), "b": np.array([7, 1000, np.nan, 3])})
    wrong = written(tmp_path / "u.csv", "a;b\n1.5;7\n2,5;1\n")
    assert open_table(wrong, style=style).types(["a"]) == {"a": "text"}, "1.5 groups no three digits"
    stated: Any = {"a": "number"}
    assert_refused(lambda: list(open_table(wrong, style=style).batches(["a"], types=stated)), "'a'", "'1.5' in row 0")
    for marks in ({"decimal": "12"}, {"thousands": "5"}, {"decimal": ",", "thousands": ","}):
        assert_refused(lambda marks=marks: NumberStyle(**marks), "; expected", *marks)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["01", "02", "11"], "text"),
        (["01", "2", "3", "4"], "integer"),
        (["0", "0", "1"], "integer"),
        (["0.5", "0.25"], "number"),
        (["00", "07", ""], "text"),
        (["TRUE", "false", ""], "bool"),
        (["true", "yes"], "text"),
        (["", "NA"], "number"),
        (["1", "NA", "  ", " 8 "], "integer"),
        (["1", "+8"], "number"),
        (["1", "1e3"], "number"),
        (["1", "99999999999999999999"], "number"),
        (["1", "true"], "text"),
        (["1", "0x1F"], "text"),
    ],
)
def test_cells_show_their_type(cells: list[str], kind: str, tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "a,b\n" + "".join(f"{cell},0\n" for cell in cells))
    assert open_table(path).types(["a"]) == {"a": kind}


FOREIGN = [
    "1.234,56",
    "1,234.5",
    "1 234,5",
    "1'234.5",
    "12 %",
    "12%",
    "$3",
    "3 €",
    "€3",
    "5 kg",
    "5.5kg",
    "1D3",
    "−5",
    "(3)",
    "1,5",
]


@pytest.mark.parametrize("cell", FOREIGN)
def test_a_number_in_another_form_is_no_level(cell: str) -> None:
    assert not is_number(cell)
    assert foreign_number([cell, "7", cell]) == cell
    assert foreign_number([cell, "red", "green"]) is None, "most cells are no numbers"


@pytest.mark.parametrize(
    "cells",
    [
        ["1", "2.5", "-3e4", ".5"],
        ["1", "2", "2b"],
        ["12a", "14b", "7c", "9a"],
        ["1st", "2nd", "11th", "12th"],
        ["1Fam", "1Fam", "1Fam", "2fmCon", "Duplex"],
        ["1Story", "2Story", "1Story", "1.5Fin", "SLvl"],
        ["12years", "16years", "lt8years"],
        ["1", "2", "3", "4", "1OT"],
        ["1. Never Married", "2. Married", "2. Married", "2. Married", "4. Divorced"],
        ["10.0.0.1", "10.0.0.2"],
        ["2020-01-01", "2020-01-02"],
        ["K1", "M3", "red"],
        ["3-5", "65+", "<18"],
    ],
)
def test_levels_are_no_numbers_in_another_form(cells: list[str]) -> None:
    assert foreign_number(cells) is None


# svmlight

SVM = "# a comment\n1 qid:3 0:0.5 2:-1 # qid:9\n-1 qid:3 1:2\n1 qid:4 2:nan\n"


@pytest.mark.parametrize("suffix", [".svm", ".svmlight", ".libsvm", ".svm.gz", ".SVM.GZ", ".libsvm.gz"])
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_svmlight_gives_target_query_and_features(tmp_path: Path, suffix: str, rows: int) -> None:
    content = gzip.compress(SVM.encode()) if suffix.lower().endswith(".gz") else SVM.encode()
    table = open_table(written(tmp_path / f"t{suffix}", content))
    assert table.columns == ("target", "qid", "f0", "f1", "f2")
    expected: Columns = {
        "target": np.array([1, -1, 1]),
        "qid": np.array([3, 3, 4]),
        "f0": np.array([0.5, 0, 0]),
        "f1": np.array([0.0, 2, 0]),
        "f2": np.array([-1, 0, np.nan]),
    }
    assert_same(whole(table, rows=rows), expected)
    for names in (["f2", "f9", "target", "f0"], ["f7", "f8"], ["qid"]):
        assert_same(whole(table, names, rows), {name: expected.get(name, np.zeros(3)) for name in names})


def test_svmlight_knows_every_feature_and_nothing_else(tmp_path: Path) -> None:
    table = open_table(written(tmp_path / "t.svm", "1.5 1:2\n0 3:1\n"))
    assert table.columns == ("target", "f1", "f3")
    assert all(table.has(name) for name in ("target", "f0", "f3", "f4", "f123456"))
    assert not any(table.has(name) for name in ("qid", "f", "f01", "f-1", "x1", "f1 "))
    assert whole(table)["target"].dtype == np.float64
    assert_refused(lambda: list(table.batches(["qid"])), "'qid'")


def test_svmlight_takes_memory_by_its_rows_whatever_their_indices(tmp_path: Path) -> None:
    table = open_table(written(tmp_path / "t.svm", "1 2000000:1\n2 5:3\n"))
    tracemalloc.start()
    try:
        assert table.columns == ("target", "f5", "f2000000")
        found = whole(table, ["f2000000", "f5", "f7", f"f{10**20}"])
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    nothing = np.zeros(2)
    assert_same(found, {"f2000000": np.array([1.0, 0]), "f5": np.array([0.0, 3]), "f7": nothing, f"f{10**20}": nothing})
    bare = open_table(written(tmp_path / "u.svm", "1\n2\n"))
    assert bare.columns == ("target",)
    assert_same(whole(bare, ["f0", "target"]), {"f0": nothing, "target": np.array([1, 2])})


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("", ["no rows"]),
        ("# nothing\n", ["no rows"]),
        ("a,b\n1,2\n", ["svmlight", "b'a,b'"]),
        ("1 1:x\n", ["svmlight"]),
        ("1 3:1 1:2\n", ["svmlight", "sorted"]),
        ("1 -1:3\n", ["svmlight", "-1"]),
        ("1 99999999999:1\n", ["svmlight", "large"]),
        ("1 qid:1 1:2\n1 1:2\n", ["1 of 2 rows have a qid"]),
        (b"\xff\xfe\x00", ["svmlight"]),
    ],
)
def test_a_wrong_svmlight_file_is_one_line(tmp_path: Path, content: str | bytes, parts: list[str]) -> None:
    path = written(tmp_path / "t.svm", content)
    assert_refused(lambda: open_table(path), str(path), *parts)


# What a file's name promises


def test_a_path_that_is_no_table_is_one_line(tmp_path: Path) -> None:
    assert_refused(lambda: open_table(tmp_path / "none.csv"), "there is no file", "none.csv")
    assert_refused(lambda: open_table(tmp_path), "is a directory without tables")
    for name in ("t.xlsx", "t", "t.txt", "t.gz", "t.parquet.gz", "t.npz"):
        path = written(tmp_path / name, "a\n1\n")
        assert_refused(lambda p=path: open_table(p), str(path), "unknown format", ".parquet", ".csv.gz", ".svm")  # type: ignore[misc]
    assert_refused(
        lambda: open_table(tmp_path / "t.txt"), "rename or link a file of LETOR or svmlight lines", "to .svm"
    )


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".feather", ".csv.gz", ".svm.gz"])
@pytest.mark.parametrize("content", [b"a,b\n1,2\n" * 50, b"", b"\x1f\x8b\x08\x00junk" * 9, b"\xff" * 200])
def test_content_that_its_suffix_belies_is_one_line(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = written(tmp_path / f"t{suffix}", content)
    assert_refused(lambda: open_table(path), str(path))


@pytest.mark.parametrize("file", ["t.parquet", "t.csv.gz", "t.arrow", "stream.arrow", "t.feather"], indirect=True)
def test_a_truncated_file_is_one_line(file: Path) -> None:
    content = file.read_bytes()
    for left in (4, len(content) // 3, len(content) // 2):
        written(file, content[:left])
        assert_refused(lambda: list(open_table(file).batches(tuple(EXPECTED))), str(file))


def test_noise_in_a_file_never_ends_in_a_traceback(file: Path) -> None:
    content = file.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(150):
        noisy = bytearray(content)
        at = int(rng.integers(len(noisy)))
        noisy[at : at + 4] = rng.bytes(len(noisy[at : at + 4]))
        written(file, bytes(noisy))
        with suppress(TableError):
            table = open_table(file)
            list(table.batches(table.columns, 2))


def test_feather_of_the_first_version_is_named(tmp_path: Path) -> None:
    assert_refused(
        lambda: open_table(written(tmp_path / "t.feather", b"FEA1" + bytes(60))), "Feather file of version 1"
    )


@pytest.mark.parametrize(
    ("suffix", "module", "package"),
    [
        (".parquet", "pyarrow", "pyarrow"),
        (".csv", "pyarrow", "pyarrow"),
        (".arrow", "pyarrow", "pyarrow"),
        (".svm", "sklearn", "scikit-learn"),
    ],
)
def test_a_package_that_is_not_installed_is_named_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, module: str, package: str
) -> None:
    for extra in (each for each in vars(table_format).values() if isinstance(each, table_format.Extra)):
        monkeypatch.setattr(extra, "__dict__", {"_module": extra._module})
    monkeypatch.setattr(memory_format, "_datasets", table_format.Extra("sklearn.datasets"))
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.setitem(sys.modules, name, None)  # what import then says is ModuleNotFoundError
    path = written(tmp_path / f"t{suffix}", "a\n")
    assert_refused(lambda: open_table(path), package, "pip install 'anytime-linear[train]'")
