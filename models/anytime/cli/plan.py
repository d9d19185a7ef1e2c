"""The plan of a fit: the options that commands which read rows share, with their defaults and checks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import typer

from anytime.cli import options
from anytime.features.bases import MIN_LEVEL_ROWS
from anytime.training.options import FOLDS, Options


@dataclass(frozen=True, kw_only=True)
class Plan(options.RowOptions):
    """What the columns of a table mean, and the folds of its rows: the options of `moments`."""

    groups: options.MaybeGroups = None
    target: options.MaybeTarget = None
    task: options.TaskName = Options.task
    folds: options.Folds = FOLDS
    query: options.Query = None
    drop: options.Drop = None
    basis: options.Basis = None
    text: options.TextColumns = None
    number: options.NumberColumns = None
    clamp: options.ClampAt = None
    min_level_rows: options.MinLevelRows = str(MIN_LEVEL_ROWS)
    seed: options.Seed = Options.seed

    def __post_init__(self) -> None:
        _ = self.training

    @property
    def _stated(self) -> dict[str, Any]:
        """Return the options that this plan states."""
        return {
            "task": self.task,
            "folds": self.folds,
            "drop": tuple(self.drop or ()),
            "basis": self.basis,
            "clamp": options.number_or_word(self.clamp),
            "min_level_rows": options.number_or_word(self.min_level_rows, int),
            "types": options.stated_types(self.text, self.number),
            "missing_target": self.missing_target,
            "seed": self.seed,
            "n_jobs": self.n_jobs,
        }

    @cached_property
    def training(self) -> Options:
        """Return all options of training."""
        options.checked_fixed(self.clamp, self.min_level_rows)
        with options.naming_options():
            return Options(**self._stated, alpha=0.0)  # moments do not depend on it


@dataclass(frozen=True, kw_only=True)
class FitPlan(Plan):
    """The plan of a fit: cross-validation selects the penalty, the basis, the clamp and the levels by default."""

    basis: options.Basis = Options.basis
    min_level_rows: options.MinLevelRows = str(Options.min_level_rows)
    alpha: options.Alpha = str(Options.alpha)

    @property
    def _stated(self) -> dict[str, Any]:
        return {**super()._stated, "alpha": options.number_or_word(self.alpha)}


@dataclass(frozen=True, kw_only=True)
class TrainPlan(FitPlan):
    """The plan of `train`, which states everything."""

    rows: options.RowsOfCall = Options.rows
    family: options.FamilyOption = Options.family
    method: options.MethodName = str(Options.method)
    cost_blind: Annotated[
        bool, typer.Option("--cost-blind", help="Ignore costs in selection.", rich_help_panel=options.RARE)
    ] = Options.cost_blind
    doubling: Annotated[
        bool,
        typer.Option(
            "--doubling",
            help="Limit the cost of each step to the cost of all steps before it.",
            rich_help_panel=options.RARE,
        ),
    ] = Options.doubling
    class_weight: Annotated[
        Literal["balanced"] | None,
        typer.Option(help="Weight the rows so that all classes are equally heavy in training (balanced)."),
    ] = None
    first: options.First = None
    without: options.Without = None
    one_se: Annotated[
        bool,
        typer.Option(
            "--one-se",
            help="Select the largest penalty within one standard error of the best.",
            rich_help_panel=options.RARE,
        ),
    ] = Options.one_se
    nested: Annotated[
        bool,
        typer.Option(
            "--nested",
            help="Learn the order again in each fold, to measure errors without selection bias.",
            rich_help_panel=options.RARE,
        ),
    ] = Options.nested
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Stop when no remaining group has a projection of the residual longer than this number >= 0.",
            rich_help_panel=options.RARE,
        ),
    ] = Options.epsilon
    pairs: options.Pairs = None

    @cached_property
    def training(self) -> Options:
        with options.naming_options():
            return Options(
                **self._stated,
                rows=self.rows,
                family=self.family,
                method=options.checked_method(self.method),
                cost_blind=self.cost_blind,
                doubling=self.doubling,
                class_weight=self.class_weight,
                first=tuple(self.first or ()),
                without=tuple(self.without or ()),
                one_se=self.one_se,
                nested=self.nested,
                epsilon=self.epsilon,
                pairs=options.number_or_word(self.pairs, int),
            )
