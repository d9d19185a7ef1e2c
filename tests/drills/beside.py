"""What goes on beside an attack: probes, and a look at the server's memory."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Mapping

from benchmarks.load.child import Child

__all__ = ["Memory", "Predictor", "Prober"]


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


class Predictor(_Beside):
    """Requests a prediction on connections of its own, and compares the answer with the expected one.

    Parameters
    ----------
    body : the request, in JSON.
    expected : the scores that it is to be answered with.
    headers : of each request.

    Attributes
    ----------
    taken_s : how long each answer took; infinite where there was none.
    wrong : answers with other scores, and refusals other than 503.
    shed : answers with 503.
    """

    def __init__(self, port: int, body: bytes, expected: object, headers: Mapping[str, str]) -> None:
        super().__init__()
        self.taken_s: list[float] = []
        self.wrong: list[str] = []
        self.shed = 0
        self._port, self._body, self._expected = port, body, expected
        self._headers = {"Connection": "close", "Content-Type": "application/json", **headers}

    def look(self) -> None:
        """Request once."""
        begun = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5.0)
        try:
            connection.request("POST", "/predict", self._body, self._headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException):
            self.taken_s.append(float("inf"))
            return
        finally:
            connection.close()
        self.taken_s.append(time.perf_counter() - begun)
        if response.status == 503:
            self.shed += 1
        elif response.status != 200 or json.loads(content)["prediction"] != self._expected:
            self.wrong.append(f"{response.status}: {content[:200]!r}")


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
