"""An event loop in a thread of its own, to which calls from other threads are sent."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from threading import Event, Lock, Thread
from typing import Any, ParamSpec, TypeVar

from anytime_service.client.errors import ClosedError

__all__ = ["Portal"]

P = ParamSpec("P")
Result = TypeVar("Result")


class Portal:
    """Runs coroutines for other threads until it is closed.

    Parameters
    ----------
    at_end : awaited in the loop when it is closed.

    Notes
    -----
    The thread is a daemon: a program that ends without closing it is not held up by it.
    """

    def __init__(self, at_end: Callable[[], Awaitable[None]]) -> None:
        self._at_end = at_end
        self._process = os.getpid()
        self._lock = Lock()
        self._stopped = False
        self._ready = Event()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._thread = Thread(target=lambda: asyncio.run(self._main()), name="anytime-client", daemon=True)
        self._thread.start()
        self._ready.wait()

    def call(self, function: Callable[P, Coroutine[Any, Any, Result]], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Run a coroutine function in the loop, and wait for what it returns or raises.

        Raises
        ------
        ClosedError
            The portal is closed, was closed meanwhile, or belongs to the process that this one was forked from.
        """
        if self._process != os.getpid():
            raise ClosedError("this client was made before a fork; make another in this process")
        with self._lock:
            if self._stopped:
                raise ClosedError("this client is closed; make another")
            future = asyncio.run_coroutine_threadsafe(function(*args, **kwargs), self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ClosedError("this client was closed meanwhile; make another") from None
        except BaseException:  # Ctrl-C while waiting: what was begun for this caller ends too
            future.cancel()
            raise

    def stop(self) -> None:
        """End the loop and its thread soon; after a fork there is nothing to end. Safe to call twice."""
        if self._process != os.getpid():
            return
        with self._lock:
            stopped, self._stopped = self._stopped, True
        if not stopped:
            self._loop.call_soon_threadsafe(self._stop.set)

    def close(self) -> None:
        """End the loop and its thread, and wait until they have ended. Safe to call twice."""
        self.stop()
        if self._process == os.getpid():
            self._thread.join()

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._stop.wait()
        await self._at_end()
