"""scikit-learn estimators: the trainer behind `fit`, every prefix behind `predict`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from anytime.accumulate import Block, fold_moments_of
from anytime.arrays import Float, Index
from anytime.curve import Curve
from anytime.errors import GroupsError, TrainingError, listed
from anytime.folds import FoldStream, GroupedFolds, StratifiedFolds
from anytime.generalised import Observed
from anytime.groups import FeatureGroups, load_groups, singletons
from anytime.manifest import FamilyName, Guarantee, Method
from anytime.model import AnytimeModel, affordable, checked_budget
from anytime.probabilities import class_codes, class_probabilities, expected_responses
from anytime.targets import Target, check_family
from anytime.training import Fit, Options, fit, provenance

__all__ = ["AnytimeClassifier", "AnytimeRegressor"]


class _AnytimeEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What the regressor and the classifier share."""

    def __init__(
        self,
        groups: str | Path | dict[str, Any] | FeatureGroups | None = None,
        *,
        family: FamilyName | Literal["auto"] = "auto",
        method: Method = "fr",
        cost_blind: bool = False,
        doubling: bool = False,
        alpha: float | Literal["cv"] = 1e-5,
        folds: int | None = None,
        one_se: bool = False,
        nested: bool = False,
        n_jobs: int | None = None,
        random_state: Any = 0,
    ) -> None:
        self.groups = groups
        self.family = family
        self.method = method
        self.cost_blind = cost_blind
        self.doubling = doubling
        self.alpha = alpha
        self.folds = folds
        self.one_se = one_se
        self.nested = nested
        self.n_jobs = n_jobs
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags

    @property
    def sequence_(self) -> list[str]:
        """The chosen group of each step, in order."""
        return [self.fit_.groups.names[step.adds[-1]] for step in self.fit_.sequence.steps]

    @property
    def curve_(self) -> Curve:
        """Cost, explained variance and error of every prefix."""
        return self.fit_.curve

    @property
    def guarantee_(self) -> Guarantee:
        """What the theory promises of the sequence."""
        return self.fit_.guarantee

    @property
    def model_(self) -> AnytimeModel:
        """The model as it is saved and served."""
        return self._model("model", keep_moments=True)

    def save(self, path: str | Path, *, name: str | None = None, keep_moments: bool = True) -> AnytimeModel:
        """Write the model file; its name is the file's unless one is given."""
        return self._model(name or Path(path).stem, keep_moments=keep_moments).save(path)

    def _model(self, name: str, *, keep_moments: bool) -> AnytimeModel:
        check_is_fitted(self)
        origin = provenance(self.fit_, "memory", folds=self._count(), seed=_seed(self.random_state))
        return self.fit_.model(name, self._target, origin, keep_moments=keep_moments)

    def _options(self) -> Options:
        options = Options(
            self.method, self.cost_blind, self.doubling, self.alpha, self.one_se, self.nested, self._family()
        )
        options.check()
        return options

    def _family(self) -> FamilyName:
        """The family, settled."""
        raise NotImplementedError

    def _count(self) -> int | None:
        """Number of folds: as given, else 5 where they are needed."""
        if self.folds is not None and self.folds < 2:
            raise TrainingError(f"folds is {self.folds}; expected 2 or more, or None")
        needed = self.alpha == "cv" or self.nested
        return self.folds or (5 if needed else None)

    def _learn(self, X: Any, Y: Any, sample_weight: Any, query: Any) -> None:
        """Moments by fold, then everything else from them."""
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        check_consistent_length(X, query)
        count, folds = self._count(), None
        options = self._options()
        check_family(options.family, self._target)
        if count is not None:
            rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31 - 1))
            if query is not None:
                folds = GroupedFolds(count, rng).take(np.asarray(query).tolist())
            elif options.family in ("binomial", "multinomial"):
                folds = StratifiedFolds(count, rng).take(class_codes(Y))
            else:
                folds = FoldStream(count, rng).take(len(Y))
        parts = fold_moments_of(X, Y, weights, folds, count or 1, n_jobs=self.n_jobs)
        observed = None
        if options.family != "gaussian":
            observed = Observed([Block(X, Y.reshape(len(Y), -1), weights, folds)], self._target, self.n_jobs)
        self.fit_: Fit = fit(parts, self._groups, options, observed)

    def _prepared(self, X: Any) -> Any:
        """Columns of a DataFrame picked by the names in the groups; anything else as it is."""
        given = None if self.groups is None else load_groups(self.groups)
        if given is None or not hasattr(X, "columns"):
            return X
        lost = [f for f in given.features if f not in X.columns]
        if lost:
            raise GroupsError(f"the table has no column {listed(lost)}, which the groups name; expected every feature")
        return X[list(given.features)]

    def _resolve_groups(self, X: Any) -> None:
        """Set the groups, and the place of each of their features in the columns of X."""
        names = list(getattr(self, "feature_names_in_", (f"x{j}" for j in range(X.shape[1]))))
        self._groups = singletons(names) if self.groups is None else load_groups(self.groups)
        features = self._groups.features
        place = {name: j for j, name in enumerate(names)}
        if all(feature in place for feature in features):
            self._columns: Index = np.array([place[feature] for feature in features], dtype=np.intp)
        elif len(features) == X.shape[1]:  # an array without names: columns in the order of the groups
            self._columns = np.arange(len(features))
        else:
            raise GroupsError(
                f"X has {X.shape[1]} columns without names and the groups have {len(features)} features; "
                "expected as many, in the order of the groups, or features called x0, x1, ..."
            )

    def _ordered(self, X: Any) -> Any:
        """Columns in the order of the groups; X itself where they are."""
        in_place = len(self._columns) == X.shape[1] and (np.diff(self._columns) == 1).all() and self._columns[0] == 0
        return X if in_place else X[:, self._columns]

    def _checked(self, X: Any) -> Float:
        """Rows to predict (n, D), NaN imputed by the training means."""
        check_is_fitted(self)
        X = validate_data(
            self, self._prepared(X), accept_sparse="csr", dtype=np.float64, ensure_all_finite="allow-nan", reset=False
        )
        X = self._ordered(X)
        dense = X.toarray() if hasattr(X, "toarray") else X
        filled: Float = np.where(np.isnan(dense), self.fit_.prefixes.mean, dense)
        return filled

    def _prefix(self, budget: float | None) -> int:
        """Longest prefix within a budget."""
        return affordable(self.fit_.sequence.costs, checked_budget(budget, self._groups.cost_unit))

    def _scores(self, X: Any, budget: float | None) -> Float:
        checked = self._checked(X)
        return self.fit_.prefixes.predict(checked, self._prefix(budget))

    def _staged_scores(self, X: Any) -> Iterator[Float]:
        checked = self._checked(X)
        for prefix in range(len(self.fit_.sequence.steps) + 1):
            yield self.fit_.prefixes.predict(checked, prefix)


class AnytimeRegressor(MultiOutputMixin, RegressorMixin, _AnytimeEstimator):  # type: ignore[misc]
    """Regression on feature groups with costs, for every budget at once.

    Parameters
    ----------
    groups : the feature groups: path of a groups file, the same structure as a dict, or None for each column at cost 1.
    A
        DataFrame's columns are picked by name; an array's columns are x0, x1, ..., or stand in the order of the groups.
    family : "gaussian", which is "auto": least squares; or "poisson", for counts.
    method : "fr", "omp", "single", "no-whiten": the criterion (section 2 of the paper); "sparse": a Lasso path (5.2).
    cost_blind : forget the costs in selection; with "omp" this is G-OMP.
    doubling : take no step that costs more than all before it together (Algorithm 2).
    alpha : penalty alpha/2 |w|^2 beside the mean loss on standardised data, as `Ridge(alpha=n * alpha)`; or "cv".
    folds : number of folds for `alpha="cv"` and for errors; None is 5 where they are needed, else none.
    one_se : take the largest penalty within one standard error of the best.
    nested : let each fold learn its own order for the errors.
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
        names = _names(y)
        several = self._family() != "poisson"
        X, y = validate_data(
            self, self._prepared(X), y, multi_output=several, y_numeric=True, dtype="numeric", **options
        )
        self._resolve_groups(X)
        self._flat = y.ndim == 1
        default = ("y",) if y.ndim == 1 else tuple(f"y{p}" for p in range(y.shape[1]))
        if self._family() == "poisson":
            if not self._flat:
                raise TrainingError(f"y has {y.shape[1]} columns; family poisson expects one count a row")
            if (y < 0).any():
                raise TrainingError(f"y is {y.min()} in some row; family poisson expects counts, 0 or more")
        self._target = Target("count" if self._family() == "poisson" else "regression", names or default)
        self._learn(self._ordered(X), y, sample_weight, query)
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

    def _family(self) -> FamilyName:
        return "gaussian" if self.family == "auto" else self.family


class AnytimeClassifier(ClassifierMixin, _AnytimeEstimator):  # type: ignore[misc]
    """Logistic and softmax regression for every budget at once.

    Parameters
    ----------
    family : "auto" is "binomial" for two classes and "multinomial" for more; "gaussian" is least squares on one-hot
        classes, of which two share one response, the second class's indicator; its estimates are clipped to [0, 1] and
        scaled to sum to one. The other parameters are those of `AnytimeRegressor`; `alpha` is that of
        `LogisticRegression(C=1/(n * alpha))` on standardised data.

    Attributes
    ----------
    classes_ : the classes, sorted.  Otherwise as `AnytimeRegressor`.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None, query: Any = None) -> Self:
        """Learn the sequence and the coefficients of every prefix; arguments as in `AnytimeRegressor.fit`."""
        options = {"accept_sparse": "csr", "ensure_all_finite": "allow-nan", "ensure_min_samples": 2}
        names = _names(y)
        X, y = validate_data(self, self._prepared(X), y, dtype="numeric", **options)
        check_classification_targets(y)
        self._resolve_groups(X)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise TrainingError(f"y has one class, {self.classes_.tolist()[0]!r}; expected 2 or more")
        labels = tuple(self.classes_.tolist())
        binary = len(labels) == 2
        self._target = Target("binary" if binary else "multiclass", names or ("y",), labels)
        one_hot = codes[:, np.newaxis] == np.arange(1 if binary else 0, len(labels))
        self._learn(self._ordered(X), one_hot.astype(np.float64), sample_weight, query)
        return self

    def decision_function(self, X: Any, budget: float | None = None) -> Float:
        """Scores (n, classes), or for two classes (n,), positive where the second is more likely: its log-odds."""
        scores = self._scores(X, budget)
        if scores.shape[1] > 1:
            return scores
        return scores[:, 0] - 0.5 if self._family() == "gaussian" else scores[:, 0]

    def _family(self) -> FamilyName:
        if self.family == "auto":
            return "binomial" if len(self.classes_) == 2 else "multinomial"
        return self.family

    def _likely(self, scores: Float) -> Float:
        return class_probabilities(scores, self._family())

    def predict_proba(self, X: Any, budget: float | None = None) -> Float:
        """Probabilities (n, classes) by the longest prefix within `budget`."""
        return self._likely(self._scores(X, budget))

    def predict(self, X: Any, budget: float | None = None) -> Any:
        """The most likely classes (n,) by the longest prefix within `budget`; all steps by default."""
        likely = self.predict_proba(X, budget)
        return self.classes_[likely.argmax(axis=1)]

    def staged_predict_proba(self, X: Any) -> Iterator[Float]:
        """Probabilities by every prefix: steps + 1 arrays, the first being the base rates."""
        yield from map(self._likely, self._staged_scores(X))

    def staged_predict(self, X: Any) -> Iterator[Any]:
        """Classes by every prefix: steps + 1 arrays."""
        for likely in self.staged_predict_proba(X):
            yield self.classes_[likely.argmax(axis=1)]


def _names(y: Any) -> tuple[str, ...]:
    """Names of the target columns, of a Series or a DataFrame that has them."""
    found = tuple(y.columns) if hasattr(y, "columns") else (getattr(y, "name", None),)
    return found if all(isinstance(name, str) and name for name in found) else ()


def _seed(random_state: Any) -> int | None:
    return random_state if isinstance(random_state, int) else None
