"""Names that the files of `deploy` share with the rest of the project, and the Dockerfile, parsed without an engine."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from anytime_service.app import create_app
from anytime_service.models.registry import ModelRegistry
from anytime_service.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def settings() -> set[str]:
    """Return the environment variables of every setting."""
    return {PREFIX + name.upper() for name in Settings.model_fields}


def routes() -> set[str]:
    """Return the paths that the service serves by GET."""
    paths = create_app(ModelRegistry.of([]), Settings()).openapi()["paths"]
    return {path for path, operations in paths.items() if "get" in operations}


def version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def image_user() -> str:
    """Return the user of the image, as `number:number`."""
    return only(stages()[-1], "USER").argument


def ran(*command: object, cwd: Path | None = None, timeout_s: float = 60.0) -> str:
    """Run a program that must succeed, and return what it prints."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def documents(path: Path) -> list[dict[str, Any]]:
    """Return the documents of a YAML file."""
    return [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]


def at(document: Any, path: str) -> Any:
    """Return the part of a document at a path of keys and positions, separated by slashes."""
    for part in path.split("/"):
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


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
