"""The tool of `make mutants`: which mutants there are, which tests try them, and what is stored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from coverage import CoverageData

from mutants.reach import BUDGET_S, Reach, mirrored
from mutants.run import (
    EQUIVALENT,
    OPERATORS,
    ROOT,
    Copy,
    Mutant,
    Result,
    all_mutants,
    equivalent,
    mutants_of,
    mutated,
    one_line,
    report,
    sampled,
    sweep,
    tried,
)

TOY = '''"""Toy."""


def larger(a: int | None, b: int) -> int:
    if a is None or not a > b:
        return b
    return a
'''
FILE = "models/anytime/selection/toy.py"


@pytest.fixture(name="root")
def toy_project(tmp_path: Path) -> Path:
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / "models/anytime/__init__.py").touch()  # comes before the package of the checkout
    (tmp_path / FILE).write_text(TOY, encoding="utf-8")
    return tmp_path


def of(operator: str, source: str = TOY) -> Mutant:
    return next(mutant for mutant in mutants_of(FILE, source) if mutant.operator == operator)


def test_operators_constants_and_branches_change_one_at_a_time() -> None:
    mutants = list(mutants_of(FILE, TOY))
    assert {mutant.operator for mutant in mutants} == {
        "AddNot",
        "ReplaceComparisonOperator_Gt_GtE",
        "ReplaceOrWithAnd",
        "ReplaceComparisonOperator_Is_IsNot",
        "ReplaceUnaryOperator_Delete_Not",
    }  # and not the `|` of an annotation
    for mutant in mutants:
        changed = mutated(TOY, mutant)
        assert changed is not None
        assert [old == new for old, new in zip(TOY.split("\n"), changed.split("\n"), strict=True)].count(False) == 1


def test_every_operator_of_the_list_is_one_of_cosmic_ray() -> None:
    every = "x = [-1, ~a, not b, a + b - c * d / e // f % g ** h >> i << j | k & l ^ m, True, False]\n"
    every += "while a and b or c == d != e < f <= g > h >= i is j is not k:\n    break\n    continue\n"
    every += "for a in b:\n    try: pass\n    except OSError: pass\n"
    assert {mutant.operator for mutant in mutants_of(FILE, every)} == set(OPERATORS)


def test_stars_before_arguments_are_no_operators_and_what_does_not_compile_is_no_mutant() -> None:
    source = "def f(a, *b, c, **d):\n    return {**d, 'a': [*b], 'c': c ** a, 'f': f(a, *b, **d)}\n"
    found = list(mutants_of(FILE, source + "def g(a, *, b): pass\n"))
    assert [(mutant.operator, mutant.line) for mutant in found] == [("ReplaceBinaryOperator_Pow_Mul", 2)]
    handlers = "try: pass\nexcept a.B: pass\nexcept (a.B, C): pass\n"
    changed = [mutated(handlers, mutant) for mutant in mutants_of(FILE, handlers)]
    assert changed == [handlers.replace("C", "CosmicRayTestingException")]
    cases = "match a:\n    case int() | str(): pass\n"
    assert [mutated(cases, mutant) for mutant in mutants_of(FILE, cases)] == [None]


def test_a_mutant_is_the_same_when_lines_are_added_elsewhere() -> None:
    shifted = TOY.replace('"""Toy."""', '"""Toy."""\n\nLIMIT = 3 if __debug__ else 4')
    before, after = ({m.key: m.line for m in mutants_of(FILE, source)} for source in (TOY, shifted))
    assert before.keys() <= after.keys()
    assert {after[key] - before[key] for key in before} == {2}


def test_the_sample_depends_on_the_seed_alone(root: Path) -> None:
    def sample(seed: int, number: int | None = 3) -> list[str]:
        return [mutant.key for mutant, *_ in sampled(root, all_mutants(root), number, seed)]

    assert sample(1) == sample(1) == sample(1, None)[:3]
    assert len({tuple(sample(seed)) for seed in range(10)}) > 1
    first = sample(1)
    (root / FILE).write_text("import os\n\n" + TOY, encoding="utf-8")
    assert sample(1) == first
    assert all_mutants(root, "service") == []


def test_what_a_test_notices_is_told_from_what_none_notices(root: Path) -> None:
    (root / "tests").mkdir()
    (root / "tests/test_toy.py").write_text(
        "from anytime.selection.toy import larger\n\n\ndef test_larger():\n    assert larger(2, 1) == 2\n",
        encoding="utf-8",
    )
    tests = ["tests/test_toy.py::test_larger", "tests/test_toy.py::test_gone[1]", "tests/test_gone.py::test_larger"]
    noticed, survivor = of("AddNot"), of("ReplaceComparisonOperator_Gt_GtE")
    with closing(Copy(root, packages="")) as copy:
        assert tried(copy, noticed, mutated(TOY, noticed) or "", [tests[:1]]) == ("noticed", tests[0], 1)
        assert tried(copy, survivor, mutated(TOY, survivor) or "", [tests[1:], tests[:1]]) == ("survived", "", 1)
        assert tried(copy, survivor, mutated(TOY, survivor) or "", []) == ("unreached", "", 0)
    assert (root / FILE).read_text(encoding="utf-8") == TOY


class Simulated(Copy):
    """A copy whose tests take a stated time."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        for name in ("quick", "slow", "hanging"):
            (tree / name).touch()

    def run(self, tests: Sequence[str], limit_s: float) -> tuple[int | None, str]:
        unchanged = (self.tree / FILE).read_text(encoding="utf-8") == TOY
        seconds = sum({"quick": 1, "slow": 50, "hanging": 1 if unchanged else 600}[name] for name in tests)
        return (0 if seconds <= limit_s else None), ""


@pytest.mark.parametrize(
    ("waves", "found"),
    [
        ([["quick"], ["hanging"]], ("noticed", "the limit", 2)),
        ([["hanging"], ["slow"]], ("noticed", "the limit", 1)),
        ([[], ["quick", "slow", "hanging"]], ("survived", "", 1)),  # too slow to judge a hang
        ([["quick"], ["slow"]], ("survived", "", 2)),
    ],
)
def test_exceeding_the_limit_is_noticed_if_the_tests_end_without_the_change(
    root: Path, waves: list[list[str]], found: tuple[str, str, int]
) -> None:
    mutant = of("AddNot")
    assert tried(Simulated(root), mutant, mutated(TOY, mutant) or "", waves) == found


def test_continuing_tries_only_what_has_no_result_and_again_retries_survivors(root: Path) -> None:
    outcomes = {"AddNot": "survived"}
    calls: list[str] = []

    def attempt(mutant: Mutant, source: str, changed: str) -> tuple[str, str, int]:
        calls.append(mutant.operator)
        return outcomes.get(mutant.operator, "noticed"), "", 1

    everything = list(sampled(root, all_mutants(root), None, 1))
    results = root / "results.jsonl"
    sweep(everything[:3], results, attempt)
    found = sweep(everything, results, attempt)
    assert sorted(calls) == sorted(mutant.operator for mutant, *_ in everything)
    assert len(found) == len(everything)
    calls.clear()
    outcomes.clear()
    assert all(result.outcome == "noticed" for result in sweep(everything, results, attempt, again=True))
    assert calls == ["AddNot"]
    calls.clear()
    edited = [(mutant, source + "\n", changed) for mutant, source, changed in everything]
    sweep(edited, results, attempt)
    assert len(calls) == len(everything)


def result(file: str, outcome: str, line: int = 1) -> Result:
    return Result(f"{file} | AddNot 0 | if a:", "", outcome, "", 1, 1.0, f"{file}:{line}", "- if a:  + if not a:")


def test_the_report_has_the_share_of_each_folder_and_the_survivors() -> None:
    selection, cli = "models/anytime/selection/criteria.py", "models/anytime/cli/train.py"
    lines = report(
        [
            result(cli, "survived"),
            *[result(selection, "noticed")] * 3,
            result(selection, "unreached"),
            result(cli, "noticed"),
        ]
    )
    assert [line.split() for line in lines[1:4]] == [
        ["models/anytime/cli", "2", "1", "50.0%", "35.4%"],
        ["models/anytime/selection", "4", "3", "75.0%", "21.7%"],
        ["all", "6", "4", "66.7%", "19.2%"],
    ]
    assert lines[5:] == [f"{selection}:1  - if a:  + if not a:  (unreached)", f"{cli}:1  - if a:  + if not a:"]


def test_a_change_is_shown_in_one_line() -> None:
    mutant = of("ReplaceOrWithAnd")
    shown = one_line(mutant, TOY, mutated(TOY, mutant) or "")
    assert shown == "- if a is None or not a > b:  + if a is None and not a > b:"


@pytest.fixture(name="reach")
def toy_map(root: Path) -> Reach:
    reach = Reach(root / "map")
    recorded = reach.tree / FILE
    recorded.parent.mkdir(parents=True)
    recorded.write_text(TOY, encoding="utf-8")
    data = CoverageData(basename=str(reach.data))
    lines = {"tests/a.py::slow": [5, 6], "tests/models/selection/b.py::quick (call)": [5, 7], "tests/a.py::failed": [7]}
    for context, reached in {"": [1, 4], **lines}.items():
        data.set_context(context)
        data.add_lines({str(recorded): reached})
    data.write()
    times = [("tests/a.py::slow", 30.0, "passed"), ("tests/models/selection/b.py::quick", 1.0, "passed")]
    times += [("tests/a.py::failed", 1.0, "failed"), ("tests/models/selection/c.py::other", 61.0, "passed")]
    with reach.times.open("w", encoding="utf-8") as file:
        for name, seconds, outcome in times:
            file.write(json.dumps([name, "setup", "passed", 0.0]) + "\n")
            file.write(json.dumps([name, "call", outcome, seconds]) + "\n")
    return reach


def test_the_tests_that_reach_a_line_are_found_after_an_edit(reach: Reach) -> None:
    slow, quick, other = "tests/a.py::slow", "tests/models/selection/b.py::quick", "tests/models/selection/c.py::other"
    assert reach.reaching(FILE, 6, TOY) == [{slow}]
    assert reach.reaching(FILE, 7, TOY) == [{quick}]
    assert reach.reaching(FILE, 9, "# new\n# lines\n" + TOY) == [{quick}]
    assert reach.reaching(FILE, 4, TOY) == [{slow, quick}]  # the head of the function: the tests of its body
    assert reach.reaching(FILE, 1, TOY) == [{quick, other}, {slow}]  # runs at import
    assert reach.reaching("models/anytime/selection/new.py", 1, TOY) == [{quick, other}]


def test_quick_tests_and_those_of_the_mirrored_folder_are_tried_first(reach: Reach) -> None:
    everything = set(reach.seconds)
    assert reach.chosen(FILE, [everything]) == [["tests/models/selection/b.py::quick"], ["tests/a.py::slow"]]
    assert 30.0 < BUDGET_S < 61.0
    assert mirrored("service/anytime_service/http/auth.py") == "tests/service/http/"
    assert mirrored("models/anytime/_linalg.py") == "tests/models/test_linalg"
    assert mirrored("models/anytime_reproduction/uai/bounds.py") == "tests/reproduction/"


def test_new_and_changed_tests_are_added_to_the_map(reach: Reach, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[list[str]] = []

    def simulated(self: Reach, tests: Sequence[str], jobs: int) -> None:
        runs.append(list(tests))
        part = CoverageData(basename=str(self.folder / "part.1"))
        part.set_context("tests/test_new.py::test_it")
        part.add_lines({str(self.tree / FILE): [7]})
        part.write()
        (self.folder / "part.2").write_bytes(b"of a killed process")
        with self.times.open("a", encoding="utf-8") as file:
            file.writelines(
                json.dumps(["tests/test_new.py::test_it", p, "passed", 0.1]) + "\n" for p in ("setup", "call")
            )
        self.combine()

    monkeypatch.setattr(Reach, "_run", simulated)
    (root / "tests").mkdir()
    (root / "tests/test_new.py").write_text("def test_it(): pass", encoding="utf-8")
    (root / "tests/problems.py").touch()
    reach.update(root, 1)
    reach.update(root, 1)
    assert runs == [["tests/test_new.py"]]
    assert reach.reaching(FILE, 7, TOY) == [{"tests/test_new.py::test_it", "tests/models/selection/b.py::quick"}]


def test_each_equivalent_mutant_exists_and_has_a_reason() -> None:
    files = {key.split(" | ")[0] for key in equivalent()}
    sources = {file: (ROOT / file).read_text(encoding="utf-8") for file in files}
    assert equivalent() <= {mutant.key for file, source in sources.items() for mutant in mutants_of(file, source)}
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    assert all(lines[i - 1] for i, line in enumerate(lines) if line in equivalent())
