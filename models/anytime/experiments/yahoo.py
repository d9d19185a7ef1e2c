"""The owners' files of the Yahoo! Learning to Rank Challenge (webscope C14B, set 1), and the costs of its features.

`set1.train.txt`, `set1.valid.txt` and `set1.test.txt` hold a row a line, ``relevance qid:7 3:0.25 18:1``; the cost file
holds the cost of each feature in turn, by commas or lines. A cost of 1e8 or more means that the feature cannot be had.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anytime.arrays import Float, Index
from anytime.errors import TableError, file_error
from anytime.groups import FeatureGroup, FeatureGroups

__all__ = ["FILES", "check_yahoo", "read_yahoo"]

FILES = ("set1.train.txt", "set1.test.txt")
"""Rows to train on, and rows held out. The rows for validation are not read."""

UNAVAILABLE = 1e8


def read_yahoo(folder: Path, costs: Path) -> tuple[FeatureGroups, Float, Float, NDArray[np.generic], Index]:
    """Groups of one feature each, X, relevances, queries, and the part of each row (0 to train on, 1 held out).

    Features that no row has are left out, as are those that cannot be had.

    Raises
    ------
    TableError
        A file is missing or not of the form that this module's head describes.
    """
    from sklearn.datasets import load_svmlight_files  # noqa: PLC0415

    prices = check_yahoo(folder, costs)
    try:
        loaded = load_svmlight_files(
            [str(folder / name) for name in FILES], n_features=len(prices), query_id=True, zero_based=False
        )
    except (ValueError, OSError) as error:
        what = " ".join(str(error).split())
        raise TableError(
            f"cannot read the files in {str(folder)!r}: {what}; expected lines 'relevance qid:N id:value'"
        ) from error
    sparse, labels, queries = loaded[0::3], loaded[1::3], loaded[2::3]
    _check(folder, sparse, labels, queries)
    known = np.flatnonzero((prices < UNAVAILABLE) & (sum(part.getnnz(axis=0) for part in sparse) > 0))
    if not len(known):
        raise TableError(f"no row in {str(folder)!r} has a feature that can be had; expected a cost under 1e8 for some")
    X = np.concatenate([part[:, known].toarray() for part in sparse])
    made = [FeatureGroup(name=f"f{j + 1}", features=(f"f{j + 1}",), cost=float(prices[j])) for j in known]
    part = np.repeat([0, 1], [len(half) for half in labels])
    return FeatureGroups(groups=tuple(made)), X, np.concatenate(labels), np.concatenate(queries), part


def check_yahoo(folder: Path, costs: Path) -> Float:
    """Cost of each feature, (features,); the rows are only looked for.

    Raises
    ------
    TableError
        A file is missing, or the cost file is not of its form.
    """
    for path in (folder / name for name in FILES):
        if not path.is_file():
            raise TableError(f"there is no {str(path)!r}; expected {' and '.join(FILES)} in the folder of --yahoo")
    return _costs(costs)


def _check(folder: Path, sparse: Many[Any], labels: Many[Float], queries: Many[NDArray[np.generic]]) -> None:
    """Refuse what scikit-learn lets pass: no rows, rows without a query, and numbers that are none."""
    for name, values, label, query in zip(FILES, sparse, labels, queries, strict=True):
        path = str(folder / name)
        if not len(label):
            raise TableError(f"{path!r} has no rows; expected lines 'relevance qid:N id:value'")
        if len(query) != len(label):
            raise TableError(f"{path!r} has {len(label)} rows but {len(query)} queries; expected 'qid:N' in every line")
        if not (np.isfinite(label).all() and np.isfinite(values.data).all()):
            raise TableError(f"{path!r} has a relevance or a value that is not a number; expected finite numbers")


def _costs(path: Path) -> Float:
    """Cost of each feature, (features,), the first being that of feature 1."""
    try:
        cells = path.read_text(encoding="utf-8").replace(",", " ").split()
        prices = np.array([float(cell) for cell in cells])
    except OSError as error:
        raise file_error(TableError, f"read the cost file {str(path)!r}", error) from error
    except ValueError as error:
        raise TableError(
            f"cannot read the cost file {str(path)!r}: {error}; expected a number for each feature"
        ) from error
    if not len(prices) or not (np.isfinite(prices) & (prices >= 0)).all():
        raise TableError(
            f"the cost file {str(path)!r} holds no costs, or one that is negative; expected 0 or more for each feature"
        )
    return prices
