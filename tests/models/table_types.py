"""A table in every type that a model accepts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
from pyarrow.feather import write_feather

from anytime import open_table

__all__ = ["TYPES"]

TYPES: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "pandas": lambda frame, _: frame,
    "polars": lambda frame, _: pl.from_pandas(frame),
    "lazy": lambda frame, _: pl.from_pandas(frame).lazy(),
    "arrow": lambda frame, _: pa.Table.from_pandas(frame),
    "stream": lambda frame, _: pa.Table.from_pandas(frame).to_reader(),
    "dicts": lambda frame, _: frame.astype(object).where(frame.notna(), None).to_dict("records"),
    "csv": lambda frame, path: frame.to_csv(path / "t.csv", index=False) or path / "t.csv",
    "parquet": lambda frame, path: frame.to_parquet(path / "t.parquet", index=False) or str(path / "t.parquet"),
    "feather": lambda frame, path: write_feather(frame, path / "t.arrow") or path / "t.arrow",
    "table": lambda frame, path: frame.to_parquet(path / "u.parquet") or open_table(path / "u.parquet"),
}
"""Makes a table of a frame, with a file in a folder where it needs one."""
