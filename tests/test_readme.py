"""README and guides: their commands and programs run as a reader would type them, in order, and print what is shown."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import yaml

from guides import GUIDES, OTHER, OUTPUT, ROOT, RUN, Shell, blocks_of, matches
from system import free_port, program

PORT = re.compile(r"\b80\d\d\b")
LINK = re.compile(r"(?<!`)\[[^\]\n]*\]\(([^)\s]+)\)")
TIMEOUT_S = 300


def of_guides(guides: Sequence[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("guide", guides, ids=lambda path: str(path.relative_to(ROOT)))


def runs(guide: Path) -> bool:
    return any(block.language in RUN and not block.untested for block in blocks_of(guide.read_text(encoding="utf-8")))


@pytest.mark.filterwarnings("default")
@of_guides([*filter(runs, GUIDES)])
def test_commands_run_and_print_what_is_shown(guide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = guide.read_text(encoding="utf-8")
    blocks = blocks_of(text)
    commands = "".join(block.text for block in blocks if block.language == "sh" and not block.untested)
    for name in ("c++", "cc", "curl", "kubectl", "nginx", "openssl", "redis-server"):
        if re.search(rf"\b{re.escape(name)} ", commands):
            program(name)
    for each in ("models", "service", "deploy", "tests", "Makefile"):
        (tmp_path / each).symlink_to(ROOT / each)
    ports = {port: str(free_port()) for port in PORT.findall("".join(block.text for block in blocks))}
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "MPLBACKEND": "Agg",
        "ANYTIME_MAX_LATENESS_MS": "1e6",  # other tests use the cores
        **({"ANYTIME_PORT": ports["8000"]} if "8000" in ports else {}),
    }
    monkeypatch.setenv("MPLBACKEND", "Agg")
    shell, names, folder, printed = Shell(tmp_path, environment), dict[str, Any](), tmp_path, ""
    timer = Timer(TIMEOUT_S, os.killpg, (shell.process.pid, signal.SIGKILL))
    timer.start()
    try:
        tested = True
        for number, block in enumerate(blocks):
            code = PORT.sub(lambda found: ports[found[0]], block.text)
            if block.language in RUN:
                tested = block.untested is None
            if not tested or block.untested:
                continue
            if block.language == "sh":
                printed, folder = shell.run(code, number)
            elif block.language == "c":
                (folder / "main.c").write_text(code, encoding="utf-8")
            elif block.language == "python":  # the blocks of a guide share their names
                monkeypatch.chdir(folder)
                with redirect_stdout(io.StringIO()) as output:
                    exec(compile(code, f"{guide.name}, line {block.line}", "exec"), names)
                printed = output.getvalue()
            elif block.language in OUTPUT:
                assert matches(code, printed), f"{guide.name}, line {block.line}: shown\n{code}\nprinted\n{printed}"
    finally:
        timer.cancel()
        with suppress(ProcessLookupError):
            os.killpg(shell.process.pid, signal.SIGKILL)
        shell.process.communicate()
        shell.errors.close()


@of_guides(GUIDES)
def test_every_block_names_its_language_and_every_output_follows_its_command(guide: Path) -> None:
    before = None
    for block in blocks_of(guide.read_text(encoding="utf-8")):
        assert block.language in (*RUN, *OUTPUT, *OTHER), f"line {block.line}"
        if block.language in OUTPUT and not block.untested:
            assert before in ("sh", "python"), f"line {block.line}: the output of which command?"
        if block.language == "yaml":
            list(yaml.safe_load_all(block.text))
        before = block.language


@of_guides(GUIDES)
def test_links_lead_to_files_and_headings_that_exist(guide: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", guide.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in LINK.findall(text):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        path = guide.parent / name if name else guide
        assert path.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, link


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a  1.2", "a 1.2034\n", True),
        ("a 1.2", "a 1.35", False),
        ("step 2 of 6", "step 3 of 6", False),
        ("3687", "3687.114", True),
        ("0.4613", "0.4613022557612325", True),
        ("a ... d", "a b c d", True),
        ("a ... d", "a b c d e", False),
        ("... d ...", "a b c d e", True),
        ("a b", "a b c", False),
        ("a b ...", "a b", True),
        ("", "", True),
        ("", "a", False),
        ('{"version": "0123456789abcdef", "elapsed_ms": 1}', '{"version":"fedcba9876543210","elapsed_ms":0.25}', True),
    ],
)
def test_an_output_is_compared_without_spaces_rounding_and_times(shown: str, printed: str, same: bool) -> None:
    assert matches(shown, printed) is same
