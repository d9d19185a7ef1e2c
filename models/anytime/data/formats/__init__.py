"""Tables on disk, read in batches: Parquet, CSV, Arrow, svmlight and npz files of any size.

``open_table`` reads only the head of a file. ``Table.batches`` then reads the requested columns and no others.
"""

from __future__ import annotations

from anytime.data.formats.open import fingerprint, open_table
from anytime.data.formats.table import ROWS, Batch, Table, Text

__all__ = ["ROWS", "Batch", "Table", "Text", "fingerprint", "open_table"]
