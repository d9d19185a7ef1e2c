"""scikit-learn estimators: the trainer behind `fit`, every prefix behind `predict`."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral, Number
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin, is_regressor
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import check_cv
from sklearn.utils import check_array, check_consistent_length, check_random_state, check_X_y
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from anytime.data.dataset import WEIGHTS, array_columns, valid_weights
from anytime.data.formats import Table
from anytime.data.formats.memory import MemoryTable, collected, is_frame, table_of
from anytime.errors import (
    AnytimeError,
    AnytimeWarning,
    ArtifactError,
    GroupsError,
    TableError,
    TrainingError,
    ValuesError,
    in_python,
    listed,
    refuse,
)
from anytime.families import family_of
from anytime.features.bases import Clamp
from anytime.groups import FeatureGroups, GroupsSource, load_groups, singletons
from anytime.inference.subsets import checked_policy
from anytime.inference.tables import TableAnswer
from anytime.loaded import LoadedModel, load
from anytime.model.curve import Curve
from anytime.model.manifest import Guarantee
from anytime.model.model import Model
from anytime.selection import SelectionMethod
from anytime.target import Target
from anytime.training.fit import warnings_of
from anytime.training.options import Options
from anytime.training.train import MoreRows, Observer, Roles, Stream, Trained, extended, open_training, train
from anytime.types import FamilyName, Float, Index, Label, Method, Policy


def _learns_from_streams(estimator: Estimator) -> bool:
    """Return true if the fit needs only the moments of the rows, else raise, as `available_if` expects."""
    auto = estimator.family == "auto"
    if not (is_regressor(estimator) if auto else family_of(estimator.family).least_squares):
        raise AttributeError(
            "partial_fit requires least squares (family='gaussian'); a likelihood needs all rows at once"
        )
    return True


GivenGroups: TypeAlias = GroupsSource | None
"""Groups as an estimator accepts them; None is each column at cost 1."""


@dataclass(frozen=True, eq=False)
class _Learned:
    """What was learned here, or the model that was read from a file."""

    trained: Trained | None
    read: LoadedModel | None = None

    @cached_property
    def model(self) -> LoadedModel:
        """Return the model; it takes long to make for many columns."""
        return self.read if self.trained is None else LoadedModel.of(self.trained.model("model"))  # type: ignore[return-value]


class Estimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Groups and columns, moments by fold, and prefixes by budget: the base of the regressor and the classifier."""

    _metric: ClassVar[Callable[..., float]]
    """scikit-learn's score of predictions: (y, predicted, sample_weight=)."""
    _target: Target
    _names: list[str]
    """Of the columns of X."""
    _learned: _Learned
    _stream: Stream | None = None
    _reordered = False
    """Whether the columns of the frame that it was fitted to had another order than the groups."""

    def __init__(
        self,
        groups: GivenGroups = None,
        *,
        family: FamilyName = "auto",
        method: Method | SelectionMethod = "fr",
        cost_blind: bool = False,
        doubling: bool = False,
        alpha: float | Literal["cv"] = Options.alpha,
        cv: Any = None,
        one_se: bool = False,
        nested: bool = False,
        epsilon: float | None = None,
        basis: str | None = Options.basis,
        clamp: Clamp = None,
        min_level_rows: int | Literal["auto"] = "auto",
        pairs: int | Literal["auto"] | None = Options.pairs,
        class_weight: Any = None,
        n_jobs: int | None = None,
        random_state: Any = 0,
    ) -> None:
        self.groups = groups
        self.family = family
        self.method = method
        self.cost_blind = cost_blind
        self.doubling = doubling
        self.alpha = alpha
        self.cv = cv
        self.one_se = one_se
        self.nested = nested
        self.epsilon = epsilon
        self.basis = basis
        self.clamp = clamp
        self.min_level_rows = min_level_rows
        self.pairs = pairs
        self.class_weight = class_weight
        self.n_jobs = n_jobs
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.input_tags.string = True
        return tags

    @property
    def sequence_(self) -> list[str]:
        """The chosen group of each step, in order."""
        return list(self.curve_.groups)

    @property
    def coef_(self) -> Float:
        """Coefficients of the whole sequence, one for each term of each column: (terms,) or (terms, P)."""
        prefixes = self.model_.prefixes
        padded = np.zeros((len(prefixes.mean) + 1, len(prefixes.intercept)))  # the last for columns in no group
        padded[prefixes.columns[: prefixes.ends[-1]]] = prefixes.coef(prefixes.steps)
        coef = padded[np.concatenate(self._terms_of_columns)]
        return coef[:, 0] if self._is_single else coef

    @property
    def _terms_of_columns(self) -> list[list[int]]:
        """The terms of each column of X, in its order; [-1] for a column in no group. Last those of pairs."""
        expansion = self.model_.expansion
        columns, place = [[-1] for _ in self._names], {name: j for j, name in enumerate(self._names)}
        for name, (start, stop) in zip(self.model_.groups.features, expansion.spans, strict=True):
            columns[place[name]] = list(range(start, stop))
        if expansion.products:
            columns.append(list(range(expansion.column_terms, expansion.size)))
        return columns

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Return the names of the terms, one for each row of `coef_`: (terms,) of `object`."""
        names, terms = self._input_names(input_features), self.model_.terms.features
        columns = zip((*names, ""), self._terms_of_columns, strict=False)  # without a column: pairs, if there are some
        return np.array([name if term < 0 else terms[term] for name, of in columns for term in of], dtype=object)

    def _input_names(self, given: Any) -> list[str]:
        """Return the names of the columns of X: those of the frame, or as given."""
        check_is_fitted(self)
        known = getattr(self, "feature_names_in_", None)
        if given is None:
            return self._names if known is None else list(known)
        if known is not None and not np.array_equal(known, given):
            raise ValuesError("input_features is not equal to feature_names_in_; omit it")
        if len(given) != self.n_features_in_:
            raise ValuesError(
                f"input_features has {len(given)} names; expected {self.n_features_in_}, one for each column"
            )
        return list(given)

    @property
    def intercept_(self) -> float | Float:
        """Intercept of the whole sequence for raw features: the score where every feature is 0; a number, or (P,)."""
        prefixes = self.model_.prefixes
        used = prefixes.columns[: prefixes.ends[-1]]
        intercept = prefixes.intercept_of(prefixes.steps) - prefixes.mean[used] @ prefixes.coef(prefixes.steps)
        return float(intercept[0]) if self._is_single else intercept

    @property
    def _is_single(self) -> bool:
        """Whether there is one response, and it is not a matrix of one column."""
        return len(self.model_.prefixes.intercept) == 1 and getattr(self, "_flat", True)

    @property
    def alpha_(self) -> float:
        """The penalty that ordered the groups."""
        return self.model_.manifest.alpha

    @property
    def alphas_(self) -> Float:
        """The penalty of each prefix, (steps + 1,); element 0 belongs to the base rate, which has no coefficients."""
        return np.array([self.alpha_, *(step.alpha for step in self.model_.manifest.steps)])

    @property
    def costs_(self) -> Float:
        """The cumulative cost of each prefix, (steps + 1,)."""
        return self.model_.costs

    @property
    def curve_(self) -> Curve:
        """Cost, explained variance and error of every prefix."""
        return self.model_.curve

    @property
    def guarantee_(self) -> Guarantee:
        """The theoretical guarantee of the sequence."""
        return self.model_.manifest.guarantee

    @property
    def model_(self) -> LoadedModel:
        """The model that opens predictions; it is built once for each fit."""
        check_is_fitted(self)
        return self._learned.model

    def save(self, path: str | Path, *, name: str | None = None, keep_moments: bool = True) -> Model:
        """Write the model file; the model is named after the file unless `name` is given."""
        return self._model(name or Path(path).stem, keep_moments=keep_moments).save(path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return a model file as a fitted estimator; its parameters are the options that the file records.

        Raises ArtifactError if the file is not a model, or one of another kind of target.
        """
        model = load(path)
        manifest, columns = model.manifest, model.manifest.provenance.columns
        if (manifest.classes is None) != issubclass(cls, RegressorMixin):
            kind, other = ("numbers", "Regressor") if manifest.classes is None else ("classes", "Classifier")
            raise ArtifactError(f"{str(path)!r} is a model of {kind}; load it by Anytime{other}.load")
        weights = manifest.provenance.class_weights
        estimator = cls(
            model.groups,
            family=manifest.family,
            method=manifest.method,
            cost_blind=manifest.cost_blind,
            doubling=manifest.doubling,
            alpha=manifest.alpha,
            cv=manifest.provenance.folds,
            nested=manifest.provenance.nested,
            epsilon=None if manifest.stopped is None else manifest.stopped.epsilon,
            class_weight=weights and dict(zip(manifest.classes or (), weights, strict=True)),
            random_state=manifest.provenance.seed or 0,
        )
        estimator._learned = _Learned(None, model)
        estimator._given_groups = model.groups
        estimator._names = list(columns or model.groups.features)
        estimator._target = manifest.learned
        estimator._flat = len(manifest.target) == 1
        estimator.n_features_in_ = len(estimator._names)
        if not columns and estimator._names != [f"x{j}" for j in range(len(estimator._names))]:
            estimator.feature_names_in_ = np.array(estimator._names, dtype=object)
        if manifest.classes is not None:
            estimator.classes_ = np.array(manifest.classes)
        return estimator

    def _model(self, name: str, *, keep_moments: bool) -> Model:
        check_is_fitted(self)
        if self._learned.trained is not None:
            return self._learned.trained.model(name, keep_moments=keep_moments)
        model = replace(self.model_, manifest=self.model_.manifest.model_copy(update={"name": name}))
        return model if keep_moments else replace(model, moments=None, curvatures=None)

    def staged_score(self, X: Any, y: Any, sample_weight: Any = None) -> Float:
        """Return the score of every prefix, (steps + 1,); element 0 is that of the base rate."""
        y = _target_values(y)
        return np.array([self._metric(y, each, sample_weight=sample_weight) for each in self.staged_predict(X)])

    def fit(self, X: Any, y: Any, sample_weight: Any = None, query: Any = None) -> Self:
        """Learn the sequence and the coefficients of every prefix.

        Parameters
        ----------
        X : array of shape (n, columns)
            Array, DataFrame or scipy sparse. Columns of a DataFrame may be text, categorical or boolean. Missing values
            are imputed by the training means, and marked by a term where they are 1 % or more.
        y : array of shape (n,) or (n, P)
            Responses; (n,) classes.
        sample_weight : array of shape (n,)
            Weights of the rows.
        query : array of shape (n,)
            Keys; rows with the same key stay in the same fold.
        """
        return self._learn(X, y, sample_weight, query=query)

    def _learn(
        self, X: Any, y: Any, sample_weight: Any, *, query: Any = None, classes: Any = None, decay: float | None = None
    ) -> Self:
        """Fit to the rows, or with `decay` to all rows of the stream after adding them; restore all on an error."""
        before = self.__dict__.copy()
        try:
            self._learn_rows(X, y, sample_weight, query, classes, decay)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        return self

    def _learn_rows(self, X: Any, y: Any, sample_weight: Any, query: Any, classes: Any, decay: float | None) -> None:
        expected = {} if self.pairs in ("auto", 0, None) else {"pairs": "'auto' or 0"}
        expected |= {} if self.class_weight is None else {"class_weight": "None"}
        expected |= {} if isinstance(self.cv, Integral | None) else {"cv": "a number of folds, or None"}
        refuse(
            {
                f"{name} is {getattr(self, name)!r}; partial_fit expects {words}: use fit, which has all rows": True
                for name, words in expected.items()
                if decay is not None
            }
        )
        stream = None if decay is None else self._stream
        first = stream is None
        if first:  # the groups' file is read once, so that predictions do not need it
            self._given_groups: FeatureGroups | None = None if self.groups is None else load_groups(self.groups)
        names = _names_of(y)
        table, y = self._valid_rows(X, y, query, first=first)
        if not table.rows:
            return
        weights = None if sample_weight is None else _weights(sample_weight, table.rows)
        learned = y if weights is None else y[weights > 0]
        if not len(learned):
            raise TrainingError("every sample_weight is zero; expected some above 0")
        if first:
            self._settle(y, names, learned if classes is None else classes, streamed=decay is not None)
        self._check_known(y, learned)
        folds = self._folds(y, query) if decay is None else None
        options = self._options(None if folds is None else int(folds.max()) + 1)
        observer = Observer()
        try:
            fixed = weights if decay is None else None  # those of a stream decay
            rows, roles = self._with_roles(table, y, weights=fixed, query=query, folds=folds)
            known = replace(self._target, columns=roles.target)
            if decay is None:
                trained = train(open_training(rows, roles, options, known=known, observer=observer))
            else:
                roles = replace(roles, weights=_free(rows, "weights"))
                more = MoreRows(rows, np.ones(table.rows) if weights is None else weights)
                stream = extended(stream, more, decay, roles, options, known, observer)
                trained = stream.trained()
        finally:
            self._warn(observer.warnings)  # a fit that fails may do so because of what they name
        self._stream = stream
        self._target = replace(self._target, family_name=trained.target.family_name)
        before = None if first or self._learned.trained is None else self._learned.trained.weights
        trained = replace(
            trained,
            data="memory",
            target=self._target,
            query=None,
            seed=int(self.random_state) if isinstance(self.random_state, Integral) else None,
            weights=before if sample_weight is None else "sample_weight",
            columns=() if hasattr(self, "feature_names_in_") else tuple(self._names),
        )
        self._learned, self.fit_ = _Learned(trained), trained.fit
        self._warn(warnings_of(self.fit_, self._target))

    def _valid_rows(self, X: Any, y: Any, query: Any, *, first: bool) -> tuple[MemoryTable, NDArray[Any]]:
        """Return rows as a table, and their targets as an array (n,) or (n, P), if both are valid.

        Only the first rows must not be empty.
        """
        if y is None or isinstance(y, str):
            stated = f"y is {y!r}; expected the values of the target, such as X[{y!r}]"
            raise TableError("fit requires y to be passed, but the target y is None" if y is None else stated)
        y, is_numbers = _target_values(y), is_regressor(self)
        table = self._table(X, first=first, least=2 if first else 0, needed=() if first else self._names)
        texts = y.dtype.kind in "UST" or (y.size > 0 and isinstance(y.flat[0], str))
        with (
            _one_kind_of_error("; AnytimeClassifier predicts classes" * (is_numbers and texts), "y"),
            np.errstate(all="ignore"),  # their sums may overflow
        ):
            check_consistent_length(range(table.rows), y, query)
            if table.rows:
                several = is_numbers and not family_of(self._family()).one_column
                checks = {"multi_output": several, "y_numeric": is_numbers, "estimator": self}
                _, y = check_X_y(np.broadcast_to(0.0, (table.rows, 1)), y, **checks)
            if is_numbers and y.dtype.kind == "U":
                y = np.array(y.tolist(), dtype=np.float64)  # so that an error shows a text as Python does
        return table, y

    def _with_roles(self, table: MemoryTable, y: NDArray[Any], **further: Any) -> tuple[MemoryTable, Roles]:
        """Return rows with their targets and other values as columns after the features, and the roles of all."""
        targets: dict[str, Any] = {}
        for name, values in zip(self._target.columns, y.reshape(len(y), -1).T, strict=True):
            targets[_free(table, name, targets)] = values
        names = {role: _free(table, role, targets) for role, values in further.items() if values is not None}
        others = {name: _column(role, further[role]) for role, name in names.items()}
        roles = Roles(self._given_groups or singletons(self._names), tuple(targets), **names)
        return table.with_columns(targets | others), roles

    def _warn(self, texts: Iterable[str]) -> None:
        for text in texts:
            warnings.warn(in_python(text), AnytimeWarning, stacklevel=5)  # the caller of fit or partial_fit

    def _folds(self, y: Any, query: Any) -> Index | None:
        """Return the fold of each row (n,), where `cv` makes the folds; None for a number of folds."""
        if isinstance(self.cv, str) or not (hasattr(self.cv, "split") or isinstance(self.cv, Iterable)):
            return None
        labels = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        splits = check_cv(self.cv).split(np.broadcast_to(0.0, (len(y), 1)), labels, query)
        folds, of_query = _folds_of(splits, len(y)), dict[Any, int]()
        for key, fold in () if query is None else zip(_column("query", query).tolist(), folds.tolist(), strict=True):
            if of_query.setdefault(key, fold) != fold:
                raise TrainingError(
                    f"cv assigns the rows of query {key!r} to several folds; expected a splitter that keeps them "
                    "together, such as GroupKFold, or no query"
                )
        return folds

    def _table(self, X: Any, *, first: bool, least: int = 1, needed: Sequence[str] = ()) -> MemoryTable:
        """Return valid rows as a table; the first determine the columns, and later ones need only those `needed`."""
        known = self._names if not first else () if self._given_groups is None else self._given_groups.features
        self._reordered &= not first  # a new fit may have another order
        if not is_frame(X, known):
            return self._array_table(X, first=first, least=least)
        X = collected(X)
        table, named = table_of("X", X), getattr(self, "feature_names_in_", None)
        if not first and all(map(table.has, needed)) and (named is None or not all(map(table.has, named))):
            return table
        if not first and named is None:  # fitted to an array: columns go by their positions
            return self._array_table(X, first=False, least=least)
        if self._given_groups is not None:
            if first:
                self._given_groups = self._given_groups.matched(table.columns)
            features = list(self._given_groups.features)
            if lacking := [name for name in (features if first else needed) if not table.has(name)]:
                why = (
                    ", which the groups name; expected every feature"
                    if first
                    else "; expected the columns of every group in the prefix: a smaller budget uses fewer, and "
                    "`model_.predict` goes without a group"
                )
                raise GroupsError(f"X has no column {listed(lacking)}{why}")
            if first:
                self._reordered = features != [name for name in table.columns if name in set(features)]
            X = X[features] if hasattr(X, "iloc") else X.select(features)
            table = table_of("X", X)  # other columns may differ between the batches of a stream
        if table.rows < least:
            raise TableError(f"X has {table.rows} row{'s' * (table.rows != 1)}; expected at least {least}")
        by_name = "; `model_.predict` finds columns by their names, and so does an estimator with groups="
        with _one_kind_of_error("" if first else by_name):
            validate_data(self, X, skip_check_array=True, reset=first)
        if first:
            self._names = list(self.feature_names_in_)
        return table

    def _array_table(self, X: Any, *, first: bool, least: int) -> MemoryTable:
        if not first and self._reordered:
            raise TableError(
                "X has no names of columns, and the DataFrame that the estimator was fitted to has them in another "
                "order than the groups; expected a DataFrame"
            )
        if getattr(getattr(X, "dtype", None), "kind", "f") != "M":  # dates are features, and no target or weight
            check_kind("X", X)
        with _one_kind_of_error():
            X = X if hasattr(X, "dtype") or hasattr(X, "iloc") else np.asarray(X)
            X = check_array(
                X,
                accept_sparse="csr",
                dtype=None if getattr(getattr(X, "dtype", None), "kind", "O") in "OUSTM" else "numeric",
                ensure_all_finite=False,  # the moments find infinities in the same pass
                ensure_min_samples=least,
                estimator=self,
                input_name="X",
            )
            validate_data(self, X, skip_check_array=True, reset=first)
        if first:
            names = [f"x{j}" for j in range(X.shape[1])]
            if self._given_groups is not None:
                self._given_groups = self._given_groups.matched(names)
                names = array_columns(X.shape[1], self._given_groups)
            self._names = names
        return table_of("X", X, self._names)

    def _options(self, splits: int | None = None) -> Options:
        """Return the options of training that the parameters state."""
        is_count, state = isinstance(self.cv, Integral) and int(self.cv) >= 2, self.random_state
        if splits is None and self.cv is not None and not is_count:
            raise TrainingError(f"cv is {self.cv!r}; expected a number of folds, 2 or more, a splitter, or None")
        return Options(
            task=self._target.task,
            family=None if self.family == "auto" and self._target.classes is not None else self._family(),
            class_weight=self.class_weight,
            method=self.method,
            cost_blind=bool(self.cost_blind),
            doubling=bool(self.doubling),
            epsilon=self.epsilon,
            alpha=self.alpha,
            one_se=bool(self.one_se),
            nested=bool(self.nested),
            folds=int(self.cv) if is_count else splits,
            basis=self.basis,
            clamp=self.clamp,
            min_level_rows=self.min_level_rows,
            pairs=int(self.pairs or 0) if isinstance(self.pairs, np.integer | None) else self.pairs,
            seed=int(state if isinstance(state, Integral) else check_random_state(state).randint(2**31 - 1)),
            n_jobs=self.n_jobs,
        )

    def _answer(self, X: Any, budget: float | None, policy: Policy, *, explain: bool = False) -> TableAnswer:
        """Return the answer of the prefix within a budget; raise unless X has all of its columns."""
        unknown = checked_policy(policy) == "best" and "best" not in self.model_.policies
        refuse(
            {
                "policy is 'arrived', but X has every group; use `model_.predict` to go without one": (
                    policy == "arrived"
                ),
                "policy is 'best', which needs errors on held-out rows; fit with folds, or use 'prefix'": unknown,
            },
            ValuesError,
        )
        prefix = self.model_.affordable(budget, policy)
        return self.model_.answer(self._read(X, prefix), prefix=prefix, explain=explain)

    def _read(self, X: Any, prefix: int) -> MemoryTable:
        """Return X as a table that has all columns of a prefix."""
        places = map(self.model_.places.__getitem__, self.model_.computed[prefix])
        return self._table(X, first=False, needed=[column for place in places for column in place.features])

    def _staged_scores(self, X: Any) -> Iterator[Float]:
        table = self._read(X, self.model_.steps)
        yield from (self.model_.answer(table, prefix=prefix).scores for prefix in range(self.model_.steps + 1))


def _free(table: Table, name: str, taken: Container[str] = ()) -> str:
    """Return a name that is no column of a table and not taken, this one if possible."""
    return _free(table, f"{name} of y", taken) if table.has(name) or name in taken else name


@contextmanager
def _one_kind_of_error(remedy: str = "", name: str = "") -> Iterator[None]:
    """Convert scikit-learn's ValueErrors to the library's own: the same words, the name of the values, and a remedy."""
    try:
        yield
    except AnytimeError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        words = re.sub(r"\n(array=.*|\[.*\])\.?\n", " ", str(error), flags=re.DOTALL)  # arrays in full
        words = f"{' '.join(words.split()).rstrip('.')}{remedy}"
        raise TableError(words if re.search(rf"\b{name}\b", words) else f"{name}: {words}") from error


def _weights(sample_weight: Any, rows: int) -> Float:
    """Return the weights (rows,); raise TrainingError unless there is one for each row, 0 or more."""
    check_kind("sample_weight", sample_weight)
    try:
        weights = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise TrainingError(
            f"sample_weight is {type(sample_weight).__name__}; expected a number for each row"
        ) from None
    if weights.ndim == 0:
        weights = np.full(rows, weights)
    if weights.shape != (rows,):
        raise TrainingError(f"sample_weight has shape {weights.shape}; expected ({rows},), a number for each row")
    if len(wrong := np.flatnonzero(~valid_weights(weights))):
        what = f"{weights[wrong[0]]} in row {wrong[0]} (counted from 0)"
        raise TrainingError(f"sample_weight is {what}; expected {WEIGHTS}")
    return weights


def _column(name: str, values: Any) -> NDArray[Any]:
    """Return values of the rows as an array (rows,), large integers exactly; raise TableError for another shape."""
    with _one_kind_of_error():
        array = np.asarray(values)
    if array.ndim != 1:
        raise TableError(f"{name} has shape {array.shape}; expected one value for each row")
    return array if hasattr(values, "dtype") or array.dtype.kind != "f" else np.asarray(values, dtype=object)


def check_kind(name: str, values: Any) -> None:
    """Raise TableError if values have a dtype that is neither numbers nor text."""
    times = "numbers: convert dates to days since a fixed date, and durations to seconds, for example"
    expected = {
        **dict.fromkeys("mM", times),
        "c": "real numbers (Complex data not supported)",  # the words that scikit-learn's checks look for
        "V": "numbers or text",
    }
    dtype = getattr(values, "dtype", None)
    if (kind := getattr(dtype, "kind", "f")) in expected:
        raise TableError(f"{name} is {dtype}; expected {expected[kind]}")


def _target_values(y: Any) -> NDArray[Any]:
    """Return a target as an array of numbers, booleans or text; raise TableError for missing values and mixed types."""
    with _one_kind_of_error(name="y"):
        values = np.asarray(y)
        if values.dtype.kind == "U" and isinstance(y, list | tuple):
            values = np.asarray(y, dtype=object)  # NumPy makes text of numbers among text
    for each in (y, values):
        check_kind("y", each)
    if not values.ndim or not values.size or values.dtype.kind not in "fOU":
        return values
    gaps = np.isnan(values) if values.dtype.kind == "f" else np.frompyfunc(_is_missing, 1, 1)(values).astype(np.bool_)
    if len(rows := np.flatnonzero(gaps.reshape(len(gaps), -1).any(axis=1))):
        raise TableError(
            f"y has no value in {len(rows)} row{'s' * (len(rows) > 1)}, the first in row {rows[0]} (counted from 0); "
            "leave out the rows without a target"
        )
    if values.dtype.kind != "O":
        return values
    kinds = {"text": str, "booleans": bool | np.bool_, "numbers": Number}
    types = set(map(type, values.flat))
    found = {next((kind for kind, of in kinds.items() if issubclass(t, of)), t.__name__) for t in types}
    if len(found) > 1 or not found <= kinds.keys():
        raise TableError(f"y holds {' and '.join(sorted(found))}; expected numbers, booleans or text in every row")
    return values if "text" in found else np.array(values.tolist())


def _is_missing(value: Any) -> bool:
    """Return whether a Python object is a missing value: None, NaN, one of pandas, or an empty text, as in a table."""
    is_nan = isinstance(value, float | np.floating) and bool(np.isnan(value))
    return (
        is_nan
        or value is None
        or (isinstance(value, str) and not value)
        or type(value).__name__ in ("NAType", "NaTType")
    )


def _names_of(y: Any) -> tuple[str, ...]:
    """Return the names of the target columns, if y is a Series or a DataFrame with names."""
    found = tuple(y.columns) if hasattr(y, "columns") else (getattr(y, "name", None),)
    names = found if all(isinstance(name, str) and name for name in found) else ()
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise TableError(f"y has more than one column named {listed(twice)}; give each its own name")
    return names


def _folds_of(splits: Iterable[Any], rows: int) -> Index:
    """Return the fold of each row (rows,), given the training and the test rows of each fold, as indices or masks."""
    every, folds = np.arange(rows), np.full(rows, -1, dtype=np.intp)
    try:
        parts = [(every[np.asarray(trained)], every[np.asarray(test)]) for trained, test in splits]
    except (IndexError, TypeError, ValueError) as error:
        raise TrainingError(
            f"cv does not split {rows} rows ({str(error).rstrip('.')}); expected pairs of training and test rows"
        ) from None
    for number, (trained, test) in enumerate(parts):
        folds[test] = number
        if not np.array_equal(np.sort(trained), np.setdiff1d(every, test)):
            raise TrainingError(
                f"cv trains fold {number} on {len(trained)} rows, and not once on each of the {rows - len(test)} rows "
                "that it does not test; expected that: a fold is held out from the sums of all others"
            )
    tested = sum(len(test) for _, test in parts)
    if len(parts) < 2 or tested != rows or folds.min() < 0:
        raise TrainingError(
            f"cv makes {len(parts)} folds that test {tested} rows of {rows}; expected a splitter of 2 or more folds "
            "that tests each row once, such as KFold"
        )
    return folds


class AnytimeRegressor(MultiOutputMixin, RegressorMixin, Estimator):  # type: ignore[misc]
    """Regression on feature groups with costs, for every budget at once.

    Parameters
    ----------
    groups : GivenGroups
        The feature groups: path of a groups file, the same structure as a dict, a short form such as `{"a": ["age",
        "city"], "b": {"features": ["iron"], "cost": 5}}`, or None for each column at cost 1. A DataFrame's columns are
        selected by name; an array's are x0, x1, ..., or in the order of the groups.
    family : FamilyName
        "gaussian", which is "auto": least squares; "poisson" or "negative-binomial:DISPERSION", for counts; or "gamma",
        for amounts and durations above 0.
    method : Method | SelectionMethod
        "fr", "omp", "single", "no-whiten": the criterion (section 2 of the paper); "cp": the expected gain on new rows;
        "sparse": a Lasso path (5.2); or an object of a class of your own (`anytime.selection.Criterion`).
    cost_blind : bool
        Ignore the costs in selection; with "omp" this is G-OMP.
    doubling : bool
        Limit the cost of each step to the joint cost of all steps before it (Algorithm 2).
    alpha : float | Literal["cv"]
        Penalty alpha/2 |w|^2 added to the mean loss on standardised data, as `Ridge(alpha=n * alpha)`; or "cv".
    cv
        Number of folds for `alpha="cv"` and for errors; or a splitter, or its splits, which must test each row once and
        train on all others. None means 5 folds if they are needed, else none.
    one_se : bool
        Select the largest penalty within one standard error of the best.
    nested : bool
        Learn the order in each fold for the errors.
    basis : str | None
        Of all columns that it fits and whose basis `groups` do not state: "auto" (linear, or hinges at 1, 3, 7 or
        63 quantiles, perhaps with levels next to them, by cross-validation), "linear", "hinge[:K]", "poly:P",
        "cyclic:P", "categories" (that of text), "date" (of dates); None is that of the type of each column, "linear"
        for numbers.
    clamp : Clamp
        Move values outside the quantiles Q and 1 - Q of the training rows to the nearest of them; "off"; "outliers": a
        side whose extreme is more than 2 (q99 - q1) beyond q99 or q1 is clamped there; "auto": curves and dates at the
        ends of the training range, or such a side there, and lines not, unless cross-validation of the basis "auto"
        says so; None is that for the basis "auto", 0 for other curves and dates, and off for lines.
    min_level_rows : int | Literal["auto"]
        Rows that a level of text needs for an indicator, 2 or more: no indicator discloses a single row. "auto" chooses
        10, 5 or 2 by cross-validation.
    pairs : int | Literal["auto"] | None
        Number of pairs of columns whose products become terms, 0 to 256: those that explain most of what a sum over
        columns leaves. A pair costs nothing, and is used once the groups of both columns are there. "auto" keeps the
        fewest whose cross-validated error is within a standard error of the least, and none unless it is clearly less;
        `partial_fit` accepts only "auto" and 0. None is 0.
    epsilon : float | None
        Stop when no remaining group has a projection of the residual longer than this, in standard deviations of the
        response (Group-OMP); None selects every group.
    n_jobs : int | None
        Threads over the rows, as in joblib; but least squares on many rows uses all cores by default, unless
        `joblib.parallel_config` states a number or joblib runs several fits.
    random_state
        Seed of the folds and of the sample of rows that bases are learned from.

    Attributes
    ----------
    sequence_ : list[str]
        Chosen group of each step.
    costs_ : Float
        Cumulative cost of each prefix, (steps + 1,).
    coef_, intercept_
        Of the whole sequence, in raw units; `coef_` has a row for each term of each column, named by
        `get_feature_names_out()`.
    alpha_ : float
        The penalty that ordered the groups.
    alphas_ : Float
        The penalty of each prefix, (steps + 1,).
    curve_ : Curve
        Cost, explained variance and error of each prefix.
    guarantee_ : Guarantee
        The theoretical guarantee of the sequence.
    model_ : LoadedModel
        The model, which opens predictions.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    References
    ----------
    Hu, Grubb, Bagnell and Hebert, "Efficient Feature Group Sequencing for Anytime Linear Prediction", UAI 2016.
    """

    _metric = staticmethod(r2_score)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        family = family_of(self._family())
        tags.target_tags.positive_only = bool(family.least >= 0)
        tags.target_tags.multi_output = not family.one_column
        return tags

    @available_if(_learns_from_streams)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, *, decay: float = 1.0) -> Self:
        """Learn from more rows by least squares: as `fit` of all rows that `partial_fit` received.

        Rows from `fit` do not count: the first `partial_fit` after a `fit` starts over, as does each `fit`.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`; at least two rows the first time. A later call without rows changes nothing.
        decay : float
            Factor for the weight of all earlier rows, 0 to 1.
        """
        return self._learn(X, y, sample_weight, decay=decay)

    def _settle(self, y: Any, names: tuple[str, ...], classes: Any, *, streamed: bool) -> None:  # noqa: ARG002
        """Determine the target by the first rows; its columns have `names`, and its `classes` are among those."""
        self._flat = y.ndim == 1
        names = names or (("y",) if y.ndim == 1 else tuple(f"y{p}" for p in range(y.shape[1])))
        family = family_of(self._family())
        self._target = Target("count" if "count" in family.tasks else "regression", names, None, family.label)

    def _check_known(self, y: Any, learned: Any) -> None:  # noqa: ARG002
        """Raise TrainingError for rows that do not fit the target."""
        columns = 1 if y.ndim == 1 else y.shape[1]
        if columns != len(self._target.columns):
            raise TrainingError(f"y has {columns} columns; earlier rows had {len(self._target.columns)}")

    def predict(self, X: Any, budget: float | None = None, *, policy: Policy = "prefix", explain: bool = False) -> Any:
        """Return predictions (n,) or (n, P) of the longest prefix within `budget`; all steps by default.

        The policy "best" answers by a shorter prefix where its cross-validated error is less by one standard error.
        With `explain`, return them and their `Contributions`: what each column and each group adds to the score, as
        arrays (n,) or (n, P). The score is the prediction, or its logarithm for counts.
        """
        answer = self._answer(X, budget, policy, explain=explain)
        predictions = self._shaped(answer.scores)
        return (predictions, answer.contributions) if explain else predictions

    def staged_predict(self, X: Any) -> Iterator[Float]:
        """Yield predictions of every prefix: steps + 1 arrays, the base rate first."""
        yield from map(self._shaped, self._staged_scores(X))

    def score(
        self, X: Any, y: Any, sample_weight: Any = None, *, budget: float | None = None, policy: Policy = "prefix"
    ) -> float:
        """Return the R² of the longest prefix within `budget`, the mean over responses; all steps by default."""
        return float(
            self._metric(_target_values(y), self.predict(X, budget, policy=policy), sample_weight=sample_weight)
        )

    def _shaped(self, scores: Float) -> Float:
        expected = self._target.family.mean(scores)
        return expected[:, 0] if self._flat else expected

    def _family(self) -> FamilyName:
        return "gaussian" if self.family == "auto" else self.family


class AnytimeClassifier(ClassifierMixin, Estimator):  # type: ignore[misc]
    """Logistic and softmax regression for every budget at once.

    Parameters
    ----------
    family : FamilyName
        "auto" is "binomial" for two classes and "multinomial" for more, or "gaussian" where these take more than about
        half a minute and five times as long, without a penalty, and for methods without likelihoods. "gaussian" is
        least squares on one-hot classes; it alone has re-sequencing without data, exact answers from any groups, and
        certificates. Two classes share one response, the second class's indicator; estimates are clipped to [0, 1] and
        scaled to sum to one.
    class_weight
        "balanced" makes all classes equally heavy in training; a dict has a weight for each class. Then probabilities
        are those of such frequencies. The other parameters are those of `AnytimeRegressor`; `alpha` is that of
        `LogisticRegression(C=1/(n * alpha))` on standardised data.

    Attributes
    ----------
    classes_
        The classes, sorted.  Otherwise as `AnytimeRegressor`.
    """

    _metric = staticmethod(accuracy_score)

    @available_if(_learns_from_streams)  # type: ignore[untyped-decorator]
    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, *, decay: float = 1.0
    ) -> Self:
        """Learn from more rows by least squares (`family="gaussian"`); as `AnytimeRegressor.partial_fit`.

        Parameters
        ----------
        classes
            All classes that may occur, in the first call; by default those of the first rows.
        """
        return self._learn(X, y, sample_weight, classes=classes, decay=decay)

    def _settle(self, y: Any, names: tuple[str, ...], classes: Any, *, streamed: bool) -> None:
        with _one_kind_of_error(), np.errstate(all="ignore"):
            check_classification_targets(y)
            self.classes_ = np.unique(classes)
        labels = self.classes_.tolist()
        wrong = {type(label).__name__: True for label in labels if not isinstance(label, Label)}
        found = f"one class, {labels[0]!r}" if labels else "no class"
        remedy = "give all of them by classes=" if streamed else "expected 2 or more"
        refuse(
            {f"y has classes of type {kind}; expected text, whole numbers or booleans": True for kind in wrong}
            | {f"y has {found}; {remedy}": len(labels) < 2}
        )
        self._target = Target.of_classes(names or ("y",), labels, None if self.family == "auto" else self.family)

    def _check_known(self, y: Any, learned: Any) -> None:
        with _one_kind_of_error(), np.errstate(all="ignore"):
            check_classification_targets(y)
        if new := np.setdiff1d(learned, self.classes_).tolist():
            raise TrainingError(f"y has class {new[0]!r}, which the first rows lack; give all by classes=")

    def decision_function(self, X: Any, budget: float | None = None, *, policy: Policy = "prefix") -> Float:
        """Return scores (n, classes), or for two classes (n,), positive if the second is more likely: its log-odds."""
        scores = self._answer(X, budget, policy).scores
        return scores if scores.shape[1] > 1 else scores[:, 0] - self._target.family.even_score

    def _family(self) -> FamilyName:
        return self._target.family.label if self.family == "auto" else self.family

    def _likely(self, scores: Float) -> Float:
        return self._target.family.probabilities(scores)

    def predict_proba(self, X: Any, budget: float | None = None, *, policy: Policy = "prefix") -> Float:
        """Return probabilities (n, classes) by the longest prefix within `budget`."""
        return self._likely(self._answer(X, budget, policy).scores)

    def predict(self, X: Any, budget: float | None = None, *, policy: Policy = "prefix", explain: bool = False) -> Any:
        """Return the most likely classes (n,) by the longest prefix within `budget`; all steps by default.

        The policy "best" answers by a shorter prefix where its cross-validated error is less by one standard error.
        With `explain`, return them and their `Contributions`: what each column and each group adds to the scores, as
        arrays (n, classes), or (n,) for two classes. Least squares scores a class by its estimate, else by log-odds.
        """
        answer = self._answer(X, budget, policy, explain=explain)
        classes = self.classes_[self._likely(answer.scores).argmax(axis=1)]
        return (classes, answer.contributions) if explain else classes

    def score(
        self, X: Any, y: Any, sample_weight: Any = None, *, budget: float | None = None, policy: Policy = "prefix"
    ) -> float:
        """Return the accuracy of the longest prefix within `budget`; all steps by default."""
        return float(
            self._metric(_target_values(y), self.predict(X, budget, policy=policy), sample_weight=sample_weight)
        )

    def staged_predict_proba(self, X: Any) -> Iterator[Float]:
        """Yield probabilities by every prefix: steps + 1 arrays, the base rates first."""
        yield from map(self._likely, self._staged_scores(X))

    def staged_predict(self, X: Any) -> Iterator[Any]:
        """Yield classes by every prefix: steps + 1 arrays."""
        yield from (self.classes_[likely.argmax(axis=1)] for likely in self.staged_predict_proba(X))
