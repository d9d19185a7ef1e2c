"""Properties of the image that its Dockerfile and its pins show, without an engine."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from anytime_service.settings import PREFIX
from deploy.project import ROOT, arguments, environment, instructions, only, settings, stages

BUILDER, FINAL = stages()


@dataclass(frozen=True)
class Pin:
    """One requirement of a lock file."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]


def pins(lock: str) -> Iterator[Pin]:
    """Yield the requirements of a lock file."""
    text = (ROOT / lock).read_text(encoding="utf-8")
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    for line in re.sub(r"\\\n", " ", text).splitlines():
        requirement, *hashes = line.split(" --hash=")
        name, version, marker = re.fullmatch(r"([\w.-]+)==([^\s;]+)(?:\s*;\s*(.*))?", requirement.strip()).groups("")  # type: ignore[union-attr]
        yield Pin(name, version, marker, tuple(each.strip() for each in hashes))


def test_only_hashed_pins_are_downloaded() -> None:
    assert instructions()[0].argument == "BASE=python:3.12-slim"
    assert [stage[0].argument.split()[0] for stage in stages()] == ["${BASE}", "${BASE}"]
    assert not [each for each in instructions() if each.word == "ADD" or "://" in each.argument]
    installs = [
        command for argument in arguments(BUILDER, "RUN") for command in argument.split("&&") if " install " in command
    ]
    assert installs
    assert all("--require-hashes" in command or "--no-index" in command for command in installs)
    assert "--no-build-isolation" in " ".join(arguments(BUILDER, "RUN"))  # isolation would fetch without hashes
    assert not [argument for argument in arguments(FINAL, "RUN") if "pip" in argument]


def test_the_environment_is_installed_from_the_pins_of_the_server() -> None:
    copied = [name for argument in arguments(BUILDER, "COPY") for name in argument.split()[:-1]]
    assert {"requirements-serve.lock", "pyproject.toml", "models", "service"} <= set(copied)
    assert re.search(
        r"/opt/venv/\S+ install --require-hashes .*-r requirements-serve\.lock", arguments(BUILDER, "RUN")[0]
    )
    assert environment(BUILDER)["PIP_NO_CACHE_DIR"] == "1"


def tools() -> set[str]:
    """Return the development tools that the build uses."""
    (names,) = re.findall(r'^TOOLS="(.*)"$', only(BUILDER, "ARG").argument)
    return set(names.split())


def needed(name: str, extras: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield what a package needs on the image's Python, itself included."""
    yield canonicalize_name(name)
    for text in requires(name) or []:
        requirement = Requirement(text)
        places = [
            {"extra": extra, "python_version": "3.12", "python_full_version": "3.12.0"} for extra in ("", *extras)
        ]
        if requirement.marker is None or any(requirement.marker.evaluate(place) for place in places):
            yield from needed(requirement.name, frozenset(requirement.extras))


def test_the_build_tools_and_their_dependencies_are_in_the_development_lock() -> None:
    assert tools() <= {pin.name for pin in pins("requirements.lock")}
    assert tools() == {*needed("hatchling"), *needed("cyclonedx-bom")}


def test_the_pins_of_the_tools_are_selected_from_the_lock(tmp_path: Path) -> None:
    (command,) = (argument for argument in arguments(BUILDER, "RUN") if argument.startswith("awk"))
    script = command[: command.index(" > tools.lock")]
    names = " ".join(sorted(tools()))
    selected = subprocess.run(
        ["sh", "-c", script], cwd=ROOT, env=os.environ | {"TOOLS": names}, capture_output=True, text=True, check=True
    ).stdout
    (tmp_path / "tools.lock").write_text(selected, encoding="utf-8")
    found = {(pin.name, pin.version): pin.hashes for pin in pins(str(tmp_path / "tools.lock"))}
    assert found == {(pin.name, pin.version): pin.hashes for pin in pins("requirements.lock") if pin.name in tools()}


def test_the_final_stage_copies_the_environment_and_its_sbom_and_licences_which_are_written_last() -> None:
    assert arguments(FINAL, "COPY") == [
        "--from=builder /opt/licences /usr/share/anytime-linear",
        "--from=builder /opt/venv /opt/venv",
    ]
    runs = arguments(BUILDER, "RUN")
    (trimmed,) = (i for i, argument in enumerate(runs) if "-delete" in argument)
    (position,) = (i for i, argument in enumerate(runs) if "sbom.cdx.json" in argument)
    assert trimmed < position
    assert not [argument for argument in runs[position:] if " rm " in argument or "pip" in argument.split()]
    assert re.search(
        r"/opt/tools/bin/cyclonedx-py environment .*/opt/licences/sbom\.cdx\.json /opt/venv/", runs[position]
    )
    assert "/opt/venv/bin/python licences.py /opt/licences/THIRD_PARTY.txt" in runs[position]
    labels = dict(re.findall(r'([\w.-]+)="([^"]*)"', only(FINAL, "LABEL").argument))
    assert labels["anytime-linear.sbom"] == "/usr/share/anytime-linear/sbom.cdx.json"
    assert labels["anytime-linear.licences"] == "/usr/share/anytime-linear/THIRD_PARTY.txt"


def test_the_user_is_a_number_and_not_root() -> None:
    user = only(FINAL, "USER")
    assert all(int(number) > 0 for number in user.argument.split(":"))  # a number, which an orchestrator can check
    assert not [each for each in FINAL[FINAL.index(user) :] if each.word in {"RUN", "COPY"}]


def test_the_image_starts_the_server_itself_on_every_address() -> None:
    assert only(FINAL, "ENTRYPOINT").argv() == ["anytime", "serve"]
    assert only(FINAL, "CMD").argv() == ["/models"]
    assert only(FINAL, "STOPSIGNAL").argument == "SIGTERM"
    values = environment(FINAL)
    assert values["ANYTIME_HOST"] == "0.0.0.0"
    assert only(FINAL, "EXPOSE").argument == values["ANYTIME_PORT"]
    assert {name for name in values if name.startswith(PREFIX)} <= settings()
    assert values["PYTHONDONTWRITEBYTECODE"] == "1", "the file system is read-only, and the build compiles:"
    compiled = ("anytime.cli.main", "anytime_service.server.run", "anytime_service.sessions.redis_store")
    assert all(module in only(FINAL, "RUN").argument for module in compiled)


def test_the_health_check_requests_readiness_without_a_shell() -> None:
    program, option, code = only(FINAL, "HEALTHCHECK").argv()
    assert (program, option) == ("python", "-c")
    ast.parse(code)
    assert "/readyz" in code
    assert "ANYTIME_PORT" in code


def test_the_build_context_is_exactly_what_is_copied() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert patterns[0] == "*"
    copied = {name for argument in arguments(BUILDER, "COPY") for name in argument.split()[:-1]}
    assert {pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")} == copied
    assert any(fnmatch("models/anytime/__pycache__", pattern) for pattern in patterns[1:])


@pytest.mark.parametrize("lock", ["requirements-serve.lock", "requirements.lock"])
def test_every_pin_has_hashes_and_names_no_index(lock: str) -> None:
    text = (ROOT / lock).read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"^\s*-(?!-hash)", text, flags=re.MULTILINE)  # an option, such as an index
    found = list(pins(lock))
    assert found
    assert all(pin.hashes and all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in pin.hashes) for pin in found)


def test_the_server_is_pinned_as_it_is_tested_and_needs_neither_scikit_learn_nor_pyarrow() -> None:
    tested = {(pin.name, pin.marker, pin.version): pin.hashes for pin in pins("requirements.lock")}
    served = {(pin.name, pin.marker, pin.version): pin.hashes for pin in pins("requirements-serve.lock")}
    assert served.items() <= tested.items()
    names = {name for name, *_ in served}
    assert {"fastapi", "uvicorn", "numpy"} <= names
    assert not names & {"pyarrow", "scikit-learn"}
