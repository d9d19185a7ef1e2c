"""What runs in a worker process: take the extractors, then one job after another, and send each group when computed.

    parent -> child    extractors, then for each job (job, order) and x
    child -> parent    None (ready) or why not, then for each job the fields of each `Arrival`, and None at its end

All of it pickled, by `packed`: `Connection.send` pickles too, at several times the cost.

`stop` is shared memory: jobs up to its value are cancelled, which is looked at before each extractor.
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
    """Serve jobs until the other end of the pipe is gone."""
    # Ctrl-C goes to every process of a terminal; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        extractors = pipe.recv()
    except Exception as error:  # whatever importing somebody's module raises
        pipe.send_bytes(packed(summary(error)))
        return
    pipe.send_bytes(packed(None))
    # The other cores belong to whoever waits for the answer; BLAS threads that spin would take them.
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
            except Exception as error:  # whatever unpickling somebody's class raises
                _send(pipe, Arrival(order[0], None, 0.0, f"the input does not load in the worker: {summary(error)}"))
            else:
                for arrival in computed(order, extractors, x, partial(_stopped, stop, job)):
                    _send(pipe, arrival)
            pipe.send_bytes(packed(None))
    except (EOFError, OSError):
        return


def packed(message: object) -> bytes:
    """Pickle, in the newest protocol."""
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def _stopped(stop: c_longlong, job: int) -> bool:
    return stop.value >= job


def _send(pipe: Connection[Any, Any], arrival: Arrival) -> None:
    try:
        message = packed((arrival.group, arrival.values, arrival.took_ms, arrival.error))
    except Exception as error:  # whatever pickling somebody's values raises
        reason = f"its values cannot be sent from the worker: {summary(error)}"
        message = packed((arrival.group, None, arrival.took_ms, reason))
    pipe.send_bytes(message)
