"""Tables in memory: arrays, scipy sparse matrices, frames of any library that gives an Arrow stream, svmlight files.

Matrices of numbers stay as they are: a batch is a slice of their rows. Frames become Arrow's types, which are those of
files; a pandas frame of floats of one type is a matrix.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anytime.data.formats.arrow import ArrowTable, Recognition, index_of, read_as, type_of
from anytime.data.formats.table import Batch, Extra, ReadAs, Table, damaged, pa
from anytime.errors import TableError, clipped
from anytime.moments.accumulate import MAX_PART_ROWS


def arrow_array(name: str, values: Any) -> pa.Array:
    """Return a column as an Arrow array; raise TableError, which names the types, if it mixes them."""
    if isinstance(values, np.ndarray):
        values = as_native(values)
    is_float = getattr(getattr(values, "dtype", None), "kind", "") == "f"
    try:
        return pa.array(values, from_pandas=not is_float)  # NaN stays NaN, without a pass over the values
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        objects = np.asarray(values, dtype=object).ravel().tolist()
        for kinds, convert, arrow_type in (
            (Integral, int, pa.decimal256(76, 0)),  # integers beyond 64 bits, exactly
            (Real | Decimal, float, pa.float64()),  # mixed types, such as fractions
        ):
            if all(each is None or (isinstance(each, kinds) and not isinstance(each, bool)) for each in objects):
                with suppress(pa.ArrowException, ValueError, OverflowError):
                    numbers = [None if each is None else convert(each) for each in objects]
                    return pa.array(numbers, arrow_type, from_pandas=True)
        examples = {type(value).__name__: value for value in reversed(objects) if value is not None}
        dtype = getattr(values, "dtype", np.dtype(object))
        what = " and ".join(sorted(examples)) if dtype == np.dtype(object) else str(dtype)
        if len(examples) > 1:
            what += f", as {' and '.join(clipped(repr(examples[name]), 40) for name in sorted(examples))}"
        elif "int" in examples:
            what = "integers of more than 76 digits"
        raise TableError(
            f"column {name!r} holds {what}; expected values of one type: numbers, text or booleans"
        ) from error


def as_native(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array in the machine's byte order, and of 64 bits at most; larger floats become infinite."""
    if values.dtype.kind == "f" and values.dtype.itemsize > np.dtype(np.float64).itemsize:
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(np.float64)
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


class MatrixTable(Table):
    """A matrix (rows, columns) of numbers or booleans, an array or scipy sparse, and further columns of Arrow."""

    def __init__(self, name: str, matrix: Any, names: Sequence[str], further: Mapping[str, pa.Array] = {}) -> None:
        super().__init__(Path(name))
        if matrix.dtype.kind not in "iufb":
            raise TableError(f"{name} is {matrix.dtype}; expected numbers or text")
        self._matrix, self._further = matrix, further
        self.rows = int(matrix.shape[0])
        self._check_names(names)
        self._places = {column: j for j, column in enumerate(names)}
        self._columns = {**dict.fromkeys(names, matrix.dtype), **{name: array.type for name, array in further.items()}}

    def block_rows(self, columns: int, jobs: int) -> int:  # noqa: ARG002
        """Return equal parts for the threads: a block is a view."""
        return -(-self.rows // (jobs * -(-self.rows // (jobs * MAX_PART_ROWS))))

    def with_columns(self, columns: Mapping[str, Any]) -> MatrixTable:
        """Return the table with further columns, (rows,) each."""
        further = {name: arrow_array(name, values) for name, values in columns.items()}
        return MatrixTable(self.name, self._matrix, list(self._places), {**self._further, **further})

    def _types(self, names: tuple[str, ...], stated: Mapping[str, ReadAs]) -> dict[str, ReadAs]:
        # A matrix stays as it is, whatever its numbers.
        own: ReadAs = "bool" if self._matrix.dtype.kind == "b" else "number"
        further = {name: type_of(column.type) or "text" for name, column in self._further.items()}
        return {name: further.get(name, own) for name in names if name not in stated}

    def _read(self, types: Mapping[str, ReadAs], rows: int, begin: int) -> Iterator[Batch]:
        own = self._types(tuple(name for name in types if name in self._places), {})
        as_stored = all(types[name] == kind for name, kind in own.items())
        for start in range(begin, self.rows, rows):
            columns = {
                name: read_as(name, self._further[name].slice(start, rows), kind, start)
                for name, kind in types.items()
                if name not in own
            }
            batch = Batch(start, columns, self._matrix[start : start + rows], self._places)
            if not as_stored:
                found = {name: read_as(name, arrow_array(name, batch.column(name)), types[name], start) for name in own}
                batch = Batch(start, {name: (found if name in own else columns)[name] for name in types})
            yield batch


class FrameTable(ArrowTable):
    """An Arrow table; `numbers` has the types of columns of text with numbers in every cell, as in a CSV file."""

    format = "a frame"

    def __init__(self, name: str, frame: pa.Table, numbers: Mapping[str, ReadAs] = {}) -> None:
        self._frame, self._numbers = frame, numbers
        self.rows = int(frame.num_rows)
        super().__init__(Path(name))
        self.quoted = frozenset(numbers)

    def with_columns(self, columns: Mapping[str, Any]) -> FrameTable:
        """Return the table with further columns, (rows,) each."""
        arrays = [*self._frame.columns, *(arrow_array(name, values) for name, values in columns.items())]
        names = [*self._frame.column_names, *columns]
        return FrameTable(self.name, pa.Table.from_arrays(arrays, names=names), self._numbers)

    def _open(self) -> pa.Schema:
        return self._frame.schema

    def _types(self, names: tuple[str, ...], stated: Mapping[str, ReadAs]) -> dict[str, ReadAs]:
        return {name: self._numbers.get(name, kind) for name, kind in super()._types(names, stated).items()}

    def _pieces(self, types: Mapping[str, ReadAs], rows: int, begin: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        yield from self._frame.select(list(types)).to_batches(max_chunksize=rows)


MemoryTable: TypeAlias = MatrixTable | FrameTable
"""A table in memory, to which columns can be added."""


def is_frame(X: Any, features: Iterable[str] = ()) -> bool:
    """Return whether X has columns with names: a frame of any library.

    Those that pandas counted, 0, 1, 2, ..., are names if one of the `features` is among them.
    """
    if _is_pandas(X):
        labels = list(X.columns)
        return labels != list(range(len(labels) or 1)) or not {*map(str, labels)}.isdisjoint(features)
    # The type is asked: to a lazy frame, asking for its columns is work.
    return hasattr(X, "__arrow_c_stream__") or (hasattr(type(X), "collect") and hasattr(type(X), "columns"))


def _is_pandas(X: Any) -> bool:
    return hasattr(type(X), "iloc") and hasattr(type(X), "columns")


def collected(X: Any) -> Any:
    """Return a frame of pandas with its names as text, and one of another library as an Arrow table.

    Lazy frames are collected.
    """
    if _is_pandas(X):
        names = [str(name) for name in X.columns]
        return X if names == list(X.columns) else X.set_axis(names, axis=1)
    table = pa.table  # outside: without pyarrow, its own message
    try:
        frame = table(X if hasattr(X, "__arrow_c_stream__") else X.collect())
    except Exception as error:  # of the library of the frame
        why = " ".join(str(error).split())
        raise TableError(
            f"X is a {type(X).__name__} that is not a table: {clipped(why, 200)}; expected an array or a frame"
        ) from error
    index = index_of(frame.schema.metadata)
    return frame.select([name for name in frame.column_names if name not in index]) if index else frame


def table_of(name: str, X: Any, names: Sequence[str] | None = None) -> MemoryTable:
    """Return an array (rows, columns), a scipy sparse matrix or a frame as a table called `name`.

    `names` are those of the columns of an array, by default x0, x1, ...

    Raises
    ------
    TableError
        Two columns share a name, or a column mixes types.
    """
    if not (_is_pandas(X) or is_frame(X)):
        names = [f"x{j}" for j in range(X.shape[1])] if names is None else names
        if X.dtype.kind not in "OUSTM":
            # Rows of other sparse formats have no slices, or slow ones.
            return MatrixTable(name, X.tocsr() if hasattr(X, "tocsr") else as_native(X), names)
        columns = [arrow_array(column, X[:, j]) for j, column in enumerate(names)]
        objects = [*range(len(columns))]
    elif not _is_pandas(X):
        return FrameTable(name, collected(X))
    else:
        X = collected(X)
        names, dtypes = list(X.columns), list(X.dtypes)
        if dtypes and len(set(dtypes)) == 1 and isinstance(dtypes[0], np.dtype) and dtypes[0].kind == "f":
            return MatrixTable(name, X.to_numpy(), names)
        columns = [
            # Only a sparse series has the attribute `sparse`.
            arrow_array(
                column,
                np.asarray(series) if isinstance(series.dtype, np.dtype) or hasattr(series, "sparse") else series,
            )
            for column, series in X.items()
        ]
        objects = [j for j, dtype in enumerate(dtypes) if dtype == np.dtype(object)]
    numbers: dict[str, ReadAs] = {}
    for j in objects:
        if type_of(columns[j].type) == "text":  # numbers, if it is one in every row
            seen = Recognition()
            seen.add(columns[j].cast(pa.string()))
            if seen.kind in ("integer", "number"):
                numbers[names[j]] = seen.kind
    return FrameTable(name, pa.Table.from_arrays(columns, names=list(names)), numbers)


_datasets: Any = Extra("sklearn.datasets")
_FEATURE = re.compile(r"f(0|[1-9][0-9]*)")


class SvmlightTable(Table):
    """An svmlight (libsvm) file, `target qid:7 3:0.5 12:1`, stored sparsely; batches are made dense one at a time.

    The columns are `target`, `qid` if the file has it, and an `f<index>` for each index that some row has, as written
    in the file. Any other feature is readable and zero, since a test file often has fewer features than its training
    file. The target is int64 if all targets are integral numbers, because the format has no types.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        from scipy import sparse  # noqa: PLC0415  (a server never needs it)

        load = _datasets.load_svmlight_file
        try:
            with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
                matrix, target, query = load(file, zero_based=True, query_id=True)
        except (ValueError, OverflowError, EOFError, OSError, zlib.error) as error:
            raise damaged(self.name, "svmlight", error) from error
        if not len(target):
            raise self.no_rows()
        if len(query) not in (0, len(target)):
            raise TableError(f"{self.name}: {len(query)} of {len(target)} rows have a qid; expected all or none")
        found = np.unique(matrix.indices)
        places = np.searchsorted(found, matrix.indices)
        # One column per feature present, whatever the indices, since the memory of a slice grows with the width; the
        # last, of zeros, is that of every other feature.
        self._features = sparse.csr_array((matrix.data, places, matrix.indptr), shape=(len(target), len(found) + 1))
        self._places = {f"f{index}": place for place, index in enumerate(found.tolist())}
        # Beyond 2^53, float64 skips integers.
        integral = np.all((np.abs(target) <= 2.0**53) & (target == np.trunc(target)))
        self._labels: dict[str, NDArray[Any]] = {"target": target.astype(np.int64) if integral else target}
        if len(query):
            self._labels["qid"] = query.astype(np.int64)
        types = {name: "integer" if values.dtype.kind == "i" else "number" for name, values in self._labels.items()}
        self._columns = {**types, **dict.fromkeys(self._places, "number")}

    def has(self, name: str) -> bool:
        return name in self._labels or _FEATURE.fullmatch(name) is not None

    def _types(self, names: tuple[str, ...], stated: Mapping[str, ReadAs]) -> dict[str, ReadAs]:
        return {name: self._columns.get(name, "number") for name in names if name not in stated}

    def _read(self, types: Mapping[str, ReadAs], rows: int, begin: int) -> Iterator[Batch]:  # noqa: ARG002  (all of it is in memory)
        names = [name for name in types if name not in self._labels]
        places = [self._places.get(name, -1) for name in names]
        for start in range(0, self._features.shape[0], rows):
            part = slice(start, start + rows)
            dense = self._features[part][:, places].toarray(order="F")
            found = {
                **dict(zip(names, dense.T, strict=True)),
                **{n: labels[part] for n, labels in self._labels.items()},
            }
            arrays = {n: read_as(n, arrow_array(n, found[n]), kind, start) for n, kind in types.items()}
            yield Batch(start, arrays)
