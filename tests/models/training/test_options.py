"""Every option of training is stated once: commands and estimators have it by its name, with its default."""

from __future__ import annotations

from dataclasses import MISSING, fields
from inspect import signature
from typing import Any

import pytest

from anytime import AnytimeClassifier
from anytime.cli.options import TrainPlan
from anytime.errors import in_python
from anytime.training.options import FOLDS, Options

DEFAULTS = {each.name: None if each.default is MISSING else each.default for each in fields(Options)}
COMMAND_LINE = {each.name: each.default for each in fields(TrainPlan)}
PYTHON = {name: each.default for name, each in signature(AnytimeClassifier).parameters.items()}

ELSEWHERE: dict[str, dict[str, Any]] = {
    "command line": {"types": ("text", "number"), "folds": FOLDS, "n_jobs": -1},
    "python": {
        **dict.fromkeys(("task", "first", "without", "types", "missing_target", "rows", "drop"), ()),
        "folds": ("cv",),
        "seed": ("random_state",),
        "family": "auto",
    },
}
"""Options that have other names there, or another default."""


def shown(value: Any) -> str | None:
    """Return a default as the command line may state it."""
    return None if value in (None, ()) else str(value)


@pytest.mark.parametrize("option", DEFAULTS)
@pytest.mark.parametrize(("place", "there"), [("command line", COMMAND_LINE), ("python", PYTHON)])
def test_an_option_has_its_name_and_its_default_wherever_it_is_stated(
    option: str, place: str, there: dict[str, Any]
) -> None:
    other = ELSEWHERE[place].get(option)
    if isinstance(other, tuple):
        assert option not in there
        assert set(other) <= set(there)
    else:
        assert shown(there[option]) == shown(DEFAULTS[option] if other is None else other)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("leave it out (--drop) unless", "leave it out of X unless"),
        ("values (--clamp 0.01), curves (--basis auto) or", 'values (clamp=0.01), curves (basis="auto") or'),
        ("limit the columns by --clamp outliers, or", 'limit the columns by clamp="outliers", or'),
        ("as long (--family binomial fits it)", 'as long (family="binomial" fits it)'),
        ("state --text a if they are classes", "state `types: {a: ...}` in the groups if they are classes"),
        (
            "state --text a, or choose --task regression",
            "state `types: {a: ...}` in the groups, or choose AnytimeRegressor",
        ),
        ("by cross-validation (--min-level-rows): 'a'", "by cross-validation (min_level_rows): 'a'"),
        ("train it again without --no-moments", "train it again without keep_moments=False"),
        ("folds is 0; --alpha cv and --nested need 2", 'folds is 0; alpha="cv" and nested=True need 2'),
        ("a row of dashes -- is text", "a row of dashes -- is text"),
    ],
)
def test_python_reads_parameters_where_the_command_line_has_flags(text: str, expected: str) -> None:
    assert in_python(text) == expected
