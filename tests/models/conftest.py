"""What the tests of the library share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(scope="module")
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread: these products are small, and threads would wait for each other.

    `make test-kernels` sets another number.
    """
    with threadpool_limits(int(os.environ.get("OPENBLAS_NUM_THREADS") or 1)):
        yield
