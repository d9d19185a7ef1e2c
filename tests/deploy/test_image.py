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
    assert not [each for each in instructions() if each.word == "ADD" or "://" in each.rest]
    installs = [command for rest in rests(builder, "RUN") for command in rest.split("&&") if " install " in command]
    assert installs
    assert all("--require-hashes" in command or "--no-index" in command for command in installs)
    assert "--no-build-isolation" in " ".join(rests(builder, "RUN"))  # isolation would fetch without hashes
    assert not [rest for rest in rests(final, "RUN") if "pip" in rest]


def test_the_environment_is_installed_from_the_pins_of_the_server() -> None:
    builder, _ = stages()
    copied = [name for rest in rests(builder, "COPY") for name in rest.split()[:-1]]
    assert {"requirements-serve.lock", "pyproject.toml", "models", "service"} <= set(copied)
    assert re.search(r"/opt/venv/\S+ install --require-hashes .*-r requirements-serve\.lock", rests(builder, "RUN")[0])
    assert environment(builder)["PIP_NO_CACHE_DIR"] == "1"


def tools() -> set[str]:
    """Pins of the development tools that the build takes."""
    (names,) = re.findall(r'^TOOLS="(.*)"$', only(stages()[0], "ARG").rest)
    return set(names.split())


def needed(name: str, extras: frozenset[str] = frozenset()) -> Iterator[str]:
    """What a package needs on the image's Python, itself included."""
    yield canonicalize_name(name)
    for text in requires(name) or []:
        requirement = Requirement(text)
        places = [
            {"extra": extra, "python_version": "3.12", "python_full_version": "3.12.0"} for extra in ("", *extras)
        ]
        if requirement.marker is None or any(requirement.marker.evaluate(place) for place in places):
            yield from needed(requirement.name, frozenset(requirement.extras))


def test_the_tools_of_the_build_are_in_the_lock_for_development_with_all_that_they_need() -> None:
    assert tools() <= {pin.name for pin in pins("requirements.lock")}
    assert tools() == {*needed("hatchling"), *needed("cyclonedx-bom")}


def test_the_pins_of_the_tools_are_cut_out_of_the_lock(tmp_path: Path) -> None:
    (command,) = (rest for rest in rests(stages()[0], "RUN") if rest.startswith("awk"))
    script = command[: command.index(" > tools.lock")]
    names = " ".join(sorted(tools()))
    cut = subprocess.run(
        ["sh", "-c", script], cwd=ROOT, env=os.environ | {"TOOLS": names}, capture_output=True, text=True, check=True
    ).stdout
    (tmp_path / "tools.lock").write_text(cut, encoding="utf-8")
    found = {(pin.name, pin.version): pin.hashes for pin in pins(str(tmp_path / "tools.lock"))}
    assert found == {(pin.name, pin.version): pin.hashes for pin in pins("requirements.lock") if pin.name in tools()}


def test_the_final_stage_copies_the_environment_and_what_is_told_of_it_and_nothing_else() -> None:
    assert rests(stages()[1], "COPY") == [
        "--from=builder /opt/licences /usr/share/anytime-linear",
        "--from=builder /opt/venv /opt/venv",
    ]


def test_what_is_told_of_the_image_is_told_when_nothing_more_is_taken_out_of_it() -> None:
    builder, final = stages()
    runs = rests(builder, "RUN")
    (trimmed,) = (i for i, rest in enumerate(runs) if "-delete" in rest)
    (position,) = (i for i, rest in enumerate(runs) if "sbom.cdx.json" in rest)
    assert trimmed < position
    assert not [rest for rest in runs[position:] if " rm " in rest or "pip" in rest.split()]
    assert "/narwhals* " in runs[trimmed]  # with its metadata, by which it would be listed
    assert re.search(
        r"/opt/tools/bin/cyclonedx-py environment .*/opt/licences/sbom\.cdx\.json /opt/venv/", runs[position]
    )
    assert "/opt/venv/bin/python licences.py /opt/licences/THIRD_PARTY.txt" in runs[position]
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
