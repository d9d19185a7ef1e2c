"""Time to start compared with the imports that starting needs: `python tests/benchmarks/starting.py`.

A fresh process starts the server's modules, or runs `anytime show`; another one only imports the same modules except
those of this project, in the same order. Measured is processor time, interleaved: the median of the ratios of pairs.
All modules are compiled beforehand, as in an installation.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import Row, median_ratio, pairs, report, script_options, spent
from benchmarks.load.models import saved_model

SERVER = "import anytime_service.server.run, anytime_service.app"
SHOW = "import sys; from anytime.cli import main; code = main(['show', sys.argv[1]])"
LIST = """
import sys
print("\\nmodules:", *(name for name, module in sys.modules.items() if getattr(module, "__spec__", None)))
"""
FLOOR = "import sys; from importlib import import_module; list(map(import_module, sys.argv[1:]))"
LIMIT = 1.15


def seconds(code: str, *arguments: str) -> float:
    """Return the processor time of a process that runs the code."""
    return spent([sys.executable, "-c", code, *arguments]).processor_s


def measured(name: str, rounds: int, code: str, *arguments: str) -> Row:
    """Return the ratio of the code to the imports that it needs, those of other projects in the order of import."""
    (imported,) = re.findall(r"^modules: (.*)$", spent([sys.executable, "-c", code + LIST, *arguments]).output, re.M)
    imports = [each for each in imported.split() if not each.startswith("anytime")]
    found = pairs(lambda: seconds(code, *arguments), lambda: seconds(FLOOR, *imports), rounds)
    ours, floor = (1000 * statistics.median(times) for times in zip(*found, strict=True))
    what = f"{name}: {ours:.0f} ms, imports of {len(imports)} modules {floor:.0f} ms"
    return Row(what, median_ratio(found), LIMIT)


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
