"""A virtual environment for each peer, so that the versions of one do not constrain another.

The packages are pinned in `requirements/NAME.txt`. An environment is created on first use, and again after its file
changes. One whose creation fails has the reason, and the report says so.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

FOLDER = Path(__file__).parents[3] / ".venv-peers"
REQUIREMENTS = Path(__file__).with_name("requirements")

INSTALL_S = 1500.0
"""Timeout of pip: some peers install half a gigabyte."""

RELATED_PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "uvicorn", "fastapi", "starlette")
"""Further packages whose versions are reported if installed."""


class FailedError(Exception):
    """A measurement failed; the message says why."""


class NotInstalledError(FailedError):
    """Why the environment of a peer is missing."""


@dataclass(frozen=True)
class Environment:
    """A Python with the packages of a peer, and their versions; without it, `why` its installation failed."""

    name: str
    python: Path = Path()
    versions: dict[str, str] = field(default_factory=dict)
    why: str = ""

    @property
    def versions_text(self) -> str:
        return ", ".join(f"{name} {version}" for name, version in self.versions.items())


def _environment(name: str, python: Path, packages: Path | str, names: Sequence[str]) -> Environment:
    installed = {each.name.lower(): each.version for each in distributions(path=[str(packages)])}
    return Environment(name, python, {name: installed[name] for name in names if name in installed})


def wanted(name: str, folder: Path = REQUIREMENTS) -> list[str]:
    """Return the packages that a peer's file pins."""
    return [line.split("==")[0] for line in (folder / f"{name}.txt").read_text(encoding="utf-8").split()]


@cache
def prepared(name: str, folder: Path = FOLDER, requirements: Path = REQUIREMENTS) -> Environment:
    """Return the environment of a peer ("ours": that of this process), created if needed, or why that fails."""
    if name == "ours":
        names = ("anytime-linear", "numpy", "scipy", "scikit-learn", "uvicorn", "fastapi")
        return _environment("ours", Path(sys.executable), sysconfig.get_path("purelib"), names)
    file, home = requirements / f"{name}.txt", folder / name
    python, stamp = home / "bin" / "python", home / "installed.txt"
    pinned = file.read_text(encoding="utf-8")
    try:
        if not stamp.is_file() or stamp.read_text(encoding="utf-8") != pinned:
            print(f"creating the environment of {name} ...", flush=True)
            shutil.rmtree(home, ignore_errors=True)
            pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
            for command in ([sys.executable, "-m", "venv", str(home)], [str(python), *pip, "-r", str(file)]):
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
            stamp.write_text(pinned, encoding="utf-8")
        [packages] = home.glob("lib/python*/site-packages")
    except (subprocess.SubprocessError, OSError) as error:
        return Environment(name, why=reason(error))
    return _environment(name, python, packages, (*wanted(name, requirements), *RELATED_PACKAGES))


def installed(name: str) -> Environment:
    """Return the environment of a peer; raise NotInstalledError without one."""
    found = prepared(name)
    if found.why:
        raise NotInstalledError(found.why)
    return found


def reason(error: Exception) -> str:
    """Return an error in one line: the last error that the command printed, or the exception itself."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"not ready after {error.timeout:g} s"
    lines = [line.strip() for line in (getattr(error, "stderr", None) or "").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()] or lines
    return (errors[-1].removeprefix("ERROR: ") if errors else str(error))[:300]
