"""A disk that can be full: a small file system of its own, or, where none may be mounted, files that may not grow."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Disk", "small_disk"]

MIB = 4


class Disk:
    """A folder to work in, and what is done to it.

    Attributes
    ----------
    mounted : whether it is a file system of its own; if not, `fill` forbids processes to write.
    """

    def __init__(self, folder: Path, *, mounted: bool) -> None:
        self.folder, self.mounted = folder, mounted
        self._filler = folder / "filler"
        self._held: list[int] = []

    def fill(self, pids: Iterable[int]) -> None:
        """Leave not a byte to processes."""
        self._held = list(pids)
        for pid in self._held:
            self.hold(pid)
        if not self.mounted:
            return
        piece = 1 << 16
        with self._filler.open("wb", buffering=0) as file:
            while piece:
                try:
                    file.write(bytes(piece))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    piece //= 2

    def free(self) -> None:
        """Let there be room again."""
        if not self.mounted:
            for pid in self._held:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        self._filler.unlink(missing_ok=True)

    def hold(self, pid: int) -> None:
        """Leave not a byte to another process, that has come since."""
        if not self.mounted:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


@contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    """A disk of a few megabytes, in a folder that is there."""
    options = f"size={MIB}m"
    command = ["mount", "-t", "tmpfs", "-o", options, "drill", os.fspath(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield Disk(folder, mounted=mounted)
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", os.fspath(folder)], capture_output=True, check=False)
