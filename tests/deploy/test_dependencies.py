"""Every package that the project asks for has its reason told."""

from __future__ import annotations

import re
import tomllib

from packaging.requirements import Requirement

from deploy.named import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
BUILT_ON = README[README.index("## What it is built on") :]


def names(requirements: list[str]) -> set[str]:
    """Packages of requirements, but for the project's own extras."""
    return {Requirement(each).name for each in requirements} - {PROJECT["project"]["name"]}


def told() -> dict[str, set[str]]:
    """Packages in each part of the table; a row without a part belongs to the one before."""
    found: dict[str, set[str]] = {}
    part = ""
    for begun, packages, why in re.findall(r"^\| (.*?) ?\| (.+?) \| (.+?) \|$", BUILT_ON, flags=re.MULTILINE):
        part = begun.strip("`") or part
        assert why
        found.setdefault(part, set()).update(packages.split(", "))
    del found["for"]
    return found


def test_every_dependency_is_told_with_its_reason_and_no_other() -> None:
    project = PROJECT["project"]
    extras = {name: names(each) for name, each in project["optional-dependencies"].items() if name != "all"}
    assert told() == {"the library": names(project["dependencies"]), **extras}


def test_every_tool_of_development_is_told() -> None:
    sentence = BUILT_ON[BUILT_ON.index("To develop:") :]
    mentioned = set(re.findall(r"[\w-]+", sentence))
    assert names(PROJECT["dependency-groups"]["dev"]) <= mentioned


def test_all_is_all() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    (whole,) = (Requirement(each) for each in extras["all"])
    assert whole.extras == set(extras) - {"all"}
