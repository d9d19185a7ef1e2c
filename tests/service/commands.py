"""The command `anytime serve` in a process of its own, for the tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Condition, Thread
from time import monotonic

from service.serving import Running

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONWARNINGS": "error"}


class Command:
    """`anytime serve` in a process of its own, and what it says."""

    def __init__(self, arguments: Iterable[object], environment: Mapping[str, str]) -> None:
        reported = ["--port", "0", *map(str, arguments)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "anytime", "serve", *reported],
            env={**ENVIRONMENT, **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._more = Condition()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def said(self, words: str, within_s: float = 120.0) -> re.Match[str]:
        """Wait until a line has these words, which it is then taken off with those before."""
        give_up = monotonic() + within_s
        with self._more:
            while True:
                while self.lines:
                    if found := re.search(words, self.lines.pop(0)):
                        return found
                assert self._more.wait(give_up - monotonic()), f"never said: {words}"

    def stopped(self) -> str:
        """Wait for its end; what it said last."""
        self.process.wait(60)
        self._reader.join(60)
        return "".join(self.lines)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._more:
                self.lines.append(line)
                self._more.notify_all()


@contextmanager
def command(*arguments: object, **environment: str) -> Iterator[tuple[Command, Running]]:
    """Serve model files in a process of its own."""
    with commands(1, *arguments, **environment) as (served,):
        yield served


@contextmanager
def commands(count: int, *arguments: object, **environment: str) -> Iterator[list[tuple[Command, Running]]]:
    """Serve the same model files in several processes, which start at once."""
    served = [Command(arguments, environment) for _ in range(count)]
    try:
        yield [(each, Running(int(each.said(r"serving .* on https?://\S+:(\d+)")[1]))) for each in served]
    finally:
        for each in served:
            each.process.kill()
            each.stopped()
            assert each.process.stderr is not None
            each.process.stderr.close()
