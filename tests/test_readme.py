"""The commands and programs of the README run as a reader would type them, one after another, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from system import free_port

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
PORT = re.compile(r"\b80\d\d\b")
STOP_SERVERS = "trap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n"
"""A server that outlives a failed command would keep its output open, and the test would wait for it."""


@pytest.mark.filterwarnings("default")
def test_the_commands_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    text, program = README.read_text(encoding="utf-8"), dict[str, Any]()
    ports = {port: str(free_port()) for port in PORT.findall(text)}  # a port of the README may be in use here
    blocks = BLOCK.findall(PORT.sub(lambda found: ports[found[0]], text))
    assert len(blocks) >= 6
    for kind, block in blocks:
        if kind == "python":  # its blocks share their names
            exec(compile(block, "README.md", "exec"), program)
        else:
            subprocess.run(["bash", "-euo", "pipefail", "-c", STOP_SERVERS + block], check=True, timeout=300)
    answers = capfd.readouterr().out
    assert '"prediction"' in answers
    assert '"imputed":["age"]' in answers, "the passenger of unknown age"
    assert (tmp_path / "cheaper.safetensors").exists()
