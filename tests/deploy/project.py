"""Names that the files of `deploy` share with the project; its Dockerfile without an engine; its proxies, which run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from anytime_service.app import create_app
from anytime_service.models.registry import ModelRegistry
from anytime_service.settings import PREFIX, Settings
from service.serving import Running
from system import answers, free_port, program, started

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


CONFIGURATIONS = DEPLOY / "proxies"


@dataclass(frozen=True)
class Proxy:
    """How to run one program with its shipped configuration, in which only addresses and folders are replaced.

    Attributes
    ----------
    file : the configuration.
    replacements : replacement by text. `{port}` is the proxy's port, `{admin}` another free port, `{folder}` a
        writable folder.
    replica : the text that names the replicas, and its replacement for one replica with its `{port}` and `{number}`.
    check, run : arguments; `{file}` is the resulting configuration.
    """

    file: str
    replacements: Mapping[str, str]
    replica: tuple[str, str]
    check: str
    run: str

    def write_configuration(self, replicas: Sequence[int], port: int, folder: Path) -> Path:
        """Write the configuration for this machine.

        Raises
        ------
        AssertionError
            A text to be replaced is missing.
        """
        text = (CONFIGURATIONS / self.file).read_text(encoding="utf-8")
        shipped, one = self.replica
        named = "\n".join(one.format(port=each, number=i) for i, each in enumerate(replicas))
        here = {name: to.format(port=port, admin=free_port(), folder=folder) for name, to in self.replacements.items()}
        for name, to in {shipped: named, **here}.items():
            assert name in text, f"{self.file} no longer has {name!r}"
            text = text.replace(name, to)
        path = folder / self.file
        path.write_text(text, encoding="utf-8")
        return path


PROXIES: Mapping[str, Proxy] = {
    "nginx": Proxy(
        "nginx.conf",
        {"listen 8080;": "listen 127.0.0.1:{port};", " /tmp/": " {folder}/"},
        ("server anytime:8000 max_fails=0;", "server 127.0.0.1:{port} max_fails=0;"),
        "-t -e stderr -c {file}",
        "-e stderr -c {file} -g 'daemon off;'",
    ),
    "haproxy": Proxy(
        "haproxy.cfg",
        {"bind :8080": "bind 127.0.0.1:{port}"},
        (
            "server-template replica 4 anytime:8000 resolvers system",
            "server-template replica{number}- 1 127.0.0.1:{port} resolvers system",
        ),
        "-c -f {file}",
        "-db -f {file}",
    ),
    "envoy": Proxy(
        "envoy.yaml",
        {
            "{address: 0.0.0.0, port_value: 8080}": "{{address: 127.0.0.1, port_value: {port}}}",
            "port_value: 9901": "port_value: {admin}",
        },
        (
            "              - endpoint: {address: {socket_address: {address: anytime, port_value: 8000}}}",
            "              - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}",
        ),
        "--mode validate -l error -c {file}",
        "--use-dynamic-base-id --concurrency 2 -l error -c {file}",
    ),
}


@contextmanager
def run_proxy(name: str, replicas: Sequence[int], folder: Path) -> Iterator[Running]:
    """Run a proxy in front of services on these ports; skip the test if it is not installed.

    Raises
    ------
    AssertionError
        The program rejects the configuration, or does not start.
    """
    proxy, binary, port = PROXIES[name], program(name), free_port()
    file = proxy.write_configuration(replicas, port, folder)
    ran(binary, *shlex.split(proxy.check.format(file=file)))
    with started([binary, *shlex.split(proxy.run.format(file=file))], lambda: answers(port)):
        yield Running(port)
