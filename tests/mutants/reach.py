"""Which tests reach a line: a map recorded by one run of the tests under coverage, and the choice of tests from it."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import cached_property, lru_cache
from pathlib import Path

from coverage import CoverageData
from coverage.exceptions import DataError

BUDGET_S = 60.0
"""Recorded time of the tests that try one mutant, at most. It was recorded under coverage, so they take less."""

FIRST_S = 6.0
"""Recorded time of those that are tried first: most mutants are noticed by them."""

FILE_S = 0.1
"""Time to import a file of tests, where the packages that it needs are imported."""

MIRRORED = 4.0
"""A test of the mirrored folder is preferred to a test elsewhere that is as many times quicker."""

POLICY = "tests/test_house.py"
"""Tests of what runs at import, such as the documented default of a setting."""

PHASE = re.compile(r" \((setup|call|teardown)\)$")


def copy_tree(root: Path, tree: Path) -> None:
    """Replace a folder by a copy of the files that git knows or would add, next to the same data sets."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
    )
    shutil.rmtree(tree, ignore_errors=True)
    for name in listed.stdout.decode().rstrip("\0").split("\0"):
        if (root / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, tree / name)
    with contextlib.suppress(FileExistsError):
        (tree.parent / "shared").symlink_to(root.parent / "shared")  # real data sets are next to the project


def environment(tree: Path) -> dict[str, str]:
    """Return the variables with which tests import the packages of a copy, not those of the checkout."""
    path = os.pathsep.join(str(tree / name) for name in ("models", "service", "tests", "."))
    return {**os.environ, "PYTHONPATH": path}


def mirrored(file: str) -> str:
    """Return the beginning of the names of tests that mirror a source file: a folder, or a file next to the folders."""
    _, package, *folders = Path(file).with_suffix("").parts
    place = {"anytime": "tests/models", "anytime_service": "tests/service"}.get(package, "tests/reproduction")
    return (
        f"{place}/"
        if package == "anytime_reproduction"
        else (f"{place}/{folders[0]}/" if len(folders) > 1 else f"{place}/test_{folders[-1].lstrip('_')}")
    )


class Reach:
    """The map in a folder: `tree`, the copy that was recorded, `coverage` with a context for each test, and times.

    Parameters
    ----------
    folder : Path
        Where the map is stored.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tree = folder / "tree"
        self.times = folder / "tests.jsonl"
        self.data = folder / "coverage"
        self.contexts = lru_cache(self._contexts)

    def record(self, root: Path, jobs: int) -> None:
        """Run all tests under coverage in a new copy of the project, and replace the map."""
        shutil.rmtree(self.folder, ignore_errors=True)
        copy_tree(root, self.tree)
        self._run(["tests"], jobs)

    def update(self, root: Path, jobs: int) -> None:
        """Run the tests that are new or changed since, with the sources that were recorded, and add them to the map."""
        changed = []
        for path in sorted((root / "tests").rglob("*.py")):
            name, text = str(path.relative_to(root)), path.read_bytes()
            if not (self.tree / name).exists() or (self.tree / name).read_bytes() != text:
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                (self.tree / name).write_bytes(text)
                changed += [name] if path.name.startswith("test_") else []
        if changed:
            self._run(changed, jobs)

    def _run(self, tests: Sequence[str], jobs: int) -> None:
        variables = {
            "COVERAGE_PROCESS_START": str(self.tree / "tests/mutants/coverage.ini"),
            "MUTANTS_TREE": str(self.tree),
            "MUTANTS_DATA": str(self.folder / "part"),
            "MUTANTS_TESTS": str(self.times),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "mutants.contexts"]
        chosen = ["--numprocesses", str(jobs), "--dist", "worksteal", *tests]
        subprocess.run([*command, *chosen], cwd=self.tree, env=environment(self.tree) | variables, check=False)
        self.combine()

    def combine(self) -> None:
        """Merge the parts that the processes have written."""
        whole = CoverageData(basename=str(self.data))
        whole.read()  # otherwise the first update would erase it
        for path in self.folder.glob("part.*"):
            part = CoverageData(basename=str(path))
            with contextlib.suppress(DataError):  # of a process that a test killed while it was writing
                part.read()
                whole.update(part)
            path.unlink(missing_ok=True)
        whole.write()

    @cached_property
    def seconds(self) -> dict[str, dict[str, float]]:
        """Times of the phases of each test that passed the last time."""
        found: dict[str, dict[str, float]] = {}
        failed = set()
        for line in self.times.read_text(encoding="utf-8").splitlines():
            name, phase, outcome, seconds = json.loads(line)
            if phase == "setup":
                found[name] = {}
                failed.discard(name)
            found[name][phase] = seconds
            if outcome != "passed":
                failed.add(name)
        return {name: phases for name, phases in found.items() if name not in failed and "call" in phases}

    @cached_property
    def fixtures(self) -> dict[str, float]:
        """The longest setup of each file of tests: its first test starts what all share."""
        longest: dict[str, float] = defaultdict(float)
        for name, phases in self.seconds.items():
            file = name.split("::")[0]
            longest[file] = max(longest[file], phases["setup"])
        return longest

    def _contexts(self, file: str) -> dict[int, set[str]]:
        """Return the tests that reach each line of a file, as recorded; the empty name stands for none, or unknown."""
        data = CoverageData(basename=str(self.data))
        data.read()
        by_line = data.contexts_by_lineno(str(self.tree / file))
        return {line: {PHASE.sub("", name) for name in names} for line, names in by_line.items()}

    def reaching(self, file: str, line: int, source: str) -> list[set[str]]:
        """Return the tests that reach a line.

        Where no test is known to reach it, or where the line also runs at import or in a process of an unknown test,
        nearby tests follow: those that reach its function, then its file, then those of the mirrored folder and the
        rules for the whole project. For a line outside functions the last two come first.
        """
        beginning = mirrored(file)
        near = {name for name in self.seconds if name.startswith((beginning, POLICY))}
        if not (self.tree / file).exists():
            return [near]
        recorded = (self.tree / file).read_text(encoding="utf-8")
        blocks = SequenceMatcher(None, source.splitlines(), recorded.splitlines(), autojunk=False).get_matching_blocks()
        moved = [line - block.a + block.b for block in blocks if block.a < line <= block.a + block.size]
        spans = _spans(ast.parse(recorded), moved[0]) if moved else []
        by_line = self.contexts(file)
        levels: list[set[str]] = [] if spans else [near]
        for first, last in (*spans, (1, len(recorded))):
            names = set().union(*(by_line.get(each, ()) for each in range(first, last + 1)))
            levels.append((names & self.seconds.keys()).difference(*levels))
            if any(levels) and "" not in names:
                break
        else:
            levels.append(near.difference(*levels))
        return [level for level in levels if level]

    def chosen(self, file: str, levels: Sequence[set[str]]) -> list[list[str]]:
        """Return tests to try first, then others, each file by file: quick ones and those of the mirrored folder."""
        beginning = mirrored(file)
        waves: list[dict[str, list[str]]] = [{}, {}]
        spent = 0.0

        def weight(name: str) -> tuple[float, str]:
            return sum(self.seconds[name].values()) / (MIRRORED if name.startswith(beginning) else 1.0), name

        for name in (name for level in levels for name in sorted(level, key=weight)):
            of = name.split("::")[0]
            for wave, limit in zip(waves, (FIRST_S, BUDGET_S), strict=True):
                more = sum(self.seconds[name].values()) + (FILE_S + self.fixtures[of] if of not in wave else 0.0)
                if spent + more <= limit:
                    wave.setdefault(of, []).append(name)
                    spent += more
                    break
        return [[name for tests in wave.values() for name in tests] for wave in waves]


def _spans(module: ast.Module, line: int) -> list[tuple[int, int]]:
    """Return the lines of the statement that has a line, without its body, then those of its function.

    Lines that run at import (the head of a function, a constant) are reached by the tests of the function or file.
    """
    inside = [n for n in ast.walk(module) if isinstance(n, ast.stmt) and n.lineno <= line <= (n.end_lineno or 0)]
    functions = [n for n in inside if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    if not functions:
        return []
    function, statement = functions[-1], max(inside, key=lambda n: (n.lineno, -(n.end_lineno or 0)))
    whole = (function.body[0].lineno, function.end_lineno or 0)
    if statement is function:
        return [whole]
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if body and line < body[0].lineno else statement.end_lineno or 0
    return [(statement.lineno, max(last, statement.lineno)), whole]
