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

from anytime.inference.subsets import ArrivedModel, arrived_model, cached_arrived_model, columns_of, expected_ms
from anytime.model.model import Model
from anytime_service.limits.tuning import TUNING, Tuning

MAX_SMALL = 64  # largest number of columns of a set that is solved immediately

_log = logging.getLogger("anytime_service")

OptimumCallback = Callable[[ArrivedModel | None], None]


class Solver:
    """Solver that refuses a set whose estimated time exceeds `max_ms`."""

    def __init__(self, max_ms: float, tuning: Tuning = TUNING) -> None:
        self._max_ms = max_ms
        self._max_waiting = tuning.max_solving
        self._waiting: dict[tuple[Model, frozenset[str]], list[OptimumCallback]] = {}
        self._thread = ThreadPoolExecutor(1, "anytime-solver")

    def at_once(self, model: Model, groups: frozenset[str]) -> ArrivedModel | None:
        """Return the optimum of a set if it is available or the set is small enough to solve immediately, else None."""
        try:
            found = cached_arrived_model(model, groups)
            is_small = columns_of(model, groups) <= MAX_SMALL
            return arrived_model(model, groups) if found is None and is_small else found
        except Exception:  # an internal error costs the optimum, not the answer: the prediction uses the prefix
            _log.exception("solving for %s failed", sorted(groups))
            return None

    def find(self, model: Model, groups: frozenset[str], on_found: OptimumCallback) -> None:
        """Find the optimum of a set; call `on_found` with it, now or later from the loop, or with None if refused."""
        found, key = self.at_once(model, groups), (model, groups)
        if found is None and key in self._waiting:
            self._waiting[key].append(on_found)
        elif found is None and len(self._waiting) < self._max_waiting and self._is_quick(model, groups):
            self._waiting[key] = [on_found]
            solving = asyncio.get_running_loop().run_in_executor(self._thread, arrived_model, model, groups)
            solving.add_done_callback(partial(self._done, key))
        else:
            on_found(found)

    def _is_quick(self, model: Model, groups: frozenset[str]) -> bool:
        try:
            return expected_ms(model, groups) <= self._max_ms
        except Exception:  # as in `at_once`
            _log.exception("solving for %s failed", sorted(groups))
            return False

    def close(self) -> None:
        """End the thread and discard the waiting sets; their callbacks are never called."""
        self._waiting.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _done(self, key: tuple[Model, frozenset[str]], solving: asyncio.Future[ArrivedModel]) -> None:
        callbacks = self._waiting.pop(key, [])
        if solving.cancelled():
            return
        error = solving.exception()
        if error is not None:
            _log.error("solving for %s failed", sorted(key[1]), exc_info=error)
        for on_found in callbacks:
            on_found(solving.result() if error is None else None)
