"""Re-sequencing: reorder the groups of a model at other costs, by another rule, or without some groups.

Least squares reads no data, because the moments are in the model. Other families are fitted on rows again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from anytime.data.dataset import Dataset
from anytime.data.formats import Table
from anytime.data.survey import Survey, checked_dataset
from anytime.errors import TrainingError
from anytime.features.expansion import Expansion
from anytime.groups import FeatureGroups
from anytime.model.manifest import Manifest
from anytime.model.model import Model
from anytime.moments.moments import Moments
from anytime.selection.criteria import SelectionMethod
from anytime.selection.rule import without
from anytime.training.fit import fit, provenance
from anytime.training.likelihood import Observations
from anytime.training.options import Options
from anytime.training.table import TrainingTable, moments_of_groups
from anytime.types import Method


@dataclass(frozen=True)
class Changes:
    """What resequencing changes about a model; None keeps the model's own choice.

    The fields are those of `Rule`, but for alpha: a number, because a model has no folds.
    """

    method: Method | SelectionMethod | None = None
    alpha: float | None = None
    cost_blind: bool | None = None
    doubling: bool | None = None
    first: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()

    def options(self, old: Manifest) -> Options:
        """Return the options of the new fit."""
        first = tuple(name for name in old.first if name not in self.without)
        return Options(
            family=old.family,
            method=old.method if self.method is None else self.method,
            alpha=old.alpha if self.alpha is None else self.alpha,
            cost_blind=old.cost_blind if self.cost_blind is None else self.cost_blind,
            doubling=old.doubling if self.doubling is None else self.doubling,
            first=first if self.first is None else self.first,
            without=self.without,
        )


@dataclass(frozen=True, eq=False)
class Retrained:
    """A table that a likelihood is fitted on again: its name, moments and rows, and what it holds."""

    name: str
    moments: Moments
    observed: Observations
    found: Survey | None = None


def open_retrained(
    model: Model,
    table: Table,
    groups: FeatureGroups,
    *,
    weights: str | None = None,
    drop_missing: bool = True,
    n_jobs: int | None = None,
) -> Retrained | None:
    """Read the rows to fit some groups of a model on again; None for least squares, which needs none.

    Raises
    ------
    TableError
        The table lacks columns, or has values that do not fit them.
    """
    target = model.manifest.learned
    if target.family.least_squares:
        return None
    dataset, found = checked_dataset(Dataset(table, groups, target, None, weights, drop_missing))
    rows = TrainingTable(dataset, Options(family=target.family.label, folds=0, alpha=0.0), 1, found, jobs=n_jobs)
    observed = rows.observed()
    assert observed is not None  # noqa: S101  (not least squares)
    return Retrained(rows.name, rows.moments()[0], observed, found)


def resequence(
    model: Model,
    groups: FeatureGroups | None = None,
    *,
    name: str | None = None,
    data: Retrained | None = None,
    changes: Changes | None = None,
) -> Model:
    """Return the model with its groups in another order, under another name if one is given.

    All prefixes share one penalty, and none has a cross-validated error: both need folds, which a model does not
    store. For the same reason the new model has no record of a stopping rule; groups that were left out stay out. The
    record of selected terms and the warnings about the training table stay, too.

    Parameters
    ----------
    groups : FeatureGroups | None
        The groups at other costs; those that the model left out may be among them, and stay out.
    data : Retrained | None
        The rows, for families other than "gaussian".
    changes : Changes | None
        What else to change.

    Raises
    ------
    GroupsError
        The groups are not those of the model, or another group requires one of `changes.without`.
    TrainingError
        The model was saved without its moments, or is of a family that needs data and none were given.
    """
    old = model.manifest
    options = (changes or Changes()).options(old)
    priced = old.groups
    if groups is not None:
        why = " in the new file, which the model left out; train a new model"
        priced = priced.with_costs(without(groups, left_out(model, groups), why))
    remaining = options.rule.remaining(priced)
    target = old.learned
    if not target.family.least_squares:
        if data is None:
            raise TrainingError(f"model {model.name!r} has family {old.family}, which is fitted on rows; pass its data")
        table, fitted = data.name, fit([data.moments], remaining, options, data.observed)
    elif model.moments is None:
        raise TrainingError(f"model {model.name!r} was saved without its moments; train it again without --no-moments")
    else:
        table = old.provenance.data
        expansion = Expansion.of(remaining)
        moments = moments_of_groups(model.moments, model.terms, expansion.terms)
        fitted = fit([moments], remaining, options, expansion=expansion)
    fitted = replace(fitted, selected_terms=old.selected)
    origin = provenance(fitted, table).model_copy(update={"resequenced_from": model.version or old.name})
    out = () if old.stopped is None else old.stopped.left_out
    remarks = old.warnings[: old.table_warnings]
    return fitted.model(name or old.name, target, origin, query=old.query, left_out=out, remarks=remarks)


def left_out(model: Model, groups: FeatureGroups) -> list[str]:
    stopped = model.manifest.stopped
    return [] if stopped is None else [name for name in groups.names if name in set(stopped.left_out)]
