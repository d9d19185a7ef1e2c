"""What a model file says about its arrays: the manifest, checked when a file is read and when one is written.

The document of the format is `models/anytime/FORMAT.md`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, model_validator

from anytime.groups import FeatureGroups
from anytime.types import FamilyName, Label, Link, Method, Task

__all__ = [
    "FORMAT",
    "Calibration",
    "Certificate",
    "Guarantee",
    "Manifest",
    "Provenance",
    "Redundant",
    "StepRecord",
    "Stopped",
]


class Calibration(BaseModel):
    """What calibration found; element 0 of the tuples (steps + 1,) is the empty prefix.

    `coverage` is as asked and `level` as the finite sample gives it: `rows` rows of the table `data`. On these rows,
    `sizes` are mean widths of the intervals, over rows and responses and in target units, or mean numbers of classes in
    the sets; `reliability` is the expected calibration error of the probabilities, None where there are none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    coverage: float = Field(gt=0, lt=1)
    level: float = Field(gt=0, lt=1)
    rows: int = Field(ge=1)
    data: str
    thresholds: tuple[NonNegativeFloat, ...] = Field(min_length=1)
    sizes: tuple[NonNegativeFloat, ...]
    reliability: tuple[Annotated[float, Field(ge=0, le=1)], ...] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Calibration:
        if self.level < self.coverage:
            raise ValueError(f"level is {self.level}; expected at least the coverage, {self.coverage}")
        for name, values in (("sizes", self.sizes), ("reliability", self.reliability)):
            if values is not None and len(values) != len(self.thresholds):
                raise ValueError(f"{len(values)} {name}; expected one for each of {len(self.thresholds)} thresholds")
        return self


FORMAT = 1
"""Number of the format that this library writes and reads."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class StepRecord(_Record):
    """One step of the sequence: what it adds, what it costs, how good the prefix that it completes is.

    `explained_variance` is F, at the penalty that ordered the groups, and includes the penalty. `r2` is the R² of the
    prefix's own coefficients on the training rows, without penalty: the mean over the responses of 1 - SSE/SST, or of a
    likelihood 1 - deviance/null deviance. It is None where a response is constant.
    """

    group: str
    adds: tuple[str, ...] = Field(min_length=1)
    cost: float = Field(ge=0)
    cumulative_cost: float = Field(ge=0)
    explained_variance: float
    r2: float | None
    cv_error: float | None
    alpha: float = Field(ge=0)
    deviance: float | None = None


class Guarantee(_Record):
    """What the theory promises about the sequence; the fields are None where it promises nothing, and `why` says why.

    `gamma` is the constant of Theorem 3.2: F(G_B) >= (1 - exp(-gamma B/K)) F(any set of cost K), at every B that a step
    completes. `doubling_gamma` is the ratio of Eq. 9 for Theorem 4.3 and `doubling_until` the number of steps up to
    which the set was doubling-capable, that is, up to which the 4B bound holds.
    """

    gamma: float | None = None
    doubling_gamma: float | None = None
    doubling_until: int | None = None
    why: str = ""


class Certificate(_Record):
    """How much of the best possible the prefixes reach on the training data; the base rate first, (steps + 1,) each.

    No set of the model's groups that costs what a prefix does, or less, has an F above its `bounds`, at the penalty
    that ordered the groups (`Manifest.alpha`); F of the prefix itself is `StepRecord.explained_variance`. Where a bound
    is `exact`, some set reaches it. `nodes`, for each prefix, and `seconds`, for all together, were the limits.
    """

    bounds: tuple[float, ...] = Field(min_length=1)
    exact: tuple[bool, ...]
    nodes: int = Field(ge=1)
    seconds: float | None = Field(default=None, ge=0)


class Redundant(_Record):
    """Columns that add nothing: constant in training, or linear combinations of columns that come earlier."""

    constant: tuple[str, ...] = ()
    collinear: tuple[str, ...] = ()


class Stopped(_Record):
    """The record of a stopping rule, and of the groups that the model leaves out.

    `rule` is what ended the sequence after `steps` steps; None where no rule did. `epsilon` is the requested precision,
    and `longest` the length of the longest remaining projection. `validation` names the table whose `errors` (of every
    prefix up to where `epsilon` stopped, the base rate first; None where not finite) chose the number of steps.
    `left_out` names the groups that the model leaves out, whether a rule excluded them or the user did (`--without`).
    A re-sequenced model keeps `left_out` alone, because no rule has seen its order.
    """

    rule: Literal["epsilon", "validation"] | None
    steps: int = Field(ge=1)
    epsilon: float | None = Field(default=None, gt=0)
    longest: float | None = Field(default=None, ge=0)
    validation: str | None = None
    errors: tuple[float | None, ...] | None = None
    left_out: tuple[str, ...] = ()


class Provenance(_Record):
    """Where a model comes from."""

    created: str
    library: str
    data: str
    rows: int
    weight: float
    imputed: tuple[str, ...] = ()
    folds: int | None = None
    seed: int | None = None
    resequenced_from: str | None = None


class Manifest(_Record):
    """Everything about a model that is not an array.

    `target` and `query` are the columns that it learned from; `responses` are what it fits: the targets themselves, or
    an indicator for each class (for two classes, of the second). `prior_error` is the cross-validated error of the base
    rate (prefix 0), as `StepRecord.cv_error` is of the others: mean squares by least squares, mean deviances in other
    families. `prior_deviance` and `StepRecord.deviance` are mean deviances on the training rows. `calibration` has a
    threshold for each prefix, the base rate first, where the model is calibrated. `groups` are those of the steps;
    where a rule stopped the sequence, `guarantee` is for sets of all groups that it chose from. `first` names the
    groups that the user placed before all others.
    """

    format: int = FORMAT
    name: str = Field(min_length=1)
    version: str = ""
    task: Task
    family: FamilyName = "gaussian"
    link: Link = "identity"
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
    certificate: Certificate | None = None
    provenance: Provenance
