"""Keys that change while the server runs: the file is looked at every second, and read again when it is another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from anytime_service.errors import KeysError
from anytime_service.keys import SHORT, KeyRing

__all__ = ["LOOK_S", "Rotation"]

LOOK_S = 1.0

_log = logging.getLogger("anytime_service")


class Rotation:
    """Keeps a ring of keys as its file has them; belongs to one event loop.

    Parameters
    ----------
    keys : the ring.
    changed : called when other keys hold than before.
    """

    def __init__(self, keys: KeyRing, changed: Callable[[], None]) -> None:
        self._keys = keys
        self._changed = changed
        self._told = ""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look, from inside the event loop."""
        self._warn()
        if self._keys.file is not None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def read(self) -> None:
        """Read the file again; where that cannot be done the keys stay as they are, and the log says so once."""
        try:
            changed = self._keys.read()
        except KeysError as error:
            if str(error) != self._told:
                self._told = str(error)
                _log.error("keys stay as they were: %s", error)
            return
        self._told = ""
        if changed:
            _log.info("keys read again: %d hold", len(self._keys))
            self._warn()
            self._changed()

    def _look(self) -> None:
        if self._keys.changed():
            self.read()
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _warn(self) -> None:
        if self._keys.short:
            _log.warning("%d of the keys can be guessed: they have fewer than %d characters", self._keys.short, SHORT)
