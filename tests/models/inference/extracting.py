"""Extractors of the runner's tests. Worker processes import this module, so it imports nothing that loads slowly."""

from __future__ import annotations

import os
import sys
import threading
import time
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from anytime.types import Float
from models.unreadable import Unreadable
from waiting import until


def later(seconds: float, place: slice, x: Float) -> Float:
    """Return some values after a time."""
    time.sleep(seconds)
    return x[place]


first, second, third = (itemgetter(slice(*ends)) for ends in ((0, 1), (1, 2), (2, 4)))
slow, briefly_slow, hanging = (partial(later, seconds, slice(1, 2)) for seconds in (2.0, 0.2, 3600.0))
first_briefly_slow = partial(later, 0.1, slice(0, 1))


def raising(x: Float) -> Float:
    raise RuntimeError("no light\non the sensor")


def leaving(x: Float) -> Float:
    sys.exit("enough")


def too_wide(x: Float) -> Float:
    return x


def unreadable(x: Float) -> Any:
    return Unreadable()


def dying(x: Float) -> Float:
    os._exit(3)


def unsendable(x: Float) -> Any:
    return threading.Lock()


def noting(x: Path) -> Float:
    """Create a file, which shows a test that the group was computed."""
    (x / "computed").touch()
    return np.zeros(2)


def zero(x: object) -> Float:
    return np.zeros(1)


def much(x: object) -> Float:
    """Return more than a pipe has room for."""
    return np.zeros(1_000_000)


def slow_zero(x: object) -> Float:
    time.sleep(0.5)
    return np.zeros(1)


def process_of(x: Float) -> Float:
    return np.array([float(os.getpid())])


def doubled(x: Float) -> Float:
    return 2.0 * x


def half_of_shared(x: Float, pyramid: Float) -> Float:
    return pyramid[1:2] / 2.0


def meeting(mine: str, other: str, width: int, folder: Path) -> Float:
    """Return zeros once the other group is being computed too."""
    (folder / mine).touch()
    until((folder / other).exists, f"{other} is computed meanwhile")
    return np.zeros(width)


def total_of(x: Any) -> Float:
    frame = x["frame"] if isinstance(x, dict) else x
    return np.array([frame.sum()])


def writing(x: Any) -> Float:
    """Write to a copy of the input's memory, as some libraries need."""
    frame = x["frame"] if isinstance(x, dict) else x
    assert frame.flags.writeable
    return np.array([7.0])


def third_and_fourth(x: Any) -> Float:
    return np.array([1.0, 2.0])


def noughts(x: Any) -> Float:
    return np.zeros(2)


_kept: list[Float] = []


def keeping(x: Float) -> Float:
    """Return the sum of the previous input, and keep this one."""
    before = _kept[0].sum() if _kept else -1.0
    _kept[:] = [x]
    return np.array([before])


def shared_memory(x: Float) -> Float:
    """Return the number of blocks of shared memory for inputs in this process, and the inode of the last."""
    maps = [line.split() for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()]
    inodes = [int(fields[4]) for fields in maps if "/memfd:anytime-input" in fields]
    return np.array([len(inodes), inodes[-1]], dtype=np.float64)


class Unloadable:
    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ()


def _refuse() -> None:
    raise RuntimeError("not here")


async def awaiting(x: object) -> Float:
    return np.zeros(1)


async def streaming(x: object) -> Any:
    yield 0.0


def generating(x: object) -> Any:
    yield 0.0


def forgetting(x: object) -> Any:
    np.zeros(1)


def naming(x: object) -> Any:
    return {"b0": 0.0}


def unordered(x: object) -> Any:
    return {0.0}
