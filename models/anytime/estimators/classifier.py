"""Classification on feature groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from anytime.arrays import Float
from anytime.errors import TrainingError
from anytime.estimators.base import Estimator, all_or_nothing, learns_from_streams, names_of
from anytime.manifest import FamilyName
from anytime.matrix_columns import ordered_columns, picked_columns
from anytime.probabilities import class_probabilities
from anytime.targets import Target

__all__ = ["AnytimeClassifier"]


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
