"""A virtual environment for each peer, so that the versions of one do not constrain another.

The packages are pinned in `requirements/NAME.txt`. An environment is created on first use, and again after its file
changes. One whose creation fails is `Absent`, with the reason, and the report says so.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path

__all__ = ["FOLDER", "Absent", "Environment", "ours", "prepared", "reason", "wanted"]

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".venv-peers"
REQUIREMENTS = Path(__file__).with_name("requirements")

INSTALL_S = 1500.0
"""Timeout of pip: some peers install half a gigabyte."""

RELATED_PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "uvicorn", "fastapi", "starlette")
"""Further packages whose versions are reported if installed."""

_VERSIONS = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        continue
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Environment:
    """A Python with the packages of a peer.

    Attributes
    ----------
    versions : of the peer itself, and of some further packages.
    """

    name: str
    python: Path
    versions: dict[str, str] = field(default_factory=dict)

    def program(self, name: str) -> Path:
        """Return the path of a program of the environment."""
        return self.python.with_name(name)

    def versions_text(self, *names: str) -> str:
        """Return the versions of all packages or of some, as text."""
        return ", ".join(f"{name} {self.versions[name]}" for name in names or self.versions if name in self.versions)


@dataclass(frozen=True)
class Absent:
    """A peer whose installation failed on this machine, and why."""

    name: str
    why: str


def ours() -> Environment:
    """Return the environment of this process, which also has scikit-learn."""
    names = ("anytime-linear", "numpy", "scipy", "scikit-learn", "uvicorn", "fastapi")
    return Environment("ours", Path(sys.executable), {name: version(name) for name in names})


def wanted(name: str) -> list[str]:
    """Return the packages that a peer's file pins."""
    lines = (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [re.split(r"[=<>~!\[; ]", line.strip())[0] for line in lines if line.strip() and not line.startswith("#")]


@cache
def prepared(name: str, folder: Path = FOLDER) -> Environment | Absent:
    """Return the environment of a peer, created if needed; `Absent` if that fails."""
    pinned = (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8")
    folder_of_peer = folder / name
    python, stamp = folder_of_peer / "bin" / "python", folder_of_peer / "installed.txt"
    try:
        if not stamp.is_file() or stamp.read_text(encoding="utf-8") != pinned:
            print(f"creating the environment of {name} ...", flush=True)
            shutil.rmtree(folder_of_peer, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(folder_of_peer)])
            quiet = ["--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
            _run([str(python), "-m", "pip", "install", *quiet, "-r", str(REQUIREMENTS / f"{name}.txt")])
            stamp.write_text(pinned, encoding="utf-8")
        found = _run([str(python), "-c", _VERSIONS, *wanted(name), *RELATED_PACKAGES])
    except (subprocess.SubprocessError, OSError) as error:
        return Absent(name, reason(error))
    return Environment(name, python, json.loads(found))


def _run(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S).stdout


def reason(error: Exception) -> str:
    """Return an error in one line: the last error that the command printed, or the exception itself."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"not ready after {error.timeout:g} s"
    printed = getattr(error, "stderr", None) or ""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()] or lines
    return (errors[-1].removeprefix("ERROR: ") if errors else str(error))[:300]
