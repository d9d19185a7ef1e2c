"""Training: from a table, what its columns are for, and options, to a model.

The command line and the estimators both train by `open_training` and `train`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from anytime.groups import FeatureGroups
from anytime.model.model import Model
from anytime.target import Target
from anytime.training.fit import Fit, fit_clamped, provenance, warnings_of
from anytime.training.model_selection import Validation
from anytime.training.pairs import check_folds, fit_with_pairs
from anytime.training.table import TrainingMoments, TrainingTable
from anytime.types import FamilyName


@dataclass(frozen=True, eq=False)
class Trained:
    """What was learned, and from what.

    Attributes
    ----------
    fit : Fit
        The sequence with its prefix models.
    source : TrainingTable | TrainingMoments
        The rows, without unusable columns.
    data : str
        The name of the rows in a model; `target` and `query` are their columns, and `seed` is that of their folds.
    """

    fit: Fit
    source: TrainingTable | TrainingMoments
    data: str
    target: Target
    query: str | None
    seed: int | None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what users should know of the fit; `source.warnings` are about the table."""
        return warnings_of(self.fit, self.target)

    def model(self, name: str, *, keep_moments: bool = True) -> Model:
        """Return the model of this name."""
        source = self.source
        folds = source.folds if source.folds > 1 else None
        return self.fit.model(
            name,
            self.target,
            provenance(self.fit, self.data, folds=folds, seed=self.seed),
            query=self.query,
            keep_moments=keep_moments,
            left_out=source.emptied,
            remarks=source.warnings,
            decisions=source.decisions,
        )


def train(
    source: TrainingTable | TrainingMoments,
    *,
    validation: Callable[[FeatureGroups, FamilyName], Validation] | None = None,
) -> Trained:
    """Learn the sequence and the coefficients of every prefix.

    Parameters
    ----------
    validation : Callable[[FeatureGroups, FamilyName], Validation] | None
        Makes, of the usable groups and the family, rows that choose how many steps the model keeps.

    Raises
    ------
    TableError
        A value is invalid.
    TrainingError
        The rows or the options admit no fit.
    """
    options = source.options
    check_folds(options, source.folds)
    source, clamped = source.read()
    source.observer.warnings = source.warnings
    with source.observer.ordering(len(source.groups)):
        held = None if validation is None else validation(source.groups, source.target.family.label)
        fitted = fit_clamped(clamped, options, source.observed(), validation=held)
    if options.pairs is not None and isinstance(source, TrainingTable):
        source.observer.screening()
        fitted = fit_with_pairs(fitted, source, validation=held)
    return Trained(fitted, source, source.name, source.target, source.query, options.seed)
