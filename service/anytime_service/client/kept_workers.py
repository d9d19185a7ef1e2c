"""Workers kept between runs, so that not every run starts a thread or a process.

At most four sets of extractors are kept, the least recently used goes first; those that runs are using stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from anytime.inference.workers import Worker, Workers
from anytime_service.client.errors import ClosedError

__all__ = ["KEPT", "KeptWorkers", "Pool"]

KEPT = 4


@dataclass(eq=False)
class Pool:
    """Workers for some extractors, and threads that hand on what they compute.

    There are as many of the one as of the other. Both take runs in the order in which they came, so a run whose groups
    are being computed never waits to have them handed on.
    """

    extractors: dict[str, Callable[[Any], Any]]
    worker: Worker
    workers: Workers
    pumps: ThreadPoolExecutor
    users: int = 0

    def close(self) -> None:
        """End the threads and processes; takes as long as `Workers.close`."""
        self.workers.close()
        self.pumps.shutdown()


class KeptWorkers:
    """The pools of one client; belongs to one event loop.

    Parameters
    ----------
    max_workers : threads or processes that each pool may have.
    """

    def __init__(self, max_workers: int) -> None:
        self._max_workers = max_workers
        self._pools: list[Pool] = []  # the least recently used first
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def at_hand(self, extractors: Mapping[str, Callable[[Any], Any]], worker: Worker) -> Pool | None:
        """Find the pool for these extractors (by equality) and this worker."""
        for place, pool in enumerate(self._pools):
            if pool.worker == worker and pool.extractors == extractors:
                self._pools.append(self._pools.pop(place))
                return pool
        return None

    async def make(self, extractors: Mapping[str, Callable[[Any], Any]], worker: Worker) -> Pool:
        """Make a pool, which for processes takes most of a second, and keep it.

        Raises
        ------
        ExtractorError
            As `anytime.inference.workers.Workers` does.
        ClosedError
            The client was closed meanwhile.
        """
        own = dict(extractors)
        workers = await asyncio.to_thread(Workers, own, worker, max_workers=self._max_workers)
        pool = self.at_hand(own, worker)
        made = Pool(own, worker, workers, ThreadPoolExecutor(self._max_workers, "anytime-client-pump"))
        if pool is not None or self._closed:  # two runs may both have made one; the first stays
            self._close(made)
            if pool is None:
                raise ClosedError("this client was closed meanwhile; make another")
            return pool
        self._pools.append(made)
        # One that is in use is let be; there are then more than four for a while, as many as runs can use.
        for gone in [idle for idle in self._pools[:-1] if not idle.users][: max(0, len(self._pools) - KEPT)]:
            self._pools.remove(gone)
            self._close(gone)
        return made

    async def close(self) -> None:
        """Close every pool."""
        self._closed = True
        for pool in self._pools:
            self._close(pool)
        self._pools.clear()
        await asyncio.gather(*self._closing)

    def _close(self, pool: Pool) -> None:
        closing = asyncio.create_task(asyncio.to_thread(pool.close))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
