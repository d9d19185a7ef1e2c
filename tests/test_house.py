"""Rules for the whole project: import order, exports, documented commands and settings."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import re
import subprocess
import sys
from collections import Counter
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from deploy.docs.hooks import PACKAGES, undocumented
from pydantic.fields import FieldInfo

from anytime.cli.main import COMMANDS
from anytime.cli.train import train
from anytime.inference.prediction import LOCAL_FIELDS, Answer
from anytime_service.limits.tuning import TUNING
from anytime_service.routes import ROUTES
from anytime_service.schemas.messages import BeginFrame, PackedGroupFrame
from anytime_service.schemas.problem import KINDS
from anytime_service.settings import PREFIX, Settings
from guides import ROOT, text_of

SOURCES = sorted([*(ROOT / "models").rglob("*.py"), *(ROOT / "service").rglob("*.py")])

ORDER = {
    "anytime": "_version types errors tabulated _linalg _files families groups target folds features moments data "
    "selection glm model training inference evaluation costs loaded estimators testing cli",
    "anytime_reproduction": "experiment report running sets lasso comparison compare group_omp uai cli",
    "anytime_service": "errors clock hangup keys urls settings routes limits schemas telemetry models core sessions "
    "http api app server client demo cli",
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


DOOR = {"fit", "options", "resequencing", "train"}
"""Modules of `training` that train by one door, and its types; the command line also prints bounds and connects."""


@pytest.mark.parametrize("path", [p for p in SOURCES if p.stem == "estimators" or "cli" in p.parts], ids=module_name)
def test_the_command_line_and_the_estimators_train_by_one_door(path: Path) -> None:
    used = {name.split(".")[2] for name in imported(path) if name.startswith("anytime.training.")}
    assert used <= (DOOR if path.stem == "estimators" else DOOR - {"fit"} | {"dask", "guarantee"})


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


def test_importing_the_library_loads_neither_scikit_learn_nor_pyarrow_nor_a_package_that_uses_it() -> None:
    heavy = {"anytime_reproduction", "sklearn", "pyarrow", "pandas", "matplotlib", "fastapi", "uvicorn"}
    code = f"import anytime, anytime.training.fit, sys; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_every_command_is_documented_and_has_its_module() -> None:
    installed = {entry.name for entry in entry_points(group="anytime.commands")}
    assert installed == {"compare", "demo", "reproduce", "serve"}
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


def test_the_time_that_a_body_may_continue_after_its_answer_is_documented() -> None:
    assert f"when the service does ({TUNING.linger_s:g} s)" in " ".join(text_of("deploy/README.md").split())


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


CEILINGS = ROOT / "tests" / "statements.json"
"""Statements of each folder. A change that must add some says so, and raises the number by hand."""


def statements(path: Path) -> int:
    """Return the number of statements of a source file; docstrings do not count."""

    def is_text(node: ast.AST) -> bool:
        return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)

    def count(node: ast.AST) -> int:
        return sum(
            (isinstance(n, ast.stmt) and not is_text(n)) + count(n)
            for n in ast.iter_child_nodes(node)
            if isinstance(n, ast.stmt | ast.excepthandler | ast.match_case)
        )

    return count(ast.parse(path.read_text(encoding="utf-8")))


def test_no_folder_has_more_statements_than_written_down_and_fewer_are_written_down(regenerate: bool) -> None:
    counts: Counter[str] = Counter()
    for path in [*SOURCES, *(ROOT / "tests").rglob("*.py")]:
        parts = path.relative_to(ROOT).parts[:-1]
        counts["/".join(parts[: 2 if parts[0] == "tests" else 3])] += statements(path)
    ceilings = json.loads(CEILINGS.read_text(encoding="utf-8"))
    more = {
        folder: f"{count}, not {ceilings.get(folder, 0)}"
        for folder, count in counts.items()
        if count > ceilings.get(folder, 0)
    }
    assert not more, f"more statements than {CEILINGS.name} has: make the change smaller, or say why it must add"
    if regenerate:
        CEILINGS.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    assert regenerate or counts == ceilings, "fewer: write them down, pytest tests/test_house.py --regenerate"


CLOCKS = {"perf_counter", "monotonic", "process_time", "thread_time", "now_ms"}


def clock_assertions(function: ast.AST) -> list[int]:
    """Lines of assertions on an order of times: of a clock, of what is computed from one, or of `elapsed_ms`."""

    def is_time(node: ast.AST) -> bool:
        called = node.func if isinstance(node, ast.Call) else None
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else None
        return name in CLOCKS or (isinstance(node, ast.Name) and node.id in times)

    def is_order(node: ast.AST) -> bool:
        if not isinstance(node, ast.Compare) or not isinstance(node.ops[-1], ast.Lt | ast.LtE | ast.Gt | ast.GtE):
            return False
        return any(is_time(part) for part in ast.walk(node)) or (
            "elapsed_ms" in ast.unparse(node) and not ast.unparse(node).endswith(("> 0", ">= 0"))
        )

    times: set[str] = set()
    nodes = list(ast.walk(function))
    for _ in range(3):  # a time may be computed from another
        for node in nodes:
            if isinstance(node, ast.Assign) and any(is_time(part) for part in ast.walk(node.value)):
                times.update(
                    name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)
                )
    return [node.lineno for node in nodes if isinstance(node, ast.Assert) and any(map(is_order, ast.walk(node.test)))]


def test_no_test_asserts_on_time() -> None:
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if path.parent.name != "clocks"]
    found = []
    for path in files:
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text if any(word in text for word in (*CLOCKS, "elapsed_ms")) else "")):
            if isinstance(node, ast.FunctionDef):
                found += [f"{path.relative_to(ROOT)}:{line}" for line in clock_assertions(node)]
    assert len(files) > 150
    assert not found


def test_no_test_changes_the_time_of_other_threads() -> None:
    """A server of the session runs in a thread of the tests: a fake clock replaces the name in one module."""
    changed = re.compile(r"""setattr\(\s*(?:["'][\w.]*\b)?(?:asyncio|random|time)\b(?:,|\.\w)""")
    assert changed.search('monkeypatch.setattr(time, "sleep", fake)')
    assert changed.search('monkeypatch.setattr("client.transport.asyncio.sleep", fake)')
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.name != Path(__file__).name]
    assert not [str(path) for path in files if changed.search(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("begun = perf_counter(); assert perf_counter() - begun < 2", 1),
        ("begun = time.monotonic(); took = time.monotonic() - begun; assert 1 < took < 2", 1),
        ("assert answer['elapsed_ms'] < 10", 1),
        ("assert answer.elapsed_ms >= 0", 0),
        ("until = perf_counter() + 1; assert extraction.wait(until) is None", 0),
    ],
)
def test_assertions_on_time_are_found(body: str, count: int) -> None:
    assert len(clock_assertions(ast.parse(body))) == count
