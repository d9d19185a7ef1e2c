"""The help of every command, and what a shell completes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from typing import Any

import pytest

from anytime.cli.main import COMMANDS, SECTIONS, _Commands, main

NAMES = [*COMMANDS, *sorted(entry_points(group="anytime.commands").names)]
VERBS = """
Add Allow Assign Bound Calibrate Change Clamp Compare Compute Connect Decrypt Draft Draw Evaluate Exit Expand Fit Give
Ignore Import Join Keep Learn Leave Limit Listen Log Measure Move Multiply Order Overwrite Pass Place Predict Print Read
Refit Reorder Reproduce Require Run Search Seed Select Serve Set Show Simulate Stop Store Subtract Sum Tolerate Train
Treat Turn Use Visit Weight Write
"""


def command(name: str) -> Any:
    return _Commands().get_command(None, name)


def completing(words: str) -> dict[str, str]:
    """Return the environment by which a shell asks for the candidates for the last word, which may be empty."""
    return {"_ANYTIME_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}


@pytest.mark.parametrize("name", NAMES)
def test_a_command_and_its_options_are_described_by_sentences_that_begin_with_a_verb(name: str) -> None:
    summary, *_ = command(name).help.split("\n\n")
    texts = {"": summary, "summary": COMMANDS.get(name, ("", summary))[1]}
    texts |= {each.name: each.help for each in command(name).params}
    sentence = re.compile(rf"({'|'.join(VERBS.split())})\s.*\.", flags=re.DOTALL)
    assert not {key: text for key, text in texts.items() if not sentence.fullmatch(text)}


def test_the_help_has_every_command_once_in_its_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert [line.rstrip(":") for line in shown.splitlines() if line.rstrip(":") in SECTIONS] == [*SECTIONS]
    assert sorted(re.findall(r"^  ([\w-]+)  ", shown[shown.index("Train:") :], flags=re.MULTILINE)) == sorted(NAMES)
    assert "Others:" not in shown


@pytest.mark.parametrize("name", NAMES)
def test_the_example_in_the_help_of_a_command_parses(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    usage, *_, title, example = capsys.readouterr().out.strip().splitlines()
    assert usage.startswith(f"Usage: anytime {name} ")
    assert title.strip() == "Example:"
    program, given, *arguments = shlex.split(example)
    assert (program, given) == ("anytime", name)
    command(name).make_context(name, arguments)  # raises if an option is unknown or missing, or a value invalid


@pytest.mark.parametrize(
    ("words", "candidates"),
    [
        ("", NAMES),
        ("res", ["resequence"]),
        ("--v", ["--version"]),
        ("train --cost", ["--cost-blind"]),
        ("train --method ", ["omp", "fr", "cp", "single", "no-whiten", "sparse"]),
        ("train --family b", ["binomial"]),
        ("train --basis h", ["hinge"]),
    ],
)
def test_a_shell_completes_commands_options_and_values(
    words: str, candidates: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in completing(f"anytime {words}").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main([])
    captured = capsys.readouterr()
    assert (captured.out.split(), captured.err) == (candidates, "")


def test_completing_a_command_imports_no_numerical_library() -> None:
    code = """
import sys
from anytime.cli import main
try:
    main([])
except SystemExit:
    print(sorted({"numpy", "scipy"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | completing("anytime "),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout.split(), done.stderr) == ([*NAMES, "[]"], "")


def test_rare_options_stand_under_a_heading_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    common, _, rare = capsys.readouterr().out.partition("Rare options:\n")
    often = {"--target", "--groups", "--out", "--basis", "--alpha", "--family", "--pairs"}
    seldom = {"--nested", "--epsilon", "--min-level-rows", "--thousands", "--scheduler", "--n-jobs"}
    assert {option for option in often | seldom if f"  {option} " in rare} == seldom
    assert {option for option in often if f"  {option} " in common} == often
