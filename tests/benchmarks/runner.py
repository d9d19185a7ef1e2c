"""`Runner` compared with a loop by hand, on frames of a camera: `python tests/benchmarks/runner.py`; Linux.

OpenCV and scikit-image are not dependencies of this project: they have an environment of their own, as peers have, and
`cameras/measure.py` runs there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.peers.environments import prepared


def main() -> None:
    """Measure in the environment of the camera; exit with 1 if a requirement is missed."""
    environment = prepared("cameras")
    if environment.why:
        sys.exit(f"failed to install OpenCV and scikit-image: {environment.why}")
    print(f"with {environment.versions_text}", flush=True)
    # This project and its own dependencies precede those of the environment.
    paths = os.pathsep.join(path for path in sys.path if path)
    command = [str(environment.python), "-m", "benchmarks.cameras.measure", *sys.argv[1:]]
    sys.exit(subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, check=False).returncode)


if __name__ == "__main__":
    main()
