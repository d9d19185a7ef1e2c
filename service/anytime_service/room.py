"""How much memory this process may take."""

from __future__ import annotations

from pathlib import Path

__all__ = ["memory_limit"]

_LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where containers find theirs, of either version of control groups."""


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that the container may take, or else the machine has; None where neither can be told."""
    limits = [_machine(root), *(_bytes(root / path) for path in _LIMITS)]
    return min((limit for limit in limits if limit is not None), default=None)


def _bytes(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max" is no limit


def _machine(root: Path) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")), None)
