"""A default that is estimated to cost too much, a likelihood or curves, is replaced, and that is said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from anytime import AnytimeClassifier, AnytimeRegressor, load
from anytime.cli.main import main
from anytime.features.expansion import Expansion
from anytime.features.learning import Sample, learned_groups
from anytime.groups import ColumnBasis, load_groups, singletons
from anytime.target import Target
from anytime.training import prices
from anytime.training.options import Options
from anytime.training.prices import MAX_PRICE, SHORT_S, Size, affordable, affordable_levels, family_of_classes

BINARY = Target("binary", ("y",), ("no", "yes"))
COLUMNS = [f"x{j}" for j in range(10)]
SIZE = Size(rows=2000, groups=10, responses=1, folds=5, penalties=8, candidates=8, terms=80, selected=30)


def expansion(basis: str) -> Expansion:
    rng = np.random.default_rng(0)
    sample = Sample({name: rng.normal(size=500) for name in COLUMNS})
    return Expansion.of(learned_groups(singletons(COLUMNS), sample, basis)).plain


@pytest.mark.parametrize(
    ("basis", "rows"), [("auto", 500), ("auto", 1_000_000), ("linear", 50_000), ("linear", 1_000_000)]
)
def test_the_estimated_time_decides(basis: str, rows: int) -> None:
    size = Size.of(BINARY, Options(), expansion(basis), rows, 5)
    price = size.likelihood / size.least_squares
    found = family_of_classes(BINARY, Options(), expansion(basis), rows, 5)
    long = price > MAX_PRICE and size.likelihood > SHORT_S
    assert found.name == ("gaussian" if long else "binomial")
    assert (f"about {price:.0f} times as long (--family binomial fits it)" in found.why) == long


@pytest.mark.parametrize(
    ("target", "options", "basis", "rows", "family"),
    [
        (BINARY, Options(), "linear", 50_000, "binomial"),
        (BINARY, Options(), "linear", 1_000_000, "gaussian"),
        (replace(BINARY, task="multiclass", classes=("a", "b", "c")), Options(), "auto", 500, "multinomial"),
        (BINARY, Options(alpha=0.0), "auto", 500, "gaussian"),  # which a likelihood may not fit
        (BINARY, Options(method="sparse"), "auto", 500, "gaussian"),
        *(
            (replace(BINARY, task="multiclass", classes=tuple(range(count))), Options(), "auto", 2000, family)
            for count, family in ((10, "multinomial"), (60, "gaussian"), (200, "gaussian"))
        ),
    ],
)
def test_the_family_follows_from_classes_options_and_size(
    target: Target, options: Options, basis: str, rows: int, family: str
) -> None:
    assert family_of_classes(target, options, expansion(basis), rows, 5).name == family


def test_the_size_counts_candidates_and_terms() -> None:
    found = Size.of(BINARY, Options(), expansion("auto"), 500, 5)
    assert (found.terms, found.selected, found.candidates, found.responses) == (80, 40, 4, 1)
    assert Size.of(BINARY, Options(alpha=1.0), expansion("linear"), 500, 5)[4:] == (1, 1, 10, 10)


def test_the_size_counts_the_most_levels_and_a_middle_number_of_hinges() -> None:
    levels = {"basis": "categories", "levels": list("abc"), "other": True, "level_rows": [40, 6, 3]}
    x = {
        "basis": "auto",
        "knots": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
        "levels": [],
        "range": [0.0, 8.0],
        "line": "own",
    }
    groups = load_groups({"groups": {"g": ["t", "x"]}, "bases": {"t": levels, "x": x}})
    found = Size.of(BINARY, Options(), Expansion.of(groups), 500, 5)
    assert (found.terms, found.selected, found.candidates) == (4 + 8, 4 + 4, 15)


@pytest.mark.parametrize(
    ("target", "rows", "count", "kept"),
    [
        (BINARY, 2_000, 200, True),
        (replace(BINARY, task="multiclass", classes=tuple("abcdef"), family_name="multinomial"), 2_000, 200, False),
        (replace(BINARY, task="multiclass", classes=tuple("abcdef"), family_name="multinomial"), 2_000, 0, True),
    ],
)
def test_levels_of_numbers_and_finer_curves_are_candidates_unless_a_likelihood_takes_long(
    target: Target, rows: int, count: int, kept: bool
) -> None:
    target = replace(target, family_name="binomial") if target is BINARY else target
    values = [float(v) for v in range(count)]
    x = {"basis": "auto", "knots": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], "levels": values}
    x |= {"points": values, "point_rows": [10] * count} if count else {}
    groups = load_groups({"groups": {c: [c] for c in COLUMNS}, "bases": {"x0": x}})
    found, said = affordable_levels(target, Options(), Expansion.of(groups), rows, 5)
    assert (found == groups) == kept
    assert Expansion.of(found).columns[0].basis.points == (tuple(values) if kept else ())
    assert [text.startswith("numbers have no levels next to their curves: 200 more") for text in said] == [True] * (
        not kept
    )
    finer = groups.with_bases({**groups.bases, "x1": ColumnBasis(basis="auto", knots=tuple(range(63)), levels=())})
    found, said = affordable_levels(target, Options(), Expansion.of(finer), rows, 5)
    first, second = (column.basis for column in Expansion.of(found).columns[:2])
    assert (found == finer) == (kept and second.choices[-1] == 63)
    assert kept or second.choices[-1] == 7, "finer curves are the first that are left out"
    assert first.points == (tuple(values) if kept else ())
    assert [text.split(":")[0] for text in said] == [
        *["numbers have no finer curves"] * (second.choices[-1] == 7),
        *["numbers have no levels next to their curves"] * (not kept),
    ]


@pytest.mark.parametrize("field", [name for name in Size._fields if name != "selected"])
def test_more_of_anything_takes_no_less_time(field: str) -> None:
    more = SIZE._replace(**{field: 2 * getattr(SIZE, field)})
    assert more.least_squares >= SIZE.least_squares
    assert more.likelihood > SIZE.likelihood > SIZE.least_squares


@pytest.mark.parametrize(
    ("columns", "rows", "basis", "lines"),
    [
        (100, 300, "auto", False),
        (300, 300, "auto", True),
        (300, 300, "hinge", False),
        (150, 20_000, "auto", False),
        (400, 2_000, "auto", True),
        (400, 200_000, "auto", False),
    ],
)
def test_columns_are_lines_where_curves_need_much_memory_also_compared_with_the_table(
    columns: int, rows: int, basis: str, lines: bool
) -> None:
    names = [f"x{j}" for j in range(columns)]
    values = np.random.default_rng(0).normal(size=20)
    groups = learned_groups(singletons(names), Sample(dict.fromkeys(names, values)), basis)
    found, said = affordable(groups, rows, 5)
    assert all((given.basis == "linear") == lines for given in found.bases.values())
    assert (len(said) == 1) == lines
    assert not lines or f"curves of {columns} columns would need about" in said[0]
    assert Expansion.of(found).plain.size == columns if lines else found is groups


@pytest.mark.parametrize(("memory", "knots"), [(None, 63), (3 * 10**8, 7), (10**6, 0)])
def test_curves_need_no_more_memory_than_there_is(
    memory: int | None, knots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prices, "memory_limit", lambda: memory)
    names = [f"x{j}" for j in range(20)]
    basis = {"basis": "auto", "knots": [*map(float, range(63))], "levels": []}
    groups = load_groups({"groups": {"g": names}, "bases": dict.fromkeys(names, basis)})
    found, said = affordable(groups, 200_000, 5)
    assert Expansion.of(found).plain.size == 20 * (1 + knots)
    assert len(said) == (knots == 0)


@pytest.mark.usefixtures("desk")
def test_both_doors_say_what_was_too_expensive(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("MAX_MEMORY", "TABLES", "MAX_PRICE", "SHORT_S"):
        monkeypatch.setattr(prices, name, 0)
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 3)), columns=list("abc"))
    y = np.array(["low", "high"])[(X["a"] > 0).astype(int)]
    X.assign(y=y).to_csv("t.csv", index=False)
    assert main(["train", "t.csv", "--target", "y", "--out", "m.safetensors"]) == 0
    model, shown = load("m.safetensors"), capsys.readouterr().out
    curves, classes = model.manifest.decisions
    assert curves.startswith("columns of numbers are lines: curves of 3 columns would need about 0.0 GB of memory")
    assert classes.startswith("classes are fitted by least squares on their indicators: a binomial likelihood takes")
    assert curves in shown
    assert classes in shown
    assert AnytimeClassifier().fit(X, y).model_.manifest.decisions == (curves, classes)
    assert AnytimeRegressor().fit(X, X["a"]).model_.manifest.decisions == (curves,)
    assert AnytimeClassifier(family="binomial", basis="hinge:2").fit(X, y).model_.manifest.decisions == ()
