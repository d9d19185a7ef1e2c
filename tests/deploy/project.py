"""Names that the files of `deploy` share with the rest of the project."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import yaml

from anytime_service.app import create_app
from anytime_service.models.registry import ModelRegistry
from anytime_service.settings import PREFIX, Settings

__all__ = ["DEPLOY", "ROOT", "documents", "image_user", "ran", "routes", "settings", "version"]

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
    (user,) = re.findall(r"^USER (\S+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return str(user)


def ran(*command: object, cwd: Path | None = None, timeout_s: float = 60.0) -> str:
    """Run a program that must succeed, and return what it prints."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def documents(path: Path) -> list[dict[str, Any]]:
    """Return the documents of a YAML file."""
    return [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]
