"""What the estimators share: groups and columns, moments by fold, prefixes by budget.

Regression on feature groups.

Classification on feature groups.

scikit-learn estimators: the trainer behind `fit`, every prefix behind `predict`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from functools import wraps
from numbers import Integral
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from anytime.data.columns import GivenGroups, check_no_times, ordered_columns, picked_columns, settled_columns
from anytime.errors import TrainingError
from anytime.folds import FoldAssigner, fold_count, stratified
from anytime.groups import FeatureGroups, load_groups
from anytime.inference.loaded import LoadedModel
from anytime.model.curve import Curve
from anytime.model.manifest import Guarantee
from anytime.model.model import Model, affordable, checked_budget
from anytime.model.probabilities import class_probabilities, expected_responses
from anytime.moments.accumulate import Block, fold_moments_of
from anytime.moments.streaming import MomentStream
from anytime.target import Target, check_family
from anytime.training.fit import Fit, fit
from anytime.training.likelihood import Observed
from anytime.training.options import Options
from anytime.training.provenance import provenance
from anytime.types import FamilyName, Float, Method

__all__ = [
    "AnytimeClassifier",
    "AnytimeRegressor",
    "Estimator",
    "all_or_nothing",
    "learns_from_streams",
    "names_of",
]

P = ParamSpec("P")
Learner = TypeVar("Learner", bound="Estimator")


def all_or_nothing(learn: Callable[Concatenate[Learner, P], Learner]) -> Callable[Concatenate[Learner, P], Learner]:
    """Have a method that learns leave its estimator as it was where it raises."""

    @wraps(learn)
    def method(self: Learner, /, *args: P.args, **kwargs: P.kwargs) -> Learner:
        before = self.__dict__.copy()
        try:
            return learn(self, *args, **kwargs)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    return method


def learns_from_streams(estimator: Estimator) -> bool:
    """Whether it has `partial_fit`, for `sklearn.utils.metaestimators.available_if`."""
    if not estimator._by_moments:
        raise AttributeError(
            "partial_fit learns by least squares (family='gaussian'); a likelihood needs all rows at once"
        )
    return True


class Estimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What the regressor and the classifier share."""

    def __init__(
        self,
        groups: GivenGroups = None,
        *,
        family: FamilyName | Literal["auto"] = "auto",
        method: Method = "fr",
        cost_blind: bool = False,
        doubling: bool = False,
        alpha: float | Literal["cv"] = 1e-5,
        folds: int | None = None,
        one_se: bool = False,
        nested: bool = False,
        epsilon: float | None = None,
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
        self.epsilon = epsilon
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
    def model_(self) -> LoadedModel:
        """The model, with which predictions are opened; it is built once for each fit."""
        check_is_fitted(self)
        built: tuple[Fit, LoadedModel] | None = getattr(self, "_built", None)
        if built is None or built[0] is not self.fit_:
            model = self._model("model", keep_moments=True)
            self._built = built = (self.fit_, LoadedModel.of(model))
        return built[1]

    def save(self, path: str | Path, *, name: str | None = None, keep_moments: bool = True) -> Model:
        """Write the model file; the model is named like the file unless `name` is given."""
        return self._model(name or Path(path).stem, keep_moments=keep_moments).save(path)

    def _model(self, name: str, *, keep_moments: bool) -> Model:
        check_is_fitted(self)
        seed = int(self.random_state) if isinstance(self.random_state, Integral) else None
        origin = provenance(self.fit_, "memory", folds=self._count(), seed=seed)
        return self.fit_.model(name, self._target, origin, keep_moments=keep_moments)

    def _options(self) -> Options:
        options = Options(
            self.method,
            self.cost_blind,
            self.doubling,
            self.alpha,
            self.one_se,
            self.nested,
            self._family(),
            self.epsilon,
        )
        options.check()
        return options

    @property
    def _by_moments(self) -> bool:
        """Whether what it fits depends on the rows by their moments alone."""
        return bool(self.family == "gaussian")

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
        options = self._options()
        check_family(options.family, self._target)
        Y = Y.reshape(len(Y), -1)
        count = fold_count(self._count() or 1, len(Y))
        deal = FoldAssigner(count, _seed(self.random_state), stratified=stratified(options.family))
        folds = deal.take(Y, None if query is None else np.asarray(query))
        parts = fold_moments_of(X, Y, weights, folds, count, n_jobs=self.n_jobs)
        self._stream: MomentStream | None = None
        observed = None
        if options.family != "gaussian":
            observed = Observed([Block(X, Y, weights, folds)], self._target, self.n_jobs)
        self.fit_: Fit = fit(parts, self._groups, options, observed)

    def _learn_more(self, X: Any, Y: Float, sample_weight: Any, decay: float) -> None:
        """Add rows to those of the stream, and learn from all of them."""
        options = self._options()
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        stream = copy(getattr(self, "_stream", None))  # of rows from which nothing can be learned none are kept
        if stream is None:
            stream = MomentStream(self._count() or 1, _seed(self.random_state))
        stream.add(X, Y, weights, decay=decay, n_jobs=self.n_jobs)
        self.fit_ = fit(stream.parts, self._groups, options)
        self._stream = stream

    @property
    def _streaming(self) -> bool:
        """Whether rows have come by `partial_fit`."""
        return getattr(self, "_stream", None) is not None

    def _read_groups(self) -> None:
        """Read the groups, from their file where they are in one: once, so that what is fitted needs it no more."""
        self._given: FeatureGroups | None = None if self.groups is None else load_groups(self.groups)

    def _settle_groups(self, X: Any) -> None:
        """Set the groups, and the place of each of their features in the columns of X."""
        names = list(getattr(self, "feature_names_in_", (f"x{j}" for j in range(X.shape[1]))))
        self._groups, self._columns = settled_columns(names, self._given)

    def _checked(self, X: Any) -> Float:
        """Rows to predict (n, D), NaN imputed by the training means."""
        check_is_fitted(self)
        X = validate_data(
            self,
            picked_columns(X, self._given),
            accept_sparse="csr",
            dtype=np.float64,
            ensure_all_finite="allow-nan",
            reset=False,
        )
        X = ordered_columns(X, self._columns)
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


def names_of(y: Any) -> tuple[str, ...]:
    """Names of the target columns, of a Series or a DataFrame that has them."""
    found = tuple(y.columns) if hasattr(y, "columns") else (getattr(y, "name", None),)
    return found if all(isinstance(name, str) and name for name in found) else ()


def _seed(random_state: Any) -> int:
    """Return the seed of the folds: an integer as it is, as on the command line; otherwise a draw from the state."""
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


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


class AnytimeClassifier(ClassifierMixin, Estimator):  # type: ignore[misc]
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

    @all_or_nothing
    def fit(self, X: Any, y: Any, sample_weight: Any = None, query: Any = None) -> Self:
        """Learn the sequence and the coefficients of every prefix; arguments as in `AnytimeRegressor.fit`."""
        options = {"accept_sparse": "csr", "ensure_all_finite": "allow-nan", "ensure_min_samples": 2}
        names = names_of(y)
        self._read_groups()
        X, y = validate_data(self, picked_columns(X, self._given), y, dtype="numeric", **options)
        check_classification_targets(y)
        self._settle_groups(X)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise TrainingError(f"y has one class, {self.classes_.tolist()[0]!r}; expected 2 or more")
        labels = tuple(self.classes_.tolist())
        binary = len(labels) == 2
        self._target = Target("binary" if binary else "multiclass", names or ("y",), labels)
        one_hot = codes[:, np.newaxis] == np.arange(1 if binary else 0, len(labels))
        self._learn(ordered_columns(X, self._columns), one_hot.astype(np.float64), sample_weight, query)
        return self

    @available_if(learns_from_streams)  # type: ignore[untyped-decorator]
    @all_or_nothing
    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, *, decay: float = 1.0
    ) -> Self:
        """Learn from more rows by least squares (`family="gaussian"`); as `AnytimeRegressor.partial_fit`.

        Parameters
        ----------
        classes : all classes there will be, the first time; those of the first rows if left out.
        """
        first = not self._streaming
        options = {"accept_sparse": "csr", "ensure_all_finite": "allow-nan", "ensure_min_samples": 2 if first else 1}
        names = names_of(y)
        if first:
            self._read_groups()
        X, y = validate_data(self, picked_columns(X, self._given), y, dtype="numeric", reset=first, **options)
        check_classification_targets(y)
        if first:
            self._settle_groups(X)
            self.classes_ = np.unique(y if classes is None else classes)
            if len(self.classes_) < 2:
                raise TrainingError(f"y has one class, {self.classes_.tolist()[0]!r}; give all of them by classes=")
            binary = len(self.classes_) == 2
            self._target = Target("binary" if binary else "multiclass", names or ("y",), tuple(self.classes_.tolist()))
        new = np.setdiff1d(y, self.classes_)
        if len(new):
            raise TrainingError(f"y has class {new.tolist()[0]!r}, which the first rows had not; give all by classes=")
        told = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        one_hot = (np.asarray(y)[:, np.newaxis] == told).astype(np.float64)
        self._learn_more(ordered_columns(X, self._columns), one_hot, sample_weight, decay)
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
