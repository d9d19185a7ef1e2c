"""The rules of the house, held by tests: imports, exports, documentation, sizes."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic.fields import FieldInfo

from anytime.cli.main import application
from anytime_service.settings import PREFIX, Settings

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
OPERATING = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
SOURCES = sorted([*(ROOT / "models").rglob("*.py"), *(ROOT / "service").rglob("*.py")])

LAYERS = (
    "arrays errors threads answer",
    "container",
    "calibration histogram",
    "groups manifest",
    "groups_files distributions extractors scraping",
    "families matrix_columns",
    "tables probabilities",
    "targets",
    "moments folds",
    "packed_moments dealing",
    "kept_moments checkpoint",
    "accumulate",
    "streaming",
    "gram cholesky",
    "slabs",
    "design",
    "slab_design",
    "curvature newton left",
    "sweep group_lasso",
    "criteria",
    "sequencing",
    "prefixes",
    "cross_validation",
    "alpha curve guarantee stopping certificate",
    "comparison model generalised options",
    "training artifact arrived conformity certifying",
    "provenance",
    "resequencing",
    "drift inputs profiling random_costs",
    "dataset values",
    "prediction calibrating cluster",
    "evaluation workers",
    "lateness",
    "collecting",
    "runner estimators plotting exporting",
    "kept_runners experiments",
    "cli",
)
"""Rooms of the library in the order in which data pass through them; none imports one further on."""

FACADES = {"__init__", "__main__", "model"}
"""The doors: what a user holds leads to rooms further on, by imports inside functions."""


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
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return names


def room(module: str) -> str:
    """Room of a module of the library."""
    return module.split(".")[1] if "." in module else "__init__"


@pytest.mark.parametrize("path", [p for p in SOURCES if p.is_relative_to(ROOT / "models")], ids=module_name)
def test_data_flow_one_way(path: Path) -> None:
    rank = {name: i for i, names in enumerate(LAYERS) for name in names.split()}
    here = room(module_name(path))
    if here in FACADES:
        return
    assert here in rank, f"{here} has no place in LAYERS"
    ahead = {m for m in imported(path) if m.startswith("anytime.") and rank[room(m)] > rank[here]}
    assert not ahead


@pytest.mark.parametrize("path", [p for p in SOURCES if p.is_relative_to(ROOT / "models")], ids=module_name)
def test_the_library_never_imports_the_service(path: Path) -> None:
    assert not {m for m in imported(path) if m.startswith("anytime_service")}


@pytest.mark.parametrize("path", [p for p in SOURCES if p.name != "__main__.py"], ids=module_name)
def test_exports_are_explicit_sorted_and_there(path: Path) -> None:
    if path.name == "__init__.py" and len(ast.parse(path.read_text(encoding="utf-8")).body) == 1:
        return  # a package that is only a room, with its docstring
    module = importlib.import_module(module_name(path))
    names = module.__all__
    constants = [n for n in names if n.isupper()]
    classes = [n for n in names if not n.isupper() and n[0].isupper()]
    others = [n for n in names if not n[0].isupper()]
    assert names == [*sorted(constants), *sorted(classes), *sorted(others)]
    assert all(hasattr(module, name) for name in names)


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_a_module_is_one_idea(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 350


def test_importing_the_library_loads_neither_scikit_learn_nor_pyarrow_nor_a_server() -> None:
    heavy = {"sklearn", "pyarrow", "pandas", "matplotlib", "fastapi", "uvicorn"}
    code = f"import anytime, sys; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_every_command_is_documented() -> None:
    commands = {
        command.name or command.callback.__name__ for command in application().registered_commands if command.callback
    }
    undocumented = {name for name in commands if f"anytime {name}" not in README and f"make {name}" not in README}
    assert not undocumented


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
    rows = re.findall(r"^\| `(ANYTIME_\w+)` \| (.*?) \|(.*?)\| (.*?) \|$", OPERATING, flags=re.MULTILINE)
    expected = {}
    for name, field in Settings.model_fields.items():
        default = field.get_default()
        shown = f"{default:g}" if isinstance(default, float) else str(default).lower() if default is False else default
        expected[PREFIX + name.upper()] = (f"`{shown}`" if shown else "none", limits(field))
    assert {name: (default, limit.strip()) for name, default, limit, _ in rows} == expected
    assert all(meaning.strip() for *_, meaning in rows)


def test_every_option_of_train_is_documented() -> None:
    command = next(c for c in application().registered_commands if c.callback and c.callback.__name__ == "train")
    assert command.callback is not None
    source = Path(command.callback.__code__.co_filename).read_text(encoding="utf-8")
    options = set(re.findall(r'"(--[a-z-]+)"', source)) - {"--no-moments"}
    documented = README + (ROOT / "models/anytime/cli/arguments.py").read_text(encoding="utf-8")
    assert not {option for option in options if option not in documented}


@pytest.mark.filterwarnings("default")
def test_the_commands_of_the_readme_run(tmp_path: Path) -> None:
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 6
    pythons = [text for kind, text in blocks if kind == "python"]
    script = ["set -euo pipefail"]
    for kind, text in blocks:
        if kind == "sh":
            script.append(text)
        else:  # blocks of Python share their names, so each runs after those before it
            index = pythons.index(text)
            (tmp_path / f"block{index}.py").write_text("\n".join(pythons[: index + 1]), encoding="utf-8")
            script.append(f"python block{index}.py")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"prediction"' in done.stdout
    assert (tmp_path / "cheaper.safetensors").exists()
