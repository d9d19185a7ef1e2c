"""Environments of the rivals: a virtual environment for each, so that none decides which versions another gets.

What is installed is pinned in `requirements/NAME.txt`. An environment is made when it is first asked for, and again
when its file has changed. One that cannot be made is `Absent`, with the reason, and the report says so.
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
"""Time for pip: some rivals bring half a gigabyte."""

BESIDE = ("numpy", "scipy", "scikit-learn", "numba", "uvicorn", "fastapi", "starlette")
"""Packages whose versions are told too, where a rival brings them."""

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
    """A Python with what a rival needs.

    Attributes
    ----------
    versions : of the rival itself, and of some packages beside it.
    """

    name: str
    python: Path
    versions: dict[str, str] = field(default_factory=dict)

    def program(self, name: str) -> Path:
        """A program that a package brought."""
        return self.python.with_name(name)

    def told(self, *names: str) -> str:
        """Versions in words, of all packages or of some."""
        return ", ".join(f"{name} {self.versions[name]}" for name in names or self.versions if name in self.versions)


@dataclass(frozen=True)
class Absent:
    """A rival that cannot be had on this machine, and why."""

    name: str
    why: str


def ours() -> Environment:
    """This process's own environment, which has scikit-learn too."""
    names = ("anytime-linear", "numpy", "scipy", "scikit-learn", "uvicorn", "fastapi")
    return Environment("ours", Path(sys.executable), {name: version(name) for name in names})


def wanted(name: str) -> list[str]:
    """Names of the packages that a rival's file pins."""
    lines = (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [re.split(r"[=<>~!\[; ]", line.strip())[0] for line in lines if line.strip() and not line.startswith("#")]


@cache
def prepared(name: str, folder: Path = FOLDER) -> Environment | Absent:
    """The environment of a rival, made if need be; `Absent` where that fails."""
    pinned = (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8")
    place = folder / name
    python, stamp = place / "bin" / "python", place / "installed.txt"
    try:
        if not stamp.is_file() or stamp.read_text(encoding="utf-8") != pinned:
            print(f"making the environment of {name} ...", flush=True)
            shutil.rmtree(place, ignore_errors=True)
            _done([sys.executable, "-m", "venv", str(place)])
            quiet = ["--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
            _done([str(python), "-m", "pip", "install", *quiet, "-r", str(REQUIREMENTS / f"{name}.txt")])
            stamp.write_text(pinned, encoding="utf-8")
        found = _done([str(python), "-c", _VERSIONS, *wanted(name), *BESIDE])
    except (subprocess.SubprocessError, OSError) as error:
        return Absent(name, reason(error))
    return Environment(name, python, json.loads(found))


def _done(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S).stdout


def reason(error: Exception) -> str:
    """One line on what went wrong: the last error that the command printed, or the exception itself."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"not ready after {error.timeout:g} s"
    printed = getattr(error, "stderr", None) or ""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    told = [line for line in lines if "error" in line.lower()] or lines
    return (told[-1].removeprefix("ERROR: ") if told else str(error))[:300]
