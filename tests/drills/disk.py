"""A disk that can be filled: a small mounted file system, or a file size limit where mounting is not permitted."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

SIZE_MIB = 4


class Disk:
    """A folder whose free space the drill controls.

    Attributes
    ----------
    mounted : whether it is a separate file system; otherwise `fill` limits the file size of processes.
    """

    def __init__(self, folder: Path, *, mounted: bool) -> None:
        self.folder, self.mounted = folder, mounted
        self._filler = folder / "filler"
        self._limited: list[int] = []

    def fill(self, pids: Iterable[int]) -> None:
        self._limited = list(pids)
        for pid in self._limited:
            self.limit(pid)
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
        if not self.mounted:
            for pid in self._limited:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        self._filler.unlink(missing_ok=True)

    def limit(self, pid: int) -> None:
        """Apply the limit to a process that started after `fill`."""
        if not self.mounted:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


@contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    """Mount a disk of a few megabytes at an existing folder."""
    options = f"size={SIZE_MIB}m"
    command = ["mount", "-t", "tmpfs", "-o", options, "drill", os.fspath(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield Disk(folder, mounted=mounted)
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", os.fspath(folder)], capture_output=True, check=False)
