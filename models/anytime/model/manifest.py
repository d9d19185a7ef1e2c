"""The manifest of a model file: a description of its arrays, checked when a file is read and when it is written.

`models/FORMAT.md` documents the format.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeFloat, model_validator

from anytime.families import label_of
from anytime.groups import FeatureGroups
from anytime.tabulated import Series, Tabulated
from anytime.target import Target
from anytime.types import FamilyName, Label, Method, Task

FORMAT = 1
"""Format number that this library writes and reads."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class StepRecord(_Record):
    """One step of the sequence: the groups that it adds, its cost, and the quality of the prefix that it completes.

    `pairs` are the pairs of columns whose products join the model with this step, because both columns are there.
    `explained_variance` is F, at the penalty that ordered the groups, and includes the penalty. `r2` is the R² of the
    prefix's own coefficients on the training rows, without penalty: the mean over the responses of 1 - SSE/SST, or 1 -
    deviance/null deviance for a likelihood. It is None where a response is constant. `best` is the prefix that answers
    instead of this one under the policy "best": of those up to this one, that with the least cross-validated error,
    where this one is worse by one standard error or more; otherwise this one. It is None without folds.
    """

    group: str
    adds: tuple[str, ...] = Field(min_length=1)
    pairs: tuple[tuple[str, str], ...] = Field(default=(), exclude_if=operator.not_)
    cost: float = Field(ge=0)
    cumulative_cost: float = Field(ge=0)
    explained_variance: float
    r2: float | None
    cv_error: float | None
    best: int | None = Field(default=None, ge=0, exclude_if=partial(operator.is_, None))
    alpha: float = Field(ge=0)
    deviance: float | None = None


class Guarantee(_Record):
    """Theoretical guarantees of the sequence; a field is None where there is no guarantee, and `why` gives the reason.

    `gamma` is the constant of Theorem 3.2: F(G_B) >= (1 - exp(-gamma B/K)) F(any set of cost K), at every B that a step
    completes. `doubling_gamma` is the ratio of Eq. 9 for Theorem 4.3. `doubling_until` is the number of steps up to
    which the set was doubling-capable, that is, up to which the 4B bound is valid.
    """

    gamma: float | None = None
    doubling_gamma: float | None = None
    doubling_until: int | None = None
    why: str = ""


class Calibration(_Record):
    """Result of a calibration; element 0 of the tuples (steps + 1,) is the empty prefix.

    `coverage` is the requested coverage and `level` its finite-sample value for the `rows` rows of the table `data`. On
    these rows, `sizes` are mean widths of the intervals, over rows and responses and in target units, or mean numbers
    of classes in the sets. `reliability` is the expected calibration error of the probabilities, None without
    probabilities.
    """

    coverage: float = Field(gt=0, lt=1)
    level: float = Field(gt=0, lt=1)
    rows: int = Field(ge=1)
    data: str
    thresholds: tuple[NonNegativeFloat, ...] = Field(min_length=1)
    sizes: tuple[NonNegativeFloat, ...]
    reliability: tuple[Annotated[float, Field(ge=0, le=1)], ...] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.level < self.coverage:
            raise ValueError(f"level is {self.level}; expected at least the coverage, {self.coverage}")
        for name, values in (("sizes", self.sizes), ("reliability", self.reliability)):
            if values is not None and len(values) != len(self.thresholds):
                raise ValueError(f"{len(values)} {name}; expected one for each of {len(self.thresholds)} thresholds")
        return self


class Certificate(_Record):
    """Bounds on the best possible F at the cost of each prefix, on the training data: (steps + 1,), base rate first.

    At the penalty that ordered the groups (`Manifest.alpha`), every set of the model's groups that costs at most what a
    prefix costs has an F of at most its bound in `bounds`. `StepRecord.explained_variance` is the F of the prefix
    itself. A bound is `exact` where some set reaches it. `nodes` (per prefix) and `seconds` (in total) were the search
    limits.
    """

    bounds: tuple[float, ...] = Field(min_length=1)
    exact: tuple[bool, ...]
    nodes: int = Field(ge=1)
    seconds: float | None = Field(default=None, ge=0)

    def _repr_html_(self) -> str:
        return Tabulated.of(
            Series("prefix", range(len(self.bounds))),
            Series("largest F of any set of this cost", self.bounds),
            Series("exact", ["yes" if each else "no" for each in self.exact]),
        )._repr_html_()


class Redundant(_Record):
    """Columns that add nothing: constant in training, or linear combinations of earlier columns."""

    constant: tuple[str, ...] = ()
    collinear: tuple[str, ...] = ()


class Candidate(_Record):
    """Terms that cross-validation selected from, and the mean of their cross-validated error over the cost.

    All groups together count in that mean as long as a step of mean cost.

    `hinges` is the number of quantiles with a hinge, `clamp` is "off", "range" (that of the training rows) or
    "outliers", and `min_level_rows` the rows that a level of text needs; None where that was not selected. `levels` are
    those that a level of numbers next to their curve needs, 0 without such levels. The error is that of least squares
    at a few penalties.
    """

    hinges: int | None = None
    clamp: Literal["off", "range", "outliers"] | None = None
    levels: int = Field(default=0, exclude_if=operator.not_)
    min_level_rows: int | None = None
    error: float


class Selected(Candidate):
    """The terms that cross-validation selected, and all candidates."""

    candidates: tuple[Candidate, ...]


class Stopped(_Record):
    """The record of a stopping rule, and of the groups that the model leaves out.

    `rule` is the rule that ended the sequence after `steps` steps, or None. `epsilon` is the requested precision, and
    `longest` the length of the longest remaining projection. `validation` names the table whose `errors` chose the
    number of steps: one for every prefix up to where `epsilon` stopped, the base rate first, None where not finite.
    `left_out` names the groups that the model leaves out, whether a rule excluded them or the user did (`--without`). A
    re-sequenced model keeps `left_out` only, because no rule has evaluated its order.
    """

    rule: Literal["epsilon", "validation"] | None
    steps: int = Field(ge=1)
    epsilon: float | None = Field(default=None, gt=0)
    longest: float | None = Field(default=None, ge=0)
    validation: str | None = None
    errors: tuple[float | None, ...] | None = None
    left_out: tuple[str, ...] = ()


class Provenance(_Record):
    """Origin of a model: creation time, library version, data and options.

    `nested` is whether the order was learned again in each fold for the cross-validated errors. `weights` is the column
    of the weights of rows, if they had some, and `class_weights` multiplied those of the rows of each class. `columns`
    are those of the array that an estimator was fitted to, in order; empty for a table with names.
    """

    created: str
    library: str
    data: str
    rows: int
    weight: float
    imputed: tuple[str, ...] = ()
    folds: int | None = None
    seed: int | None = None
    nested: bool = Field(default=False, exclude_if=operator.not_)
    resequenced_from: str | None = None
    weights: str | None = Field(default=None, exclude_if=operator.not_)
    class_weights: tuple[float, ...] | None = Field(default=None, exclude_if=operator.not_)
    columns: tuple[str, ...] = Field(default=(), exclude_if=operator.not_)


class Manifest(_Record):
    """Everything about a model except its arrays.

    `target` and `query` are the columns that it learned from. `responses` are the fitted responses: the targets
    themselves, or an indicator for each class (for two classes, of the second). `prior_error` is the cross-validated
    error of the base rate (prefix 0), as `StepRecord.cv_error` is of the other prefixes: mean squares for least
    squares, mean deviances in other families. `prior_deviance` and `StepRecord.deviance` are mean deviances on the
    training rows. `calibration` has a threshold for each prefix, the base rate first, if the model is calibrated.
    `groups` are those of the steps; where a rule stopped the sequence, `guarantee` covers sets of all groups that it
    chose from. `selected` are the terms, where cross-validation selected them. `first` names the groups that the user
    placed before all others. `warnings` of training are sentences for the reader, each with a remedy; the
    first `table_warnings` of them are about the table, which another order of the groups does not change. `decisions`
    are sentences on what training decided about the terms by itself.
    """

    format: int = FORMAT
    name: str = Field(min_length=1)
    version: str = ""
    task: Task
    family: Annotated[FamilyName, AfterValidator(label_of)] = "gaussian"
    link: str = "identity"
    target: tuple[str, ...] = Field(min_length=1)
    query: str | None = None
    responses: tuple[str, ...] = Field(min_length=1)
    classes: tuple[Label, ...] | None = None
    groups: FeatureGroups
    method: Method
    cost_blind: bool = False
    doubling: bool = False
    first: tuple[str, ...] = ()
    alpha: float = Field(ge=0)
    prior_error: float | None = None
    prior_deviance: float | None = None
    steps: tuple[StepRecord, ...] = Field(min_length=1)
    redundant: Redundant = Redundant()
    guarantee: Guarantee = Guarantee()
    calibration: Calibration | None = None
    stopped: Stopped | None = None
    selected: Selected | None = Field(default=None, exclude_if=operator.not_)
    certificate: Certificate | None = None
    warnings: tuple[str, ...] = Field(default=(), exclude_if=operator.not_)
    table_warnings: int = Field(default=0, ge=0, exclude_if=operator.not_)
    decisions: tuple[str, ...] = Field(default=(), exclude_if=operator.not_)
    provenance: Provenance

    @property
    def learned(self) -> Target:
        """Return the target that the model learned from."""
        return Target(self.task, self.target, self.classes, self.family)


def best_prefixes(steps: Iterable[StepRecord]) -> tuple[int, ...] | None:
    """Return, for each prefix, the one that answers instead under the policy "best", (steps + 1,); None without it."""
    best = [step.best for step in steps]
    known = tuple(prefix for prefix in best if prefix is not None)
    return (0, *known) if len(known) == len(best) else None


def steps_with_products(manifest: Manifest, terms: FeatureGroups) -> list[tuple[int, ...]]:
    """Return the groups of each step in the order of their columns, given the groups of terms and products."""
    found, selected = [], np.zeros(len(terms), dtype=np.bool_)
    for step in manifest.steps:
        found.append(terms.step(map(manifest.groups.positions.__getitem__, step.adds), selected))
        selected[list(found[-1])] = True
    return found
