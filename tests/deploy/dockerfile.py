"""Parses the Dockerfile without an engine."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from deploy.project import ROOT

__all__ = ["Instruction", "arguments", "environment", "instructions", "only", "stages"]


@dataclass(frozen=True)
class Instruction:
    """One instruction of a Dockerfile, its continued lines joined."""

    word: str
    argument: str

    def argv(self) -> list[str]:
        """Return the words of an instruction in JSON form, which runs without a shell."""
        words: list[str] = json.loads(self.argument[self.argument.index("[") :])
        return words


def instructions() -> list[Instruction]:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    text = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE))
    return [Instruction(*line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def stages() -> list[list[Instruction]]:
    """Return the instructions of each stage, from its FROM on."""
    found: list[list[Instruction]] = []
    for each in instructions():
        if each.word == "FROM":
            found.append([])
        if found:
            found[-1].append(each)
    return found


def arguments(stage: list[Instruction], word: str) -> list[str]:
    return [each.argument for each in stage if each.word == word]


def only(stage: list[Instruction], word: str) -> Instruction:
    (found,) = (each for each in stage if each.word == word)
    return found


def environment(stage: list[Instruction]) -> dict[str, str]:
    return dict(pair.split("=", 1) for argument in arguments(stage, "ENV") for pair in argument.split())
