"""Build the wheel and the sdist, and check both in fresh environments of the lowest and the newest Python.

Each Python installs the wheel without extras, predicts in process and shows a model; then it installs all extras,
trains, predicts a table, writes a report and imports the server. The sdist must build the same wheel. Every pin of the
server has a wheel for both processors of the image. The changelog begins with the version of `pyproject.toml` and a
date; `--draft` allows "unreleased" there.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

BARE = """
import numpy as np
from anytime import load
model = load("model.safetensors")
opened = model.open()
opened.add("cheap", [1.0])
assert opened.answer().prefix == 1, opened.answer()
assert model.predict(np.zeros((3, 2))).shape == (3,)
try:
    import sklearn
except ImportError:
    pass
else:
    raise SystemExit("the wheel without extras installs scikit-learn")
"""

LEARN = """
import numpy as np
from anytime import AnytimeRegressor
X = np.random.default_rng(0).normal(size=(99, 2))
groups = {{"cheap": ["x0"], "costly": {{"features": ["x1"], "cost": 9}}}}
AnytimeRegressor(groups).fit(X, X.sum(axis=1)).save({path!r})
"""

ALL = (
    "import anytime_service.app, anytime_service.client, anytime_service.server.run, anytime_reproduction.cli, "
    "anytime_reproduction.compare"
)

TRAINED = (
    ["train", "rows.csv", "--target", "y", "--groups", "groups.yaml", "--out", "model.safetensors"],
    ["predict", "model.safetensors", "rows.csv", "--budget", "1", "--out", "scored.csv"],
    ["report", "model.safetensors", "--test", "rows.csv", "--out", "report.html"],
)

GROUPS = "groups:\n- {name: cheap, features: [a], cost: 1}\n- {name: costly, features: [b], cost: 9}\n"


MACHINES = ("x86_64", "aarch64")
"""Processors for which the image is built."""


class ReleaseError(Exception):
    """A check failed."""


def run(*words: str | Path, cwd: Path) -> str:
    """Return the output of a program; raise ReleaseError with its last lines if it fails."""
    done = subprocess.run(list(map(str, words)), cwd=cwd, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-12:])
        raise ReleaseError(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{last}")
    return done.stdout


def check_changelog(text: str, version: str, *, draft: bool) -> None:
    """Raise ReleaseError unless the newest entry is that of the version, with a date."""
    found = re.search(r"^## (\S+) \((.+)\)$", text, re.MULTILINE)
    if found is None or found[1] != version:
        raise ReleaseError(f"the newest entry of CHANGELOG.md is {found and found[1]}; pyproject.toml has {version}")
    if not draft and not re.fullmatch(r"\d{4}-\d\d-\d\d", found[2]):
        raise ReleaseError(f'CHANGELOG.md says "{version} ({found[2]})"; write the date of the release there')


def check_wheels(lock: Path, machine: str, python: str) -> int:
    """Download the wheel of each pin for a processor and a Python; return their number, or raise ReleaseError."""
    platforms = [f"--platform=manylinux_2_{glibc}_{machine}" for glibc in (17, 27, 28)]
    with tempfile.TemporaryDirectory() as place:
        wheels = ("--no-deps", "--only-binary=:all:", "--require-hashes", f"--python-version={python}", *platforms)
        run(sys.executable, "-m", "pip", "download", "--quiet", *wheels, "-r", lock, "-d", place, cwd=ROOT)
        return len(list(Path(place).iterdir()))


def pythons(stated: list[str]) -> list[str]:
    """Return the stated interpreters, or the lowest and the newest that run here and that the project allows."""
    if stated:
        return stated
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lowest = int(project["requires-python"].removeprefix(">=3."))
    usable = []
    for minor in range(lowest, lowest + 10):
        path = shutil.which(f"python3.{minor}")
        if path and not subprocess.run([path, "-c", "import venv"], capture_output=True, check=False).returncode:  # noqa: S603
            usable.append(path)
    if not usable:
        raise ReleaseError(f"no Python of 3.{lowest} or newer is on the path; name some by --python")
    return list(dict.fromkeys([usable[0], usable[-1]]))


def contents(wheel: Path) -> dict[str, int]:
    """Return the checksum of each file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {each.filename: each.CRC for each in archive.infolist()}


def build(folder: Path) -> Path:
    """Build the sdist and the wheel into a folder, and return the wheel; that of the sdist has the same files."""
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as place:
        shutil.unpack_archive(sdist, place, filter="data")
        (source,) = Path(place).iterdir()
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place, cwd=source)
        (rebuilt,) = Path(place).glob("*.whl")
        if contents(rebuilt) != contents(wheel):
            raise ReleaseError(f"{sdist.name} builds a wheel with other files than {wheel.name}")
    return wheel


def check(python: str, wheel: Path, model: Path) -> None:
    """Install the wheel into new environments, without extras and with all, and use it; raise ReleaseError."""
    version = run(python, "-c", "import platform; print(platform.python_version())", cwd=ROOT).strip()
    for extras in ("", "[all]"):
        with tempfile.TemporaryDirectory() as place:
            began, here = time.monotonic(), Path(place)
            run(python, "-m", "venv", here / "env", cwd=here)
            binaries = here / "env" / "bin"
            run(binaries / "pip", "install", "--quiet", "--no-compile", f"{wheel}{extras}", cwd=here)
            installed, size = time.monotonic() - began, run("du", "-sm", here / "env", cwd=here).split()[0]
            shutil.copy(model, here / "model.safetensors")
            run(binaries / "anytime", "show", "model.safetensors", cwd=here)
            if extras:
                (here / "groups.yaml").write_text(GROUPS, encoding="utf-8")
                rows = "".join(f"{i % 7},{i % 5},{i % 7 + 2 * (i % 5) + i % 3}\n" for i in range(200))
                (here / "rows.csv").write_text("a,b,y\n" + rows, encoding="utf-8")
                for words in TRAINED:
                    run(binaries / "anytime", *words, cwd=here)
                run(binaries / "python", "-c", ALL, cwd=here)
            else:
                run(binaries / "python", "-c", BARE, cwd=here)
            print(f"Python {version}, {extras or 'no extras'}: installed in {installed:.0f} s, {size} MB; works")


def main() -> int:
    """Build, check, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", action="store_true", help="allow an unreleased version in the changelog")
    parser.add_argument("--python", action="append", default=[], help="check with this Python; may be repeated")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the wheel and the sdist")
    options = parser.parse_args()
    try:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        check_changelog(changelog, project["version"], draft=options.draft)
        (python,) = re.findall(
            r"^ARG BASE=python:([\d.]+)-", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE
        )
        for machine in MACHINES:
            count = check_wheels(ROOT / "requirements-serve.lock", machine, python)
            print(f"{machine}: the {count} pins of the server have wheels for Python {python}")
        shutil.rmtree(options.out, ignore_errors=True)
        wheel = build(options.out)
        print(f"built {wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB) and the sdist, which builds the same wheel")
        with tempfile.TemporaryDirectory() as place:
            model = Path(place) / "model.safetensors"
            learn = LEARN.format(path=str(model))
            run(sys.executable, "-c", learn, cwd=ROOT)
            for python in pythons(options.python):
                check(python, wheel, model)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
