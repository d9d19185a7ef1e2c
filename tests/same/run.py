"""Build another commit in an environment of its own, compare it with the working tree, and print what differs.

Both run the probes of the working tree on the same inputs: `library` (the command line and the estimators) and
`service` (recorded exchanges). The environment, which follows the commit's own requirements.lock, and what was recorded
of the commit are stored under .venv-same. Exits with 1 if something differs, and with 2 if that is unknown.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import flag, script_options
from same import tables
from same.compare import TOLERANCE, differences, summary

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv-same"

_BOTH = ("same/library.py", "same/tables.py")
PROBES = {"library": _BOTH, "service": ("same/service.py", "same/wire.py", "benchmarks/load/frames.py", *_BOTH)}
"""The two parts, and the files of the tests that decide what is recorded."""

FIXED = {
    "COLUMNS": "200",
    "LC_ALL": "C.UTF-8",
    "MPLBACKEND": "Agg",
    "NO_COLOR": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "SOURCE_DATE_EPOCH": "0",
    "TZ": "UTC",
}
"""Environment of the probes; without it two runs of one commit could differ."""


def git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout


def environment(commit: str) -> tuple[Path, Path]:
    """Return the Python of a commit, with the pins of its lock file, and the folder of its installed packages."""
    lock = git("show", f"{commit}:requirements.lock")
    pins = FOLDER / hashlib.sha256(lock).hexdigest()[:16]
    python = pins / "bin/python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not (pins / "ready").is_file():
        print(f"installing the pins of {commit[:8]} into {pins.relative_to(ROOT)}: about 1.4 GB, once", flush=True)
        shutil.rmtree(pins, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(pins)], check=True)
        (pins / "requirements.lock").write_bytes(lock)
        subprocess.run([*install, "--require-hashes", "-r", str(pins / "requirements.lock")], check=True)
        (pins / "ready").touch()
    packages = FOLDER / f"{commit[:12]}-{pins.name[:4]}"
    if not packages.is_dir():
        with tempfile.TemporaryDirectory() as name:
            subprocess.run(["tar", "-x", "-C", name], input=git("archive", commit), check=True)
            built = Path(name) / "packages"
            subprocess.run([*install, "--no-deps", "--no-build-isolation", "--target", str(built), name], check=True)
            shutil.move(built, packages)
    return python, packages


def written_inputs(data: Path) -> Path:
    """Write the tables, and return their folder, which is named after its contents."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        folder = Path(name) / "inputs"
        tables.write(folder, data)
        contents = b"".join(each.read_bytes() for each in sorted(folder.rglob("*")) if each.is_file())
        inputs = FOLDER / f"inputs-{hashlib.sha256(contents).hexdigest()[:12]}"
        if not inputs.is_dir():
            folder.rename(inputs)
    return inputs


def recorded(python: Path, path: list[Path], inputs: Path, part: str, jobs: int, match: str) -> dict[str, Any]:
    """Run a probe in an environment; return the records of its cases by name."""
    passed = {name: value for name, value in os.environ.items() if not name.startswith(("ANYTIME_", "PYTHON"))}
    variables = passed | FIXED | {"PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT / "tests"]))}
    count = jobs if part == "library" else 1
    started = time.monotonic()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        outs = [Path(name) / f"{place}.json" for place in range(count)]
        command = [str(python), "-P", "-m", f"same.{part}", str(inputs)]
        running = [
            subprocess.Popen([*command, str(out), str(place), str(count), match], cwd=name, env=variables)
            for place, out in enumerate(outs)
        ]
        try:
            codes = [each.wait() for each in running]
        finally:
            for each in running:
                each.kill()
        if any(codes):
            sys.exit(2)  # the probe printed why
        for out in outs:
            found |= json.loads(out.read_text(encoding="utf-8"))
    print(f"  {part}: {len(found)} recorded in {time.monotonic() - started:.0f} s", flush=True)
    return found


def stored(commit: str, inputs: Path, part: str, match: str) -> Path:
    """Return the file of what was recorded of a commit, named after all that it depends on."""
    probes = [(ROOT / "tests" / name).read_bytes() for name in PROBES[part]]
    key = hashlib.sha256(b"".join([inputs.name.encode(), match.encode(), *probes]))
    return FOLDER / f"{commit[:12]}-{part}-{key.hexdigest()[:12]}.json"


def main() -> int:
    args = script_options(
        __doc__,
        base={"required": True, "help": "the commit to compare with"},
        data={"type": Path, "default": Path("../shared/data"), "help": "folder of the data sets, if it is there"},
        tolerance={"type": float, "default": TOLERANCE, "help": "relative difference of numbers to ignore"},
        only={"choices": list(PROBES), "help": "record one part"},
        match={"default": "", "help": "record only cases whose names contain this, such as command/clinic"},
        jobs={"type": int, "default": 2, "help": "processes of the library's cases"},
        fresh=flag("record the commit again"),
    )
    try:
        commit = git("rev-parse", "--verify", "--quiet", f"{args.base}^{{commit}}").decode().strip()
    except subprocess.CalledProcessError:
        print(f"error: BASE is {args.base!r}; expected a commit, such as make same BASE=HEAD")
        return 2
    inputs = written_inputs(args.data)
    python, packages = environment(commit)
    base: dict[str, Any] = {}
    here: dict[str, Any] = {}
    for part in [args.only] if args.only else PROBES:
        file = stored(commit, inputs, part, args.match)
        print(f"{commit[:8]}:", flush=True)
        if args.fresh or not file.is_file():
            records = recorded(python, [packages], inputs, part, args.jobs, args.match)
            file.write_text(json.dumps(records), encoding="utf-8")
        else:
            print(f"  {part}: recorded before (--fresh records it again)", flush=True)
        base |= json.loads(file.read_text(encoding="utf-8"))
        print("the working tree:", flush=True)
        here |= recorded(Path(sys.executable), [], inputs, part, args.jobs, args.match)
    found = differences(base, here, args.tolerance)
    exchanges = sum(name.startswith("service/") for name in here)
    print(f"{len(here) - exchanges} cases of the library and {exchanges} exchanges, tolerance {args.tolerance:g}:")
    if not found:
        print(f"nothing differs from {commit[:8]}")
        return 0
    every = FOLDER / "differences.txt"
    every.write_text("".join(f"{each}\n" for each in found), encoding="utf-8")
    cases = {each.where.split(" .")[0].split("[")[0] for each in found}
    print(f"{len(cases)} of them differ from {commit[:8]}, in {len(found)} places, all in {every.relative_to(ROOT)}")
    print(*summary(found), sep="\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
