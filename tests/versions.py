"""Run the tests of the service with the lowest and the newest version of every package that the server needs.

The packages of each end are installed without their own requirements into a folder, which comes before the environment
on the path. `pyproject.toml` has the lowest versions.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from benchmarks.harness import flag, script_options

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv-versions"

UNCHANGED = {"fastapi-offline"}
"""Packages whose files are served, and whose code is not run."""

QUICK = ("tests/service/server", "tests/service/api/test_websocket.py")


def lowest() -> dict[str, str]:
    """Return the lowest version of each package in the group `serve`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = (
        re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", line)
        for line in project["project"]["optional-dependencies"]["serve"]
    )
    return {match[1]: match[2] for match in found if match is not None and match[1] not in UNCHANGED}


def run(end: str, requirements: list[str], tests: tuple[str, ...]) -> int:
    """Install packages, and return the exit code of the tests with them."""
    folder = FOLDER / end
    shutil.rmtree(folder, ignore_errors=True)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(folder)]
    subprocess.run([*install, *requirements], check=True)
    print(
        f"{end}: {', '.join(sorted(each.name.removesuffix('.dist-info') for each in folder.glob('*.dist-info')))}",
        flush=True,
    )
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    # The answers of peers are listed for the locked versions alone.
    chosen = ["-k", "not of_peers", "--numprocesses", "auto", "--dist", "worksteal"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *chosen, *tests],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    ).returncode


def main() -> int:
    quick = script_options(__doc__, quick=flag("run only the tests of the edge, with the lowest versions")).quick
    tests = QUICK if quick else ("tests/service",)
    versions = lowest()
    ends = {"lowest": [f"{name}=={version}" for name, version in versions.items()]}
    if not quick:  # the locked versions of `make test` are nearly the newest
        ends["newest"] = list(versions)
    codes = {end: run(end, requirements, tests) for end, requirements in ends.items()}
    print(", ".join(f"{end}: exit code {code}" for end, code in codes.items()))
    return max(codes.values())


if __name__ == "__main__":
    sys.exit(main())
