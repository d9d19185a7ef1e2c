"""What goes on beside an attack: probes, and a look at the server's memory."""

from __future__ import annotations

import http.client
import threading
import time

from benchmarks.load.child import Child

__all__ = ["Memory", "Prober"]


class _Beside:
    """A thread that does something again and again until the end of the block."""

    every_s = 0.1

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _go_on(self) -> None:
        while not self._over.wait(self.every_s):
            self.look()

    def look(self) -> None:
        """Do it once."""
        raise NotImplementedError


class Prober(_Beside):
    """Asks `/livez` on connections of its own, as an orchestrator would.

    Attributes
    ----------
    taken_s : how long each probe took to be answered by 200; infinite where it was not.
    """

    def __init__(self, port: int, patience_s: float = 5.0) -> None:
        super().__init__()
        self.taken_s: list[float] = []
        self._port, self._patience_s = port, patience_s

    def look(self) -> None:
        """Ask once."""
        begun = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=self._patience_s)
        try:
            connection.request("GET", "/livez", headers={"Connection": "close"})
            well = connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            well = False
        finally:
            connection.close()
        self.taken_s.append(time.perf_counter() - begun if well else float("inf"))


class Memory(_Beside):
    """The most memory that a process was seen to hold."""

    every_s = 0.02

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._child = Child(pid, 0)
        self.worst_mib = self._child.resident_mib

    def look(self) -> None:
        """Look once."""
        try:
            self.worst_mib = max(self.worst_mib, self._child.resident_mib)
        except OSError:  # it has ended, which is told elsewhere
            self._over.set()
