"""Commands as tests run them: what they print, and the line in which they refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest

from anytime.cli.main import main

__all__ = ["Capture", "document", "output", "ran", "refusal"]

Capture = pytest.CaptureFixture[str]


def ran(capsys: Capture, *arguments: str, code: int = 0) -> Any:
    """Run a command that ends with a code; return what it prints, in `out` and `err`."""
    capsys.readouterr()
    found = main(list(arguments))
    captured = capsys.readouterr()
    assert found == code, captured.err
    return captured


def output(capsys: Capture, *arguments: str) -> str:
    """Return what a command that succeeds prints."""
    captured = ran(capsys, *arguments)
    assert "error: " not in captured.err
    return str(captured.out)


def document(capsys: Capture, *arguments: str) -> Any:
    """Return the JSON that a command prints."""
    return json.loads(output(capsys, *arguments, "--json"))


def refusal(capsys: Capture, *arguments: str, code: int = 2) -> str:
    """Return the error of a command that fails: the last line, and the only one that is an error."""
    lines: list[str] = ran(capsys, *arguments, code=code).err.splitlines()
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:]
    return lines[-1]
