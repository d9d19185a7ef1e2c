"""Regression on feature groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import validate_data

from anytime.arrays import Float
from anytime.errors import TrainingError
from anytime.estimators.base import Estimator, all_or_nothing, learns_from_streams, names_of
from anytime.manifest import FamilyName
from anytime.matrix_columns import check_no_times, ordered_columns, picked_columns
from anytime.probabilities import expected_responses
from anytime.targets import Target

__all__ = ["AnytimeRegressor"]


class AnytimeRegressor(MultiOutputMixin, RegressorMixin, Estimator):  # type: ignore[misc]
    """Regression on feature groups with costs, for every budget at once.

    Parameters
    ----------
    groups : the feature groups: path of a groups file, the same structure as a dict, or None for each column at cost 1.
        A DataFrame's columns are picked by name; an array's are x0, x1, ..., or stand in the order of the groups.
    family : "gaussian", which is "auto": least squares; or "poisson", for counts.
    method : "fr", "omp", "single", "no-whiten": the criterion (section 2 of the paper); "sparse": a Lasso path (5.2).
    cost_blind : forget the costs in selection; with "omp" this is G-OMP.
    doubling : take no step that costs more than all before it together (Algorithm 2).
    alpha : penalty alpha/2 |w|^2 beside the mean loss on standardised data, as `Ridge(alpha=n * alpha)`; or "cv".
    folds : number of folds for `alpha="cv"` and for errors; None is 5 where they are needed, else none.
    one_se : take the largest penalty within one standard error of the best.
    nested : let each fold learn its own order for the errors.
    epsilon : stop where no group left has a projection of the residual longer than this, in deviations of the response
        (Group-OMP); None takes every group.
    n_jobs : threads over the rows, as joblib counts them.
    random_state : seed of the folds.

    Attributes
    ----------
    sequence_ : chosen group of each step.  curve_ : cost, explained variance and error of each prefix.
    guarantee_ : what the theory promises.  model_ : the model as it is saved and served.
    n_features_in_, feature_names_in_ : as everywhere in scikit-learn.

    References
    ----------
    Hu, Grubb, Bagnell and Hebert, "Efficient Feature Group Sequencing for Anytime Linear Prediction", UAI 2016.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self.family == "poisson":
            tags.target_tags.positive_only, tags.target_tags.multi_output = True, False
        return tags

    @all_or_nothing
    def fit(self, X: Any, y: Any, sample_weight: Any = None, query: Any = None) -> Self:
        """Learn the sequence and the coefficients of every prefix.

        Parameters
        ----------
        X : (n, D) array, DataFrame or scipy sparse; NaN is imputed by the training mean.
        y : (n,) or (n, P) responses.
        sample_weight : (n,) weights of the rows.
        query : (n,) keys; rows of one key stay in one fold.
        """
        options = {"accept_sparse": "csr", "ensure_all_finite": "allow-nan", "ensure_min_samples": 2}
        check_no_times("y", y)
        names = names_of(y)
        self._read_groups()
        several = self._family() != "poisson"
        X, y = validate_data(
            self, picked_columns(X, self._given), y, multi_output=several, y_numeric=True, dtype="numeric", **options
        )
        self._settle_groups(X)
        self._flat = y.ndim == 1
        default = ("y",) if y.ndim == 1 else tuple(f"y{p}" for p in range(y.shape[1]))
        if self._family() == "poisson":
            if not self._flat:
                raise TrainingError(f"y has {y.shape[1]} columns; family poisson expects one count a row")
            if (y < 0).any():
                raise TrainingError(f"y is {y.min()} in some row; family poisson expects counts, 0 or more")
        self._target = Target("count" if self._family() == "poisson" else "regression", names or default)
        self._learn(ordered_columns(X, self._columns), y, sample_weight, query)
        return self

    @available_if(learns_from_streams)  # type: ignore[untyped-decorator]
    @all_or_nothing
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, *, decay: float = 1.0) -> Self:
        """Learn from more rows by least squares: as `fit` of all rows that came this way, old ones weighing less.

        What `fit` was given is no part of it: it begins anew, and so does the first `partial_fit` after it.

        Parameters
        ----------
        X, y, sample_weight : as in `fit`; at least two rows the first time.
        decay : what the rows before count beside these from now on, 0 to 1.
        """
        first = not self._streaming
        options = {"accept_sparse": "csr", "ensure_all_finite": "allow-nan", "ensure_min_samples": 2 if first else 1}
        check_no_times("y", y)
        names = names_of(y)
        if first:
            self._read_groups()
        X, y = validate_data(
            self,
            picked_columns(X, self._given),
            y,
            multi_output=True,
            y_numeric=True,
            dtype="numeric",
            reset=first,
            **options,
        )
        if first:
            self._settle_groups(X)
            self._flat = y.ndim == 1
            default = ("y",) if y.ndim == 1 else tuple(f"y{p}" for p in range(y.shape[1]))
            self._target = Target("regression", names or default)
        Y = y.reshape(len(y), -1)
        if Y.shape[1] != len(self._target.columns):
            raise TrainingError(f"y has {Y.shape[1]} columns; those before had {len(self._target.columns)}")
        self._learn_more(ordered_columns(X, self._columns), Y, sample_weight, decay)
        return self

    def predict(self, X: Any, budget: float | None = None) -> Float:
        """Predictions (n,) or (n, P) of the longest prefix within `budget`; all steps by default."""
        return self._shaped(self._scores(X, budget))

    def staged_predict(self, X: Any) -> Iterator[Float]:
        """Predictions of every prefix: steps + 1 arrays, the first being the base rate."""
        yield from map(self._shaped, self._staged_scores(X))

    def _shaped(self, scores: Float) -> Float:
        told = expected_responses(scores, self._family())
        return told[:, 0] if self._flat else told

    @property
    def _by_moments(self) -> bool:
        return self._family() == "gaussian"

    def _family(self) -> FamilyName:
        return "gaussian" if self.family == "auto" else self.family
