"""One BLAS thread for small linear algebra.

numpy and scipy each bring an OpenBLAS with threads of its own; on blocks of ten columns they spin against each other
and cost ten times what they save. Only the big cross-products use more than one core, and there by rows, one BLAS
thread each.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache

import scipy.linalg  # noqa: F401  (loads scipy's OpenBLAS, so that the controller finds both)
from threadpoolctl import ThreadpoolController

__all__ = ["single_blas_thread"]


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def single_blas_thread() -> AbstractContextManager[object]:
    """Context in which BLAS uses one thread; the setting is the process's, and is put back at the end."""
    limit: AbstractContextManager[object] = _controller().limit(limits=1, user_api="blas")
    return limit
