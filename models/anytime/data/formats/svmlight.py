"""svmlight (libsvm) files: `target qid:7 3:0.5 12:1`, stored sparsely in memory.

The columns are `target`, `qid` if the file has it, and an `f<index>` for each index that some row has, as written in
the file. Any other feature is readable and zero, since a test file often has fewer features than its training file. The
target is int64 if all targets are integral numbers, because the format has no types.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anytime.data.formats.memory import array_as
from anytime.data.formats.table import Batch, ReadAs, Table, damaged, required
from anytime.errors import TableError

_FEATURE = re.compile(r"f(0|[1-9][0-9]*)")


class SvmlightTable(Table):
    """An svmlight file, read completely when opened; batches are made dense one at a time."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        from scipy import sparse  # noqa: PLC0415  (a server never needs it)

        load = required("sklearn.datasets").load_svmlight_file
        try:
            with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
                matrix, target, query = load(file, zero_based=True, query_id=True)
        except (ValueError, OverflowError, EOFError, OSError, zlib.error) as error:
            raise damaged(self.name, "svmlight", error) from error
        if not len(target):
            raise self._no_rows()
        if len(query) not in (0, len(target)):
            raise TableError(f"{self.name}: {len(query)} of {len(target)} rows have a qid; expected all or none")
        found = np.unique(matrix.indices)
        places = np.searchsorted(found, matrix.indices)
        # One column per feature present, whatever the indices: the memory of a slice grows with the width.
        self._features = sparse.csr_array((matrix.data, places, matrix.indptr), shape=(len(target), len(found)))
        self._places = {f"f{index}": place for place, index in enumerate(found.tolist())}
        # Beyond 2^53, float64 skips integers.
        integral = np.all((np.abs(target) <= 2.0**53) & (target == np.trunc(target)))
        self._labels: dict[str, NDArray[Any]] = {"target": target.astype(np.int64) if integral else target}
        if len(query):
            self._labels["qid"] = query.astype(np.int64)
        self._columns = {**self._labels, **self._places}

    def has(self, name: str) -> bool:
        return name in self._labels or _FEATURE.fullmatch(name) is not None

    def _types(self, names: tuple[str, ...], stated: Mapping[str, ReadAs]) -> dict[str, ReadAs]:
        whole = {name for name, values in self._labels.items() if values.dtype.kind == "i"}
        return {name: "integer" if name in whole else "number" for name in names if name not in stated}

    def _read(self, types: Mapping[str, ReadAs], rows: int, begin: int) -> Iterator[Batch]:  # noqa: ARG002  (all of it is in memory)
        inside = {name: self._places[name] for name in types if name in self._places}
        for start in range(0, self._features.shape[0], rows):
            part = slice(start, start + rows)
            dense = self._features[part][:, list(inside.values())].toarray(order="F")
            found = dict(zip(inside, dense.T, strict=True))
            zeros = np.zeros(len(dense))
            values = {name: found.get(name, zeros) for name in types}
            values |= {name: self._labels[name][part] for name in types if name in self._labels}
            yield Batch(start, {name: array_as(name, values[name], kind, start) for name, kind in types.items()})
