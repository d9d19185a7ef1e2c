"""Tables on disk, read in batches: Parquet, CSV, Arrow, svmlight and npz, files of any size.

``open_table`` looks at the file and reads no more than it must; ``Table.batches`` then reads the columns asked for, and
only those.
"""

from __future__ import annotations

from anytime.tables.features import feature_matrix, numbers
from anytime.tables.formats import fingerprint, open_table
from anytime.tables.table import ROWS, Batch, Table, Text

__all__ = ["ROWS", "Batch", "Table", "Text", "feature_matrix", "fingerprint", "numbers", "open_table"]
