"""The contributors' page gives a reason for every dependency."""

from __future__ import annotations

import re
import tomllib

from packaging.requirements import Requirement

from deploy.project import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BUILT_ON = PAGE[PAGE.index("## What it is built on") :]


def names(requirements: list[str]) -> set[str]:
    """Return the packages of requirements, without the project's own extras."""
    return {Requirement(each).name for each in requirements} - {PROJECT["project"]["name"]}


def documented() -> dict[str, set[str]]:
    """Return the packages in each part of the table; a row without a part belongs to the one before."""
    found: dict[str, set[str]] = {}
    part = ""
    for heading, packages, reason in re.findall(r"^\| (.*?) ?\| (.+?) \| (.+?) \|$", BUILT_ON, flags=re.MULTILINE):
        part = heading.strip("`") or part
        assert reason
        found.setdefault(part, set()).update(packages.split(", "))
    del found["for"]
    return found


def test_exactly_the_dependencies_are_documented_with_their_reasons() -> None:
    project = PROJECT["project"]
    extras = {name: names(each) for name, each in project["optional-dependencies"].items() if name != "all"}
    assert documented() == {"the library": names(project["dependencies"]), **extras}


def test_every_development_tool_is_documented() -> None:
    sentence = BUILT_ON[BUILT_ON.index("To develop:") :]
    mentioned = set(re.findall(r"[\w-]+", sentence))
    groups = PROJECT["dependency-groups"]
    tools = [tool for group in ("build", "dev", "docs") for tool in groups[group] if isinstance(tool, str)]
    assert names(tools) <= mentioned


def test_all_is_all() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    (whole,) = (Requirement(each) for each in extras["all"])
    assert whole.extras == set(extras) - {"all"}
