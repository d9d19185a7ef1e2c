"""What the image promises, read from its Dockerfile and its pins: no engine is needed."""

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
from deploy.dockerfile import environment, instructions, only, rests, stages
from deploy.named import ROOT, settings

TRAINING = {"pyarrow", "scikit-learn"}


@dataclass(frozen=True)
class Pin:
    """One requirement of a lock: a version, where it holds, and its hashes."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]


def pins(lock: str) -> Iterator[Pin]:
    """Yield the requirements of a lock, one a paragraph that is not indented."""
    text = (ROOT / lock).read_text(encoding="utf-8")
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    for line in re.sub(r"\\\n", " ", text).splitlines():
        requirement, *hashes = line.split(" --hash=")
        name, version, marker = re.fullmatch(r"([\w.-]+)==([^\s;]+)(?:\s*;\s*(.*))?", requirement.strip()).groups("")  # type: ignore[union-attr]
        yield Pin(name, version, marker, tuple(each.strip() for each in hashes))


def test_the_base_is_an_argument_and_both_stages_stand_on_it() -> None:
    assert (instructions()[0].word, instructions()[0].rest) == ("ARG", "BASE=python:3.12-slim")
    assert [stage[0].rest.split()[0] for stage in stages()] == ["${BASE}", "${BASE}"]


def test_nothing_comes_from_the_network_but_hashed_pins() -> None:
    builder, final = stages()
    assert "/narwhals* " in runs[trimmed]
    assert re.search(
        r"/opt/tools/bin/cyclonedx-py environment .*--output-file /opt/told/sbom\.cdx\.json \S+/venv/", runs[told]
    )
    assert "/opt/venv/bin/python licences.py /opt/told/THIRD_PARTY.txt" in runs[told]
    labels = dict(re.findall(r'([\w.-]+)="([^"]*)"', only(final, "LABEL").rest))
    assert labels["anytime-linear.sbom"] == "/usr/share/anytime-linear/sbom.cdx.json"
    assert labels["anytime-linear.licences"] == "/usr/share/anytime-linear/THIRD_PARTY.txt"


def test_the_user_is_a_number_and_not_root() -> None:
    final = stages()[1]
    user = only(final, "USER")
    assert all(int(number) > 0 for number in user.rest.split(":"))  # a number: an orchestrator can check it
    assert not [each for each in final[final.index(user) :] if each.word in {"RUN", "COPY"}]


def test_the_image_starts_the_server_itself_on_every_address() -> None:
    final = stages()[1]
    assert only(final, "ENTRYPOINT").argv() == ["anytime", "serve"]
    assert only(final, "CMD").argv() == ["/models"]
    assert only(final, "STOPSIGNAL").rest == "SIGTERM"
    values = environment(final)
    assert values["ANYTIME_HOST"] == "0.0.0.0"
    assert only(final, "EXPOSE").rest == values["ANYTIME_PORT"]
    assert {name for name in values if name.startswith(PREFIX)} <= settings()


def test_bytecode_is_compiled_in_the_build_and_not_written_later() -> None:
    builder, final = stages()
    assert "compileall" in rests(builder, "RUN")[-1]
    assert environment(final)["PYTHONDONTWRITEBYTECODE"] == "1"


def test_the_health_check_needs_no_shell_and_asks_whether_the_server_is_ready() -> None:
    program, option, code = only(stages()[1], "HEALTHCHECK").argv()
    assert (program, option) == ("python", "-c")
    ast.parse(code)
    assert "/readyz" in code
    assert "ANYTIME_PORT" in code


def test_the_context_holds_what_is_copied_and_no_more() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert patterns[0] == "*"
    copied = {name for rest in rests(stages()[0], "COPY") for name in rest.split()[:-1]}
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


def test_the_server_is_pinned_as_it_is_tested() -> None:
    tested = {(pin.name, pin.marker, pin.version): pin.hashes for pin in pins("requirements.lock")}
    served = {(pin.name, pin.marker, pin.version): pin.hashes for pin in pins("requirements-serve.lock")}
    assert served.items() <= tested.items()


def test_the_server_needs_neither_scikit_learn_nor_pyarrow() -> None:
    names = {pin.name for pin in pins("requirements-serve.lock")}
    assert {"fastapi", "uvicorn", "numpy"} <= names
    assert not names & TRAINING
