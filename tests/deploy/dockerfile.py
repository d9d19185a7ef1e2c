"""The Dockerfile, read without an engine."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from deploy.named import ROOT

__all__ = ["Instruction", "environment", "instructions", "only", "rests", "stages"]


@dataclass(frozen=True)
class Instruction:
    """One instruction of a Dockerfile, its continued lines joined."""

    word: str
    rest: str

    def argv(self) -> list[str]:
        """Words of an instruction written as JSON, so that no shell stands before the program."""
        words: list[str] = json.loads(self.rest[self.rest.index("[") :])
        return words


def instructions() -> list[Instruction]:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    text = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE))
    return [Instruction(*line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def stages() -> list[list[Instruction]]:
    """Instructions of each stage, from its FROM on; what stands before the first belongs to none."""
    found: list[list[Instruction]] = []
    for each in instructions():
        if each.word == "FROM":
            found.append([])
        if found:
            found[-1].append(each)
    return found


def rests(stage: list[Instruction], word: str) -> list[str]:
    return [each.rest for each in stage if each.word == word]


def only(stage: list[Instruction], word: str) -> Instruction:
    (found,) = (each for each in stage if each.word == word)
    return found


def environment(stage: list[Instruction]) -> dict[str, str]:
    return dict(pair.split("=", 1) for rest in rests(stage, "ENV") for pair in rest.split())
