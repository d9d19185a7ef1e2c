"""Time to start compared with the imports that starting needs: `python tests/benchmarks/starting.py`.

A fresh process starts the server's modules, or runs `anytime show`; another one only imports the same modules except
those of this project, in the same order. Measured is processor time, interleaved: the median of the ratios of pairs.
All modules are compiled beforehand, as in an installation.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import Row, median_ratio, report, script_options
from benchmarks.load.models import saved_model

SERVER = "import anytime_service.server.run, anytime_service.app"
SHOW = "import sys; from anytime.cli import main; code = main(['show', sys.argv[1]])"
LIST = """
import sys
print(*(name for name, module in sys.modules.items() if getattr(module, "__spec__", None)), file=sys.stderr)
"""
FLOOR = "import sys; from importlib import import_module; list(map(import_module, sys.argv[1:]))"
LIMIT = 1.15


def seconds(code: str, *arguments: str) -> float:
    """Return the processor time of a process that runs the code."""
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{code} exits with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def modules(code: str, *arguments: str) -> list[str]:
    """Return the modules that the code imports, except those of this project, in the order of import."""
    command = [sys.executable, "-c", code + LIST, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [name for name in done.stderr.split() if not name.startswith("anytime")]


def measured(name: str, rounds: int, code: str, *arguments: str) -> Row:
    """Return the ratio of the code to the imports that it needs; the first round is a warm-up."""
    imports = modules(code, *arguments)
    pairs = [(seconds(code, *arguments), seconds(FLOOR, *imports)) for _ in range(rounds + 1)][1:]
    ours, floor = (1000 * statistics.median(times) for times in zip(*pairs, strict=True))
    what = f"{name}: {ours:.0f} ms, imports of {len(imports)} modules {floor:.0f} ms"
    return Row(what, median_ratio(pairs), LIMIT)


def main() -> None:
    """Measure and print; exit with 1 if a limit is exceeded."""
    rounds = script_options(__doc__, rounds={"type": int, "default": 15}).rounds
    with tempfile.TemporaryDirectory() as folder:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = folder  # filled when the modules are listed
        model = Path(folder) / "small.safetensors"
        saved_model(model, groups=5, rows=500)
        rows = [
            measured("import the server", rounds, SERVER),
            measured("anytime show, a model of 5 groups", rounds, SHOW, str(model)),
        ]
    sys.exit(not report(rows))


if __name__ == "__main__":
    main()
