"""Rules for the whole project: import order, exports, documented commands and settings."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from deploy.docs.hooks import PACKAGES, undocumented
from pydantic.fields import FieldInfo

from anytime.cli.main import COMMANDS
from anytime.cli.train import train
from anytime.inference.prediction import LOCAL_FIELDS, Answer
from anytime_service.routes import ROUTES
from anytime_service.schemas.problem import KINDS
from anytime_service.schemas.stream import BeginFrame, PackedGroupFrame
from anytime_service.settings import PREFIX, Settings
from guides import ROOT, text_of

SOURCES = sorted([*(ROOT / "models").rglob("*.py"), *(ROOT / "service").rglob("*.py")])

ORDER = {
    "anytime": "_version types errors _linalg _files families groups target folds features moments data selection glm "
    "model training inference evaluation costs loaded estimators testing cli",
    "anytime_reproduction": "estimates experiment report running sets group_omp uai cli",
    "anytime_service": "errors clock keys urls settings telemetry limits routes schemas models core sessions http api "
    "app server client demo cli",
}
"""Folders and modules of each package. Each imports only those before it; `__init__` may import all of them."""


def module_name(path: Path) -> str:
    """Dotted name of a source file."""
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> set[str]:
    """Modules that a file imports, anywhere in it, but for type checkers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return names


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_a_folder_imports_only_folders_before_it(path: Path) -> None:
    package, here, *_ = (*module_name(path).split("."), "__init__")
    if here in ("__init__", "__main__"):
        return
    order = ORDER[package].split()
    folders = {name.split(".")[1] for name in imported(path) if name.startswith(f"{package}.")}
    assert folders & set(order) <= set(order[: order.index(here) + 1])


@pytest.mark.parametrize("path", [p for p in SOURCES if p.is_relative_to(ROOT / "models")], ids=module_name)
def test_the_library_never_imports_the_packages_that_use_it(path: Path) -> None:
    others = ("anytime_service", "anytime_reproduction")[: 1 if "anytime_reproduction" in path.parts else 2]
    assert not {m for m in imported(path) if m.startswith(others)}


@pytest.mark.parametrize("path", [p for p in SOURCES if "__all__" in p.read_text(encoding="utf-8")], ids=module_name)
def test_exports_are_sorted_and_there(path: Path) -> None:
    assert path.name == "__init__.py", "only packages export; all else is internal"
    module = importlib.import_module(module_name(path))
    names = module.__all__
    constants = [n for n in names if n.isupper()]
    classes = [n for n in names if not n.isupper() and n[0].isupper()]
    others = [n for n in names if not n[0].isupper()]
    assert names == [*sorted(constants), *sorted(classes), *sorted(others)]
    assert all(hasattr(module, name) for name in names)


@pytest.mark.parametrize("package", PACKAGES)
def test_everything_public_is_documented(package: str) -> None:
    assert undocumented(package) == []


def test_importing_the_library_loads_neither_scikit_learn_nor_pyarrow_nor_a_server() -> None:
    heavy = {"sklearn", "pyarrow", "pandas", "matplotlib", "fastapi", "uvicorn"}
    code = f"import anytime, sys; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_every_command_is_documented_and_has_its_module() -> None:
    installed = {entry.name for entry in entry_points(group="anytime.commands")}
    assert installed == {"demo", "reproduce", "serve"}
    commands = {*COMMANDS, *installed}
    assert not {name for name in commands if f"anytime {name}" not in text_of()}
    for name, (module, _) in COMMANDS.items():
        assert callable(getattr(importlib.import_module(f"anytime.cli.{module}"), name.replace("-", "_")))


def limits(field: FieldInfo) -> str:
    """Bounds of a setting, in words."""
    bounds = {
        kind: getattr(each, kind) for each in field.metadata for kind in ("ge", "gt", "le") if hasattr(each, kind)
    }
    if {"ge", "le"} <= set(bounds):
        return f"{bounds['ge']:g} to {bounds['le']:g}"
    words = {"ge": "at least", "gt": "more than", "le": "at most"}
    return ", ".join(f"{words[kind]} {bound:g}" for kind, bound in bounds.items())


def test_every_setting_is_documented_with_its_default_and_its_limits() -> None:
    rows = re.findall(
        r"^\| `(ANYTIME_\w+)` \| (.*?) \|(.*?)\| (.*?) \|$", text_of("deploy/SETTINGS.md"), flags=re.MULTILINE
    )
    expected = {}
    for name, field in Settings.model_fields.items():
        default = field.get_default()
        shown = f"{default:g}" if isinstance(default, float) else str(default).lower() if default is False else default
        expected[PREFIX + name.upper()] = (f"`{shown}`" if shown else "none", limits(field))
    assert {name: (default, limit.strip()) for name, default, limit, _ in rows} == expected
    assert all(meaning.strip() for *_, meaning in rows)


def test_every_option_of_train_is_documented() -> None:
    options = {f"--{name.replace('_', '-')}" for name in inspect.signature(train).parameters}
    assert not {option for option in options if option not in text_of()}


@pytest.mark.parametrize(("page", "least"), [("CONTRIBUTING.md", 30), ("models/PAPER.md", 15)])
def test_every_file_that_a_page_names_exists(page: str, least: int) -> None:
    named = set(re.findall(r"`([\w/.]+\.(?:py|md|json|toml))`", text_of(page))) - {
        "models/anytime/cli/NAME.py",
        "groups.json",
    }
    assert len(named) > least
    places = ("", "models/anytime", "models/anytime_reproduction", "service/anytime_service", "tests/models")
    folders = [ROOT / place for place in places]
    assert not [file for file in named if not any((folder / file).is_file() for folder in folders)]


def test_every_kind_of_problem_is_documented_with_its_title_and_its_remedies() -> None:
    row = r"^\| `([\w-]+)` \| (\d+) \| (.+?) \| (.+?) \|$"
    rows = re.findall(row, text_of("service/PROTOCOL.md"), flags=re.MULTILINE)
    assert {(slug, int(status), title) for slug, status, title, _ in rows} == {
        (kind.slug, kind.status, kind.title) for kind in KINDS.values()
    }
    first_cells = re.findall(r"^\| (`[^|]+) \|", text_of("deploy/RUNBOOK.md"), flags=re.MULTILINE)
    assert {kind.slug for kind in KINDS.values()} <= set(re.findall(r"`([\w-]+)`", " ".join(first_cells)))


def test_every_field_of_a_message_and_of_an_answer_is_documented() -> None:
    protocol, service = text_of("service/PROTOCOL.md"), text_of("service/README.md")
    fields = {*BeginFrame.__struct_fields__, *PackedGroupFrame.__struct_fields__}
    assert not [name for name in fields if not re.search(rf"^\| `{name}` \|", protocol, flags=re.MULTILINE)]
    described = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.+?) \|", service, flags=re.MULTILINE))))
    assert {field.name for field in dataclasses.fields(Answer)} - {*LOCAL_FIELDS} <= described


def test_every_route_is_documented() -> None:
    text = text_of("service/README.md", "service/PROTOCOL.md")
    paths = {row.path for row in ROUTES}
    shown = {path for path in paths if re.search(rf"{re.escape(path)}[`?]", text)}
    assert {path for path in paths - shown if "/versions/" not in path} == {"/console/{file}"}
