"""Run the quick starts for containers of deploy/README.md as a reader pastes them, where an engine runs.

Blocks run in one terminal, in a copy of the project. A line's `# check: TEXT...` is what the block must print.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from guides import ROOT, Shell, blocks_of

GUIDE = "deploy/README.md"
NEEDS = {"Docker": ["docker", "info"], "Compose": ["docker", "compose", "version"]}
"""What must run for the quick start of each section."""

LEFTOVERS = "docker rm --force anytime; docker compose --file deploy/compose.yaml --project-name anytime down --volumes"


def section(guide: str, title: str) -> str:
    """Return the part of a guide under a heading of the second level; the part before the first one for ""."""
    parts = re.split(r"^## (.*)\n", guide, flags=re.MULTILINE)
    return dict(zip(["", *parts[1::2]], parts[::2], strict=True))[title]


def shown(commands: str) -> list[str]:
    """Return the texts that commands must print, by their comments `# check: TEXT...`."""
    return re.findall(r"# check: (.*)\.\.\.$", commands, flags=re.MULTILINE)


def main() -> int:
    """Run what can run here, and report each quick start in one line; 1 if one fails."""
    guide = (ROOT / GUIDE).read_text(encoding="utf-8")
    first = blocks_of(section(guide, ""))[0].text
    codes = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(copy)], check=True)
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        shell = Shell(copy, environment)
        shell.run(first, 0)
        for number, (title, needed) in enumerate(NEEDS.items(), 1):
            if shutil.which(needed[0]) is None or subprocess.run(needed, capture_output=True, check=False).returncode:
                print(f"{title}: skipped, `{' '.join(needed)}` does not run here", flush=True)
                continue
            try:
                codes.append(_run(shell, title, blocks_of(section(guide, title))[0].text, number))
            except AssertionError as failed:
                print(f"{title}: FAILED\n{failed}", flush=True)
                subprocess.run(LEFTOVERS, shell=True, cwd=copy, capture_output=True, check=False)
                return 1
    return max(codes, default=0)


def _run(shell: Shell, title: str, commands: str, number: int) -> int:
    printed, _ = shell.run(commands, number)
    missing = [text for text in shown(commands) if text not in printed]
    if missing:
        print(f"{title}: FAILED, it does not print {' or '.join(missing)}\n{printed}", flush=True)
    else:
        print(f"{title}: passed", flush=True)
    return int(bool(missing))


if __name__ == "__main__":
    raise SystemExit(main())
