"""What the tests of the library share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(scope="module")
def one_blas_thread() -> Iterator[None]:
    """Small products only: threads would spend their time waiting for each other."""
    with threadpool_limits(1):
        yield
