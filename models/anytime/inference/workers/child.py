"""The worker process: receive the extractors, then one job after another, and send each group when it is computed.

    parent -> child    extractors, then for each job (job, order) and x
    child -> parent    None (ready) or the error, then for each job the fields of each `Arrival`, and None at its end

All messages are pickled by `packed`: `Connection.send` pickles too, at several times the cost.

`stop` is shared memory: jobs with numbers up to its value are cancelled. The child checks it before each extractor.
"""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable, Mapping
from ctypes import c_longlong
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from anytime._linalg import single_blas_thread
from anytime.errors import summary
from anytime.inference.workers.extraction import Arrival, computed

__all__ = [
    "packed",
    "serve",
]


def serve(pipe: Connection[Any, Any], stop: c_longlong) -> None:
    """Serve jobs until the other end of the pipe is closed."""
    # Ctrl-C reaches every process of a terminal; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        extractors = pipe.recv()
    except Exception as error:  # importing a foreign module may raise anything
        pipe.send_bytes(packed(summary(error)))
        return
    pipe.send_bytes(packed(None))
    # The other cores belong to the process that answers; spinning BLAS threads would occupy them.
    with single_blas_thread():
        _serve_jobs(pipe, extractors, stop)


def _serve_jobs(pipe: Connection[Any, Any], extractors: Mapping[str, Callable[[Any], Any]], stop: c_longlong) -> None:
    try:
        while True:
            job, order = pipe.recv()
            try:
                x = pipe.recv()
            except (EOFError, OSError):
                raise
            except Exception as error:  # unpickling a foreign class may raise anything
                _send(pipe, Arrival(order[0], None, 0.0, f"the input does not load in the worker: {summary(error)}"))
            else:
                for arrival in computed(order, extractors, x, partial(_stopped, stop, job)):
                    _send(pipe, arrival)
            pipe.send_bytes(packed(None))
    except (EOFError, OSError):
        return


def packed(message: object) -> bytes:
    """Return a pickled message, in the newest protocol."""
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def _stopped(stop: c_longlong, job: int) -> bool:
    return stop.value >= job


def _send(pipe: Connection[Any, Any], arrival: Arrival) -> None:
    try:
        message = packed((arrival.group, arrival.values, arrival.took_ms, arrival.error))
    except Exception as error:  # pickling foreign values may raise anything
        reason = f"its values are not picklable: {summary(error)}"
        message = packed((arrival.group, None, arrival.took_ms, reason))
    pipe.send_bytes(message)
