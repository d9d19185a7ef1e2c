"""Commands whose input or output is unusual: pipes, full or closed streams, other encodings, settings of others."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import anytime._files
from anytime.cli.main import main
from anytime.data.formats import open_table
from anytime.errors import GroupsError
from anytime.groups import load_groups
from models.refusals import assert_refused

TRAIN = ["train", "t.csv", "--groups", "g.yaml", "--target", "y", "--alpha", "0.1", "--folds", "0", "--out"]
EXPORT = "export old.safetensors --to json --out m.json"
GROUPS = "groups:\n  - {name: größe, features: [a], cost: 1}\n"


@pytest.fixture
def desk(desk: Path) -> Path:
    """A working directory with a table, groups and a model."""
    x = np.arange(30.0)
    pd.DataFrame({"a": x, "y": 2 * x + np.cos(x)}).to_csv("t.csv", index=False)
    Path("g.yaml").write_text(GROUPS, encoding="utf-8")
    assert main([*TRAIN, "old.safetensors"]) == 0
    return desk


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which $A is the command."""
    train = " ".join([*TRAIN, "m.safetensors"])
    variables = os.environ | {"A": f"{sys.executable} -m anytime", "TRAIN": train, "EXPORT": EXPORT} | environment
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=variables, check=False)


@pytest.mark.parametrize(
    ("line", "remark"),
    [
        ("$A $TRAIN > /dev/full", "cannot print the results: no space left on device; m.safetensors is complete"),
        ("$A $TRAIN | true; exit ${PIPESTATUS[0]}", "cannot print the results: broken pipe; m.safetensors is complete"),
        ("$A $EXPORT 2> /dev/full", ""),
        ("$A $EXPORT >&- 2>&- <&-", ""),
        *(
            pytest.param(line, "", marks=pytest.mark.heavy)
            for line in (
                "$A $TRAIN 2>&1 | true; exit ${PIPESTATUS[0]}",
                "$A $TRAIN 2>&1 > out.txt | true; exit ${PIPESTATUS[0]}",
                "$A $TRAIN 2>&-",
                "$A $TRAIN >&-",
                "$A $TRAIN >&- 2>&- <&-",
            )
        ),
    ],
)
def test_no_command_fails_after_its_work_is_written(line: str, remark: str, desk: Path) -> None:
    done = shell(line)
    assert done.returncode == 0
    assert Path("m.safetensors" if "$TRAIN" in line else "m.json").exists()
    assert remark in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_whose_output_is_its_work_fails_with_it(desk: Path) -> None:
    for command in ("show old.safetensors", "export old.safetensors --to c"):
        done = shell(f"$A {command} > /dev/full")
        assert (done.returncode, done.stderr) == (1, "error: no space left on device\n")
    assert shell("$A show none 2> /dev/full").returncode == 2


def test_characters_that_a_terminal_lacks_are_escaped(desk: Path) -> None:
    done = shell("$A show old.safetensors && $A show grö", PYTHONIOENCODING="ascii")
    assert r"gr\xf6\xdfe" in done.stdout
    assert done.stderr.endswith("error: cannot read 'gr\\xf6': no such file or directory\n")


def test_settings_of_other_libraries_break_no_plot(desk: Path) -> None:
    Path("matplotlibrc").write_text("text.usetex: True\n")
    done = shell("$A plot old.safetensors --out m.svg", MPLBACKEND="module://matplotlib_inline.backend_inline")
    assert (done.returncode, done.stderr) == (0, "wrote m.svg\n")
    assert Path("m.svg").stat().st_size > 1000


def test_a_pipe_is_read_once_and_never_waited_for_without_end(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo("p.yaml")
    writer = threading.Thread(target=lambda: Path("p.yaml").write_text(GROUPS, encoding="utf-8"))
    writer.start()
    assert load_groups("p.yaml") == load_groups("g.yaml")
    writer.join()
    monkeypatch.setattr(anytime._files, "PIPE_S", 0.05)
    assert_refused(
        lambda: load_groups("p.yaml"),
        "cannot read the groups file 'p.yaml': the pipe sends nothing for 0.05 s",
        error=GroupsError,
    )
    os.mkfifo("p.csv")
    assert_refused(lambda: open_table("p.csv"), "'p.csv' is a pipe, and tables are read more than once")
    os.mkfifo("p.safetensors")
    assert main(["show", "p.safetensors"]) == 2
