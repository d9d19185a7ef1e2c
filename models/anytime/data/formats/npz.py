"""NumPy archives: each 1-D array is a column by name, and each column of a 2-D array `X` is a column.

The columns of `X` are named `x0`, `x1` ..., or as in a 1-D array of text `columns` or `feature_names`. Opening reads
the headers only. Arrays are streamed, except one in Fortran order, which stays in memory while it is read. Arrays of
objects are rejected, because they are pickles.
"""

from __future__ import annotations

import lzma
import math
import zipfile
import zlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from anytime.data.formats.memory import array_as, type_of_array
from anytime.data.formats.table import Batch, ReadAs, Table, damaged
from anytime.errors import TableError, unusable

_DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError, ValueError)
"""Exceptions raised for a file that is not an archive, or is truncated."""

_NO_HEADER = (ArithmeticError, AttributeError, LookupError, MemoryError, SyntaxError, TokenError, TypeError)
"""Exceptions besides ValueError that numpy lets through for an invalid header; MemoryError for a deeply nested one."""


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]


class NpzTable(Table):
    """An .npz file, compressed or not."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with self._reading() as archive:
            headers = {
                member.removesuffix(".npy"): _header(archive, member)
                for member in archive.namelist()
                if member.endswith(".npy")
            }
        matrix = headers.get("X")
        names = self._feature_names(headers) if matrix is not None and len(matrix.shape) == 2 else ()
        self._arrays = {
            name: header for name, header in headers.items() if len(header.shape) == 1 or (name == "X" and names)
        }
        # Source of each column: its array, and the column's index in a 2-D array.
        sources = [(name, ("X", j)) for j, name in enumerate(names)]
        sources += [(name, (name, 0)) for name, header in self._arrays.items() if len(header.shape) == 1]
        self._check_names([name for name, _ in sources])
        self._columns = self._sources = dict(sources)
        self._check_lengths()

    def _feature_names(self, headers: dict[str, _Header]) -> tuple[str, ...]:
        """Return the names of the columns of `X`; the array of names then is not a column itself."""
        (rows, width), dtype = headers["X"].shape, headers["X"].dtype
        if not rows:
            raise self._no_rows()
        if not dtype.itemsize:
            raise TableError(f"{self.name}: array 'X' is {dtype}; expected numbers or text")
        for key in ("columns", "feature_names"):
            header = headers.get(key)
            if header is None or len(header.shape) != 1 or header.dtype.kind not in "USO":
                continue
            if header.dtype.kind == "O":
                raise TableError(f"{self.name}: array {key!r} holds objects; save it as text, with astype(str)")
            if header.shape[0] != width:
                raise TableError(f"{self.name}: {key!r} names {header.shape[0]} columns; expected {width}, as X has")
            del headers[key]
            with self._reading() as archive:
                return tuple(_text(next(_pieces(archive, key, header, max(1, width)))).tolist()) if width else ()
        return tuple(f"x{j}" for j in range(width))

    def _check_lengths(self) -> None:
        first, header = next(iter(self._arrays.items()))
        for name, other in self._arrays.items():
            if other.shape[0] != header.shape[0]:
                raise TableError(
                    f"{self.name}: array {name!r} has {other.shape[0]} rows and {first!r} has {header.shape[0]}; "
                    "expected the same in all"
                )
        if not header.shape[0]:
            raise self._no_rows()

    def _types(self, names: tuple[str, ...], stated: Mapping[str, ReadAs]) -> dict[str, ReadAs]:
        found: dict[str, ReadAs] = {}
        for name in names:
            dtype = self._arrays[self._sources[name][0]].dtype
            if dtype.kind == "O":
                raise TableError(f"{self.name}: {name!r} holds objects; save it as numbers or, with astype(str), text")
            kind = type_of_array(dtype)
            if kind is None:
                raise TableError(f"{self.name}: {unusable(repr(name), dtype)}")
            if name not in stated:
                found[name] = kind
        return found

    def described(self, name: str) -> str:
        return str(self._arrays[self._sources[name][0]].dtype)

    def _read(self, types: Mapping[str, ReadAs], rows: int, begin: int) -> Iterator[Batch]:
        del begin  # read from the start
        arrays = tuple(dict.fromkeys(self._sources[name][0] for name in types))
        with ExitStack() as stack:
            # One handle per array: reading one zip file at several positions would seek back and forth.
            archives = [stack.enter_context(self._reading()) for _ in arrays]
            streams = [
                stack.enter_context(closing(_pieces(archive, array, self._arrays[array], rows)))
                for archive, array in zip(archives, arrays, strict=True)
            ]
            start = 0
            for pieces in zip(*streams, strict=True):
                found = dict(zip(arrays, pieces, strict=True))
                yield Batch(start, {name: self._column(found, name, kind, start) for name, kind in types.items()})
                start += len(pieces[0])

    def _column(self, found: dict[str, NDArray[Any]], name: str, kind: ReadAs, row: int) -> NDArray[Any]:
        array, j = self._sources[name]
        values = found[array] if found[array].ndim == 1 else found[array][:, j]
        return array_as(name, _text(values) if values.dtype.kind in "US" else values, kind, row)

    @contextmanager
    def _reading(self) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                yield archive
        except TableError:
            raise
        except _DAMAGE as error:
            raise damaged(self.name, "npz", error) from error


def _header(archive: zipfile.ZipFile, member: str) -> _Header:
    """Return shape and dtype of an array after checking that the file contains all its values."""
    with archive.open(member) as file:
        header = _read_header(file)
        available = archive.getinfo(member).file_size - file.tell()
    # A pickled object has at least one byte.
    size = 1 if header.dtype.hasobject else header.dtype.itemsize
    if min(header.shape, default=0) < 0 or math.prod(header.shape) * size > available:
        raise ValueError(f"{member!r} has shape {header.shape} but only {available} bytes")
    return header


def _read_header(file: IO[bytes]) -> _Header:
    """Return shape and dtype of an array; the file position is then at its first value."""
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an array has format version {version[0]}.{version[1]}; expected 1.0 or 2.0")
    try:
        return _Header(*(npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(file))
    except _NO_HEADER as error:
        raise ValueError(f"an array has an invalid header: {error}") from error


def _pieces(archive: zipfile.ZipFile, array: str, header: _Header, rows: int) -> Generator[NDArray[Any]]:
    with archive.open(f"{array}.npy") as file:
        if header.fortran and len(header.shape) > 1:
            values = npy.read_array(file, allow_pickle=False)
            yield from (values[start : start + rows] for start in range(0, len(values), rows))
            return
        _read_header(file)
        length, tail = header.shape[0], header.shape[1:]
        width = int(np.prod(tail)) * header.dtype.itemsize
        for start in range(0, length, rows):
            count = min(rows, length - start)
            content = file.read(count * width)
            if len(content) < count * width:
                raise EOFError(f"array {array!r} is truncated")
            yield np.frombuffer(content, header.dtype).reshape(count, *tail) if width else np.zeros((count, *tail))


def _text(values: NDArray[Any]) -> NDArray[Any]:
    """Return text as objects; bytes are decoded as UTF-8."""
    return (np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values).astype(object)
