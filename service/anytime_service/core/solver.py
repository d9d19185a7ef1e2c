"""Solving for sets of groups beside the event loop, so that no other answer waits for it.

Most sets are at hand: prefixes, and those solved before. Small ones are solved on the spot, for less than handing them
over costs. The others go to one thread, where each is solved once for all who ask; a set that would take too long, or
comes when too many wait, is refused, and the prefix stands in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter

from anytime.inference.subsets import ArrivedModel, arrived_at_hand, arrived_model
from anytime.model.model import Model

__all__ = [
    "AT_ONCE",
    "MAX_WAITING",
    "TELLING",
    "Solver",
]

AT_ONCE = 64
"""Columns of a set that is solved on the spot."""

MAX_WAITING = 64
"""Sets that may wait for the thread."""

TELLING = 256
"""Columns from which on what solving took tells of its cube; what smaller sets take is mostly something else."""

_log = logging.getLogger("anytime_service")

AnswerCallback = Callable[[ArrivedModel | None], None]


class Solver:
    """Finds the optima that open predictions want.

    Parameters
    ----------
    max_ms : longest time that solving one set may take, as estimated from the sets solved before.
    """

    def __init__(self, max_ms: float) -> None:
        self._max_ms = max_ms
        self._ms_per_cube = 3e-8  # for D^3, until one has been measured
        self._waiting: dict[tuple[Model, frozenset[str]], list[AnswerCallback]] = {}
        self._thread = ThreadPoolExecutor(1, "anytime-solver")

    def at_once(self, model: Model, groups: frozenset[str]) -> ArrivedModel | None:
        """Optimum of a set that is at hand, or small enough to be solved on the spot; else None."""
        try:
            found = arrived_at_hand(model, groups)
            if found is None and _columns(model, groups) <= AT_ONCE:
                found = arrived_model(model, groups)
        except Exception:  # a fault of ours costs the optimum, not the answer: the prefix stands in
            _log.exception("solving for %s failed", sorted(groups))
            return None
        return found

    def find(self, model: Model, groups: frozenset[str], tell: AnswerCallback) -> None:
        """Find the optimum of a set: `tell` is called with it, now or later from the loop, or with None if refused."""
        found = self.at_once(model, groups)
        columns = _columns(model, groups)
        if found is not None:
            tell(found)
        elif (model, groups) in self._waiting:
            self._waiting[model, groups].append(tell)
        elif len(self._waiting) >= MAX_WAITING or columns**3 * self._ms_per_cube > self._max_ms:
            tell(None)
        else:
            self._waiting[model, groups] = [tell]
            solving = asyncio.get_running_loop().run_in_executor(self._thread, _timed, model, groups)
            solving.add_done_callback(partial(self._done, model, groups, columns))

    def close(self) -> None:
        """End the thread; what waits is never told."""
        self._waiting.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _done(
        self,
        model: Model,
        groups: frozenset[str],
        columns: int,
        solving: asyncio.Future[tuple[ArrivedModel, float]],
    ) -> None:
        tells = self._waiting.pop((model, groups), [])
        if solving.cancelled():
            return
        error = solving.exception()
        if error is not None:
            _log.error("solving for %s failed", sorted(groups), exc_info=error)
            found = None
        else:
            found, took_ms = solving.result()
            # The smallest of what was measured is the work itself, more is a busy machine; and it forgets, slowly.
            if columns >= TELLING:
                self._ms_per_cube = min(self._ms_per_cube * 1.1, took_ms / columns**3)
        for tell in tells:
            tell(found)


def _columns(model: Model, groups: frozenset[str]) -> int:
    return sum(model.places[name].stop - model.places[name].start for name in groups)


def _timed(model: Model, groups: frozenset[str]) -> tuple[ArrivedModel, float]:
    begin = perf_counter()
    return arrived_model(model, groups), (perf_counter() - begin) * 1000.0
