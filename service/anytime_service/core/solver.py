"""Solver that finds the optimum of a set of groups in a background thread, so that no other answer waits for it.

The optima of most sets are available at once: prefixes, and sets solved before. The solver solves small sets
immediately, since that costs less than passing them to the thread. One thread solves each of the other sets once for
all predictions that need it. The solver refuses a set that would take too long, or that arrives while too many sets
wait; the prediction then uses the prefix.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter

from anytime.inference.subsets import ArrivedModel, arrived_model, cached_arrived_model
from anytime.model.model import Model
from anytime_service.limits.tuning import TUNING, Tuning

AT_ONCE = 64  # largest number of columns of a set that is solved immediately

_log = logging.getLogger("anytime_service")

OptimumCallback = Callable[[ArrivedModel | None], None]


class Solver:
    """Solver that refuses a set whose estimated time exceeds `max_ms`; the estimate uses the sets solved before."""

    def __init__(self, max_ms: float, tuning: Tuning = TUNING) -> None:
        self._max_ms = max_ms
        self._tuning = tuning
        self._ms_per_cube = 3e-8  # for D^3, until one has been measured
        self._waiting: dict[tuple[Model, frozenset[str]], list[OptimumCallback]] = {}
        self._thread = ThreadPoolExecutor(1, "anytime-solver")

    def at_once(self, model: Model, groups: frozenset[str]) -> ArrivedModel | None:
        """Return the optimum of a set if it is available or the set is small enough to solve immediately, else None."""
        try:
            found = cached_arrived_model(model, groups)
            if found is None and _columns(model, groups) <= AT_ONCE:
                found = arrived_model(model, groups)
        except Exception:  # an internal error costs the optimum, not the answer: the prediction uses the prefix
            _log.exception("solving for %s failed", sorted(groups))
            return None
        return found

    def find(self, model: Model, groups: frozenset[str], on_found: OptimumCallback) -> None:
        """Find the optimum of a set; call `on_found` with it, now or later from the loop, or with None if refused."""
        found = self.at_once(model, groups)
        columns = _columns(model, groups)
        if found is not None:
            on_found(found)
        elif (model, groups) in self._waiting:
            self._waiting[model, groups].append(on_found)
        elif len(self._waiting) >= self._tuning.max_solving or columns**3 * self._ms_per_cube > self._max_ms:
            on_found(None)
        else:
            self._waiting[model, groups] = [on_found]
            solving = asyncio.get_running_loop().run_in_executor(self._thread, _timed, model, groups)
            solving.add_done_callback(partial(self._done, model, groups, columns))

    def close(self) -> None:
        """End the thread and discard the waiting sets; their callbacks are never called."""
        self._waiting.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _done(
        self, model: Model, groups: frozenset[str], columns: int, solving: asyncio.Future[tuple[ArrivedModel, float]]
    ) -> None:
        callbacks = self._waiting.pop((model, groups), [])
        if solving.cancelled():
            return
        error = solving.exception()
        if error is not None:
            _log.error("solving for %s failed", sorted(groups), exc_info=error)
            found = None
        else:
            found, took_ms = solving.result()
            # The smallest measurement is the work itself; larger ones come from a busy machine. The estimate decays.
            if columns >= self._tuning.min_timed_columns:
                self._ms_per_cube = min(self._ms_per_cube * 1.1, took_ms / columns**3)
        for on_found in callbacks:
            on_found(found)


def _columns(model: Model, groups: frozenset[str]) -> int:
    return sum(model.places[name].stop - model.places[name].start for name in groups)


def _timed(model: Model, groups: frozenset[str]) -> tuple[ArrivedModel, float]:
    begin = perf_counter()
    return arrived_model(model, groups), (perf_counter() - begin) * 1000.0
