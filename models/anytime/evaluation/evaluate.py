"""Evaluation of every prefix of a model on a table: explained variance, error, and the task's own measure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from anytime.data.dataset import Dataset
from anytime.errors import TableError
from anytime.evaluation.calibrate import held_out, measured
from anytime.evaluation.classes import ClassMeasures, class_measures
from anytime.families import family_of
from anytime.groups import FeatureGroups
from anytime.model.curve import plateau_level, stopping_cost, timeliness
from anytime.model.model import Model
from anytime.model.prefixes import PrefixModels, explained_variances
from anytime.moments.moments import HeldOutMoments, Moments
from anytime.tabulated import R2, Series, Tabular, Tabulated
from anytime.training.model_selection import Validation
from anytime.types import FamilyName, Float

NDCG_AT = 5
"""Number of top-ranked documents of a query that count, as in the paper."""


@dataclass(frozen=True, eq=False)
class Evaluation(Tabular):
    """Every prefix of a model on one table; element 0 is the base rate.

    Attributes
    ----------
    rows : int
        Number of rows of the table that have a target.
    costs : Float
        (steps + 1,) cumulative cost.
    explained_variance : Float
        (steps + 1,) F on this table, without penalty: half the mean squared error of the model's base rate minus that
        of the prefix, in training standard deviations of the responses; for a likelihood, half the mean deviance
        instead.
    r2 : Float | None
        (steps + 1,) R² on this table: the mean over the responses of 1 - SSE/SST, where SST uses the table's own mean,
        as scikit-learn's `r2_score`; for a likelihood 1 - deviance/null deviance, where the null deviance is that of
        the table's own base rate, as `d2_log_loss_score` and `d2_tweedie_score`. None if SST (of any response) or the
        null deviance is 0.
    mse : Float
        (steps + 1,) mean squared error in target units, averaged over the responses; for classes, of probabilities.
    deviance : Float | None
        (steps + 1,) mean deviance if a likelihood was fitted, else None.
    classes : ClassMeasures | None
        Accuracy, balanced accuracy, AUC, log loss and Brier score for classification, else None.
    ndcg : Float | None
        (steps + 1,) NDCG@5 averaged over the queries of two rows or more, if there are queries, else None; it ignores
        weights of rows. `ndcg_queries` has the number of these queries, and of those among them without a relevant row,
        which count as 0.
    coverage : Float | None
        (steps + 1,) share of the rows that intervals or sets cover, if the model is calibrated, else None.
    size : Float | None
        (steps + 1,) mean width of the intervals, or number of classes in the sets, if calibrated, else None.
    stop, timeliness, timeliness_step : float
        The cost at which the model reaches its plateau in training, and the area under this table's F up to there.
    unweighted : str | None
        A remark if training weighted its rows, and this table does not; else None.

    If rows have weights, means and shares over rows are weighted.
    """

    rows: int
    costs: Float
    explained_variance: Float
    r2: Float | None
    mse: Float
    deviance: Float | None
    classes: ClassMeasures | None
    ndcg: Float | None
    ndcg_queries: tuple[int, int] | None
    coverage: Float | None
    size: Float | None
    stop: float
    timeliness: float
    timeliness_step: float
    unweighted: str | None

    @property
    def accuracy(self) -> Float | None:
        """Return the accuracy of each prefix (steps + 1,) for classification, else None."""
        return None if self.classes is None else self.classes.accuracy

    @property
    def measures(self) -> dict[str, Float]:
        """Return the measures of each prefix (steps + 1,) by name: those that the task and the model have."""
        # The columns after prefix, cost and F.
        return {str(each.name): each.values for each in self.table.columns[3 if self.r2 is not None else 4 :]}

    @property
    def table(self) -> Tabulated:
        """Return cost, F and measures as a table with a row for each prefix, with notes on accuracy and NDCG@5."""
        classes, steps = self.classes, len(self.costs)
        notes = [self.unweighted, None if classes is None else classes.note]
        if self.ndcg_queries is not None:
            queries, without = self.ndcg_queries
            notes.append(
                f"NDCG@5: the mean of {queries} queries of 2 rows or more; {without} without a relevant row count as 0"
            )
        return Tabulated.of(
            Series("prefix", range(steps)),
            Series("cost", self.costs),
            Series("explained variance", self.explained_variance, "explained_variance"),
            Series("test r2", [None] * steps if self.r2 is None else self.r2, "r2", R2),
            Series("test mse" if self.deviance is None else None, self.mse, "mse"),
            Series("test deviance", self.deviance, "deviance"),
            Series("accuracy", self.accuracy),
            Series("balanced", classes and classes.balanced_accuracy, "balanced_accuracy"),
            Series("AUC", classes and classes.auc, "auc"),
            Series("log loss", classes and classes.log_loss, "log_loss"),
            Series("Brier", classes and classes.brier, "brier"),
            Series("NDCG@5", self.ndcg, "ndcg@5"),
            Series("coverage", self.coverage),
            Series("width" if classes is None else "set size", self.size, "size"),
            notes=filter(None, notes),
        )


def evaluate(
    model: Model, table: Any, *, weights: str | None = None, drop_missing: bool = False, n_jobs: int | None = None
) -> Evaluation:
    """Evaluate every prefix on a table; the model contains the names of its columns.

    Parameters
    ----------
    table
        Rows with the target, of any type that `LoadedModel` accepts.
    weights : str | None
        Column of row weights, or None for equal weights.
    drop_missing : bool
        Whether to leave out rows without a target (an error otherwise).
    n_jobs : int | None
        Threads that read rows, as in joblib.

    Raises
    ------
    TableError, GroupsError
        The table lacks a column, has a value that the model does not accept, or no row with a weight above 0.
    ValuesError
        `model` is not a `Model`.
    """
    return evaluated(model, held_out(model, table, weights=weights, drop_missing=drop_missing)[0], n_jobs=n_jobs)


def evaluated(model: Model, dataset: Dataset, *, n_jobs: int | None = None) -> Evaluation:
    manifest, query = model.manifest, dataset.query
    deviance = None
    if family_of(manifest.family).least_squares:
        moments = table_moments(dataset, n_jobs=n_jobs)
        explained, mse, r2, risk = held_out_curve(model.prefixes, moments)
        rows = moments.rows
    else:
        rows, deviance, mse, null = _likelihood_curve(model.prefixes, manifest.family, dataset)
        explained, risk = 0.5 * (deviance[0] - deviance), 0.5 * float(deviance[0])
        r2 = None if null is None else 1.0 - deviance / null
    classes = None if manifest.classes is None else class_measures(model.prefixes, manifest.learned, dataset)
    if classes is not None:
        mse = classes.brier / len(manifest.responses)
    ndcg, queries = (None, None) if query is None or manifest.classes is not None else _ndcg(model, dataset)
    calibration = manifest.calibration
    coverage, size = (None, None) if calibration is None else measured(model, dataset, calibration.thresholds)
    training = np.array([0.0, *(step.explained_variance for step in manifest.steps)])
    stop = stopping_cost(model.costs, training, plateau_level(model.costs, training))
    weighted = manifest.provenance.weights if dataset.weights is None else None
    with np.errstate(invalid="ignore"):  # a deviance may be infinite
        area = timeliness(model.costs, explained, stop, risk)
        area_step = timeliness(model.costs, explained, stop, risk, "step")
    return Evaluation(
        rows=rows,
        costs=model.costs,
        explained_variance=explained,
        r2=r2,
        mse=mse,
        deviance=deviance,
        classes=classes,
        ndcg=ndcg,
        ndcg_queries=queries,
        coverage=coverage,
        size=size,
        stop=stop,
        timeliness=area,
        timeliness_step=area_step,
        unweighted=weighted
        and f"training weighted its rows by {weighted!r}, and those of {Path(dataset.table.name).name} count equally: "
        "state their column of weights, if they have one",
    )


def table_moments(dataset: Dataset, *, n_jobs: int | None = None) -> Moments:
    """Return the moments of a checked dataset for evaluation; raise TableError if no row has a weight above 0."""
    moments = Moments.merged(dataset.moments(n_jobs=n_jobs))
    _check_weight(dataset, moments.weight)
    return moments


def held_out_curve(models: PrefixModels, moments: Moments) -> tuple[Float, Float, Float | None, float]:
    """Return F, mean squared error and R² of each prefix (steps + 1,), and R(empty), on a table's moments.

    F uses the training means and scales and no penalty, and is summed over the responses. R² is None if a response is
    constant.
    """
    if models.expansion is not None:
        moments = moments.with_indicator_features(models.expansion.indicated)
    held = HeldOutMoments.of(moments, models.mean, models.scale, models.intercept, models.response_scale)
    fitted = explained_variances(models, held)
    mse = np.mean((held.yy - 2 * fitted) * np.square(models.response_scale), axis=1)
    return fitted.sum(axis=1), np.maximum(mse, 0.0), held.r2(fitted), 0.5 * float(held.yy.sum())


def validation(dataset: Dataset, groups: FeatureGroups, family: FamilyName, *, n_jobs: int | None = None) -> Validation:
    """Return a stopping rule: the error of every prefix on a checked dataset, with the groups that training uses."""
    name, dataset = Path(dataset.table.name).name, replace(dataset, groups=groups)
    if not family_of(family).least_squares:
        return Validation(name, lambda models: _likelihood_curve(models, family, dataset)[1])

    def errors(models: PrefixModels) -> Float:
        # The bases of the fit: it has resolved "auto".
        used = groups if models.expansion is None else models.expansion.groups
        return held_out_curve(models, table_moments(replace(dataset, groups=used), n_jobs=n_jobs))[1]

    return Validation(name, errors)


def _likelihood_curve(
    models: PrefixModels, name: FamilyName, dataset: Dataset
) -> tuple[int, Float, Float, float | None]:
    """Return the number of rows, mean deviance and squared error of each prefix (steps + 1,), and null deviance.

    The null deviance is that of the table's own mean responses, None if they are constant. The loss is linear in the
    responses, so its mean at their base rate is the saturated loss of their mean.
    """
    family = family_of(name)
    deviance, squares, count = np.zeros(models.steps + 1), np.zeros(models.steps + 1), 0
    weight, saturated, mean = 0.0, 0.0, np.zeros(len(models.intercept))
    low, high = np.full(len(mean), np.inf), np.full(len(mean), -np.inf)
    for rows in dataset.rows_for(models.scores):
        count += len(rows.Y)
        used = rows.row_weights > 0  # a deviance may be infinite, and infinity times a weight of 0 is NaN
        w, Y = rows.row_weights[used], rows.Y[used]
        weight += float(w.sum())
        saturated += float(w @ family.saturated(Y))
        mean += w @ Y
        low = np.minimum(low, Y.min(axis=0, initial=np.inf))
        high = np.maximum(high, Y.max(axis=0, initial=-np.inf))
        for prefix, scores in enumerate(models.predict_all(rows.X[used])):
            deviance[prefix] += w @ family.deviances(scores, Y)
            with np.errstate(over="ignore"):  # a prediction may be extreme on some row
                squares[prefix] += w @ np.square(family.mean(scores) - Y).mean(axis=1)
    _check_weight(dataset, weight)
    least = float(family.saturated(mean[np.newaxis] / weight)[0])
    null = 2 * (least - saturated / weight) if (low < high).any() else None
    return count, deviance / weight, squares / weight, null


def _check_weight(dataset: Dataset, weight: float) -> None:
    if not weight > 0:
        raise TableError(
            f"{dataset.table.name}: every weight in column {dataset.weights!r} is 0; expected some above 0"
        )


def _ndcg(model: Model, dataset: Dataset) -> tuple[Float | None, tuple[int, int] | None]:
    parts = [
        (model.prefixes.predict_each(rows.X)[:, :, 0].T.copy(), rows.Y[:, 0], np.asarray(rows.query))
        for rows in dataset.rows_for(model.prefixes.scores)
    ]
    scores, truth, query = (np.concatenate(each) for each in zip(*parts, strict=True))
    found = ndcg(truth, scores, query)
    if found is None:
        return None, None
    _, codes, counts = np.unique(query, return_inverse=True, return_counts=True)
    relevant = np.bincount(codes, weights=truth)
    return found, (int((counts > 1).sum()), int(((counts > 1) & (relevant == 0)).sum()))


def ndcg(truth: Float, scores: Float, keys: np.typing.NDArray[np.generic]) -> Float | None:
    """Return the mean NDCG@5 over queries, for each column of the scores, by scikit-learn's `ndcg_score`.

    Ties share their gain. A query of one row has no order and is left out; a query without a relevant row counts 0. The
    result is None if a relevance is negative or no query has two rows.

    Parameters
    ----------
    truth : Float
        (n,) relevances.
    scores : Float
        (n, models).
    keys : np.typing.NDArray[np.generic]
        (n,) the query of each row.
    """
    from sklearn.metrics import ndcg_score  # noqa: PLC0415

    _, codes, counts = np.unique(keys, return_inverse=True, return_counts=True)
    if (truth < 0).any() or counts.max() < 2:
        return None
    rows = np.argsort(codes, kind="stable")
    starts = np.cumsum(counts) - counts
    total = np.zeros(scores.shape[1])
    for size in np.unique(counts[counts > 1]):
        members = rows[starts[counts == size, np.newaxis] + np.arange(size)]  # (queries of this size, size)
        for model in range(scores.shape[1]):
            total[model] += ndcg_score(truth[members], scores[members, model], k=NDCG_AT) * len(members)
    return total / int((counts > 1).sum())
