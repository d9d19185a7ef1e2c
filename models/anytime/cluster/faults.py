"""What becomes of a cluster's own faults: one line that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from anytime.errors import TrainingError

__all__ = ["distributed", "told"]


def distributed() -> Any:
    """Dask's package.

    Raises
    ------
    TrainingError
        It is not installed.
    """
    try:
        return import_module("distributed")
    except ImportError as error:
        raise TrainingError(
            "--backend dask needs distributed; install it with: pip install 'anytime-linear[dask]'"
        ) from error


@contextmanager
def told() -> Iterator[None]:
    """Context of waiting for tasks: put failures of the cluster in words, and pass on what is wrong with the rows.

    Raises
    ------
    TrainingError
        Workers lack a package or memory, or the scheduler is gone.
    """
    module = distributed()
    try:
        yield
    except ImportError as error:
        raise TrainingError(
            f"a worker cannot import what it needs ({error}); install anytime-linear there", environment=True
        ) from error
    except module.KilledWorker as error:
        raise TrainingError(
            "a part of the table ended several workers; give them more memory, or the table smaller row groups",
            environment=True,
        ) from error
    except (CancelledError, module.comm.CommClosedError) as error:
        raise TrainingError(
            "the Dask scheduler is gone; restart it, and run the command again", environment=True
        ) from error
