"""What the estimators share: groups and columns, moments by fold, prefixes by budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from functools import wraps
from numbers import Integral
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from anytime.accumulate import Block, fold_moments_of
from anytime.arrays import Float
from anytime.curve import Curve
from anytime.dealing import Deal, fold_count, stratified
from anytime.errors import TrainingError
from anytime.generalised import Observed
from anytime.groups import FeatureGroups, load_groups
from anytime.manifest import FamilyName, Guarantee, Method
from anytime.matrix_columns import GivenGroups, ordered_columns, picked_columns, settled_columns
from anytime.model import AnytimeModel, affordable, checked_budget
from anytime.options import Options
from anytime.provenance import provenance
from anytime.streaming import MomentStream
from anytime.targets import check_family
from anytime.training import Fit, fit

__all__ = ["Estimator", "all_or_nothing", "learns_from_streams", "names_of"]

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
    def model_(self) -> AnytimeModel:
        """The model as it is saved and served."""
        return self._model("model", keep_moments=True)

    def save(self, path: str | Path, *, name: str | None = None, keep_moments: bool = True) -> AnytimeModel:
        """Write the model file; its name is the file's unless one is given."""
        return self._model(name or Path(path).stem, keep_moments=keep_moments).save(path)

    def _model(self, name: str, *, keep_moments: bool) -> AnytimeModel:
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
        deal = Deal(count, _seed(self.random_state), stratified=stratified(options.family))
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
