"""Docstrings are in NumPy style, and state the types of the signature."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(path for folder in ("models", "service") for path in (ROOT / folder).rglob("*.py"))
_SECTION = re.compile(r"^( *)(?:Parameters|Attributes)\n *-+\n((?:.+\n?)*)", flags=re.MULTILINE)
_WRAPPERS = re.compile(r"(?:ClassVar|Final|InitVar|dataclasses\.InitVar)\[(.*)\]")


def types_of(node: ast.AST) -> dict[str, str]:
    """Return the type of each parameter of a function, or of each attribute and parameter of a class."""
    named: dict[str, ast.expr] = {}
    for part in ast.walk(node):
        match part:
            case ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name), annotation=kind):
                named.setdefault(name, kind)
            case ast.arg(arg=name, annotation=ast.expr() as kind):
                named.setdefault(name, kind)
            case ast.FunctionDef(name=name, returns=ast.expr() as kind):
                named.setdefault(name, kind)
    return {name: _WRAPPERS.sub(r"\1", ast.unparse(kind)).replace("'", '"') for name, kind in named.items()}


def entries(docstring: str) -> Iterator[tuple[str, str | None, bool]]:
    """Yield the names, the type and whether a description follows, of each entry of the two sections."""
    for section in _SECTION.finditer(docstring):
        indent, lines = section[1], section[2].splitlines()
        for line, after in zip(lines, [*lines[1:], ""], strict=True):
            if not line.startswith(indent + " ") and line.strip():
                names, _, kind = line.strip().partition(" : ")
                yield names, kind or None, after.startswith(indent + "    ")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_state_the_types_of_the_signature(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        docstring = ast.get_docstring(node, clean=False) or ""
        types = types_of(node)
        for names, kind, described in entries(docstring):
            assert re.fullmatch(r"\*{0,2}\w+(, \*{0,2}\w+)*", names), (node.name, names)
            assert described, (node.name, names, "has no description below it")
            for name in names.split(", "):
                stated = types.get(name.lstrip("*"))
                if kind is not None and stated not in (None, "Any") and "array of shape" not in kind:
                    assert kind == stated, (node.name, name)
