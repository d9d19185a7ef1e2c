"""The array types of the library's signatures."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bool", "Float", "Index"]

Float: TypeAlias = NDArray[np.float64]
Index: TypeAlias = NDArray[np.intp]
Bool: TypeAlias = NDArray[np.bool_]
