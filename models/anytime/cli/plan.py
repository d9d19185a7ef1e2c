"""The plan of a fit: the options that commands which read rows share, with their defaults and checks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import typer

from anytime.cli import options
from anytime.errors import TrainingError
from anytime.families import default_family, family_of
from anytime.features.bases import MIN_LEVEL_ROWS, Clamp, parsed_basis
from anytime.features.learning import checked_clamp, checked_level_rows
from anytime.groups import FeatureGroups
from anytime.selection import Rule
from anytime.training.options import BASIS, Options
from anytime.types import ColumnType


@dataclass(frozen=True, kw_only=True)
class Plan(options.RowOptions):
    """What the columns of a table mean, and the folds of its rows: the options of `moments`."""

    groups: options.MaybeGroups = None
    target: options.MaybeTarget = None
    task: options.TaskName = "auto"
    folds: options.Folds = 5
    query: options.Query = None
    drop: options.Drop = None
    basis: options.Basis = None
    text: options.TextColumns = None
    number: options.NumberColumns = None
    clamp: options.ClampAt = None
    min_level_rows: options.MinLevelRows = str(MIN_LEVEL_ROWS)
    seed: options.Seed = 0

    selects: ClassVar[bool] = False
    """Whether cross-validation selects what is "auto"."""

    def __post_init__(self) -> None:
        if self.basis is not None:
            parsed_basis(self.basis)
        if self.folds < 0 or self.folds == 1:
            raise TrainingError(f"--folds is {self.folds}; expected 2 or more, or 0 for none")
        training = self.training
        if self.folds == 0 and self.selects and (training.alpha == "cv" or training.nested):
            raise TrainingError("--folds is 0; --alpha cv and --nested need 2 or more")
        if not self.selects:
            options.checked_fixed(self.clamp, self.min_level_rows)
        _ = self.clamping, self.least_level_rows, self.types

    @property
    def common_basis(self) -> str | None:
        """Return the basis; without folds, "auto" is the default of each type."""
        return None if self.basis == "auto" and self.folds < 2 else self.basis

    @property
    def clamping(self) -> Clamp:
        """Return the clamp; without folds, "auto" is the default of each basis."""
        with options.naming_options():
            clamp = checked_clamp(options.number_or_word(self.clamp))
        return None if clamp == "auto" and self.folds < 2 else clamp

    @property
    def least_level_rows(self) -> int | Literal["auto"]:
        with options.naming_options():
            least = checked_level_rows(options.number_or_word(self.min_level_rows, int))
        return MIN_LEVEL_ROWS if least == "auto" and self.folds < 2 else least

    @property
    def types(self) -> dict[str, ColumnType]:
        return options.stated_types(self.text, self.number)

    @cached_property
    def training(self) -> Options:
        """How the groups are ordered and the prefixes fitted, as far as options state it."""
        return Options()

    @property
    def balances(self) -> bool:
        """Return whether all classes are equally heavy."""
        return False

    @property
    def opens_family(self) -> bool:
        """Return whether the family of classes depends on the table."""
        return False

    def changed(self, groups: FeatureGroups) -> FeatureGroups:
        """Return the groups to train."""
        return groups


@dataclass(frozen=True, kw_only=True)
class FitPlan(Plan):
    """The plan of a fit: cross-validation selects the penalty, the basis, the clamp and the levels by default."""

    selects = True

    basis: options.Basis = BASIS
    min_level_rows: options.MinLevelRows = "auto"
    alpha: options.Alpha = str(Options.alpha)


@dataclass(frozen=True, kw_only=True)
class TrainPlan(FitPlan):
    """The plan of `train`, which states everything."""

    rows: options.RowsOfCall = None
    family: options.FamilyOption = None
    method: options.MethodName = Rule().name
    cost_blind: Annotated[bool, typer.Option("--cost-blind", help="Ignore costs in selection.")] = Rule.cost_blind
    doubling: Annotated[
        bool, typer.Option("--doubling", help="Limit the cost of each step to the cost of all steps before it.")
    ] = Rule.doubling
    class_weight: Annotated[
        Literal["balanced"] | None,
        typer.Option(help="Weight the rows so that all classes are equally heavy in training (balanced)."),
    ] = None
    first: options.First = None
    without: options.Without = None
    one_se: Annotated[
        bool, typer.Option("--one-se", help="Select the largest penalty within one standard error of the best.")
    ] = Options.one_se
    nested: Annotated[
        bool,
        typer.Option("--nested", help="Learn the order again in each fold, to measure errors without selection bias."),
    ] = Options.nested
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Stop when no remaining group has a projection of the residual longer than this number >= 0."
        ),
    ] = Rule.epsilon
    pairs: options.Pairs = None

    @property
    def balances(self) -> bool:
        return self.class_weight is not None

    @property
    def opens_family(self) -> bool:
        return self.family is None

    @cached_property
    def training(self) -> Options:
        with options.naming_options():
            family = self.family or ("gaussian" if self.task == "auto" else default_family(self.task))
            return Options.of(
                self,
                method=options.checked_method(self.method),
                alpha=options.number_or_word(self.alpha),
                family=family_of(family).label,
                first=tuple(self.first or ()),
                without=tuple(self.without or ()),
                pairs=options.number_or_word(self.pairs, int),
                n_jobs=self.n_jobs,
            )

    def changed(self, groups: FeatureGroups) -> FeatureGroups:
        """Return the groups that remain, with costs for calls of --rows."""
        return self.training.rule.remaining(groups if self.rows is None else groups.for_rows(self.rows))
