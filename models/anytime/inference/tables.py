"""Predictions for the rows of a table, in batches of bounded memory.

Every batch is an open prediction of many rows: the groups whose columns the table has are added, and the best scores
are those of an `Answer`. All rows of a table have the same groups, so one prefix or one set of groups answers for all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anytime.data.dataset import array_columns, check_finite, feature_matrix
from anytime.data.formats import ROWS, Batch, ReadAs, Table, open_table, table_of
from anytime.data.formats.arrow import read_as
from anytime.data.formats.memory import arrow_array, is_frame
from anytime.errors import TableError, ValuesError, listed
from anytime.groups import FeatureGroups, joined_names
from anytime.inference.conformal import covering, model_outputs
from anytime.inference.contributions import Contributions
from anytime.inference.prediction import Prediction
from anytime.inference.sharing import Sharing, cancelling, group_sharing
from anytime.inference.subsets import arrived_model, checked_policy, usable
from anytime.model.model import Expected, Model, checked_budget
from anytime.moments.accumulate import dense
from anytime.tabulated import Series, Tabulated
from anytime.types import Bool, Float, Policy

MAX_VALUES = 2**21
"""Raw values and terms of a batch, 16 MiB: of smaller ones, most of the time goes to each group of each batch."""

SHOWN = 20
"""Rows of an answer that a notebook shows."""


@dataclass(frozen=True, eq=False, repr=False)
class TableAnswer:
    """Predictions for rows of a table, and what they are based on; axis 0 of each array is the rows.

    Attributes
    ----------
    prediction : NDArray[Any]
        (rows,) numbers or classes; (rows, P) for several responses.
    probabilities : Float | None
        (rows, classes) in the order of the model's classes; None for numbers.
    scores : Float
        (rows, P) before the inverse link.
    interval : Float | None
        (rows, 2) low and high, or (rows, P, 2), if numbers or counts are calibrated; else None.
    prediction_set : Bool | None
        (rows, classes) which classes are likely enough, if classes are calibrated; else None.
    contributions : Contributions | None
        Arrays (rows,) or (rows, P) for each group and column, if requested; else None.
    sharing : tuple[Sharing, ...]
        With contributions, what each group adds alone over the training rows, the strongest first; else empty. `note`
        names groups whose contributions cancel.
    prefix, steps, groups, cost, budget, policy, missing, expected, note
        As in `Answer`, the same for all rows.
    imputed, clamped : tuple[str, ...]
        Columns in which a value of some row was missing or of an unknown level, or outside its range.
    names : tuple[str, ...]
        Of the classes or the responses.
    absent : tuple[str, ...]
        Columns of groups in `missing`, and others of the budget's prefix, that the table lacks.
    """

    prediction: NDArray[Any]
    probabilities: Float | None
    scores: Float
    interval: Float | None
    prediction_set: Bool | None
    contributions: Contributions | None
    prefix: int
    steps: int
    groups: tuple[str, ...]
    cost: float
    budget: float | None
    policy: Policy
    missing: tuple[str, ...]
    absent: tuple[str, ...]
    imputed: tuple[str, ...]
    clamped: tuple[str, ...]
    expected: Expected
    note: str | None
    names: tuple[str, ...]
    sharing: tuple[Sharing, ...] = ()

    def __len__(self) -> int:
        return len(self.scores)

    def columns(self, *, proba: bool = True, interval: bool | None = None) -> dict[str, NDArray[Any]]:
        """Return the predictions as columns (rows,) by name, and the contributions if there are some.

        Parameters
        ----------
        proba : bool
            Whether the probabilities of classes are among them.
        interval : bool | None
            Whether intervals or sets of classes are among them, missing where the answer has none; None is whether it
            has some. Labels of a set are joined by "|", and are a JSON list in a model with an empty label or one with
            "|".
        """
        is_of_classes, rows = self.probabilities is not None, len(self)
        ends = [""] if is_of_classes or len(self.names) == 1 else [f"_{name}" for name in self.names]
        found: dict[str, NDArray[Any]] = {}

        def add(name: str, values: NDArray[Any], ends: Sequence[str] = ends) -> None:
            found.update(
                {f"{name}{end}": column for end, column in zip(ends, values.reshape(rows, len(ends)).T, strict=True)}
            )

        add("prediction", self.prediction)
        if proba and self.probabilities is not None:
            add("probability", self.probabilities, [f"_{name}" for name in self.names])
        if interval or (interval is None and (self.interval is not None or self.prediction_set is not None)):
            if is_of_classes:
                labels, members = np.array(self.names, dtype=object), self.prediction_set
                plain = all(name and "|" not in name for name in self.names)
                write = "|".join if plain else json.JSONEncoder(ensure_ascii=False).encode
                sets = [None] * rows if members is None else [write(labels[row].tolist()) for row in members]
                add("prediction_set", np.array(sets, dtype=object))
            else:
                boxes = np.full((rows, len(ends), 2), np.nan) if self.interval is None else self.interval
                for side, name in enumerate(("low", "high")):
                    add(name, boxes[..., side])
        if self.contributions is not None:
            P = self.scores.shape[1]
            scores = [[name] for name in self.names[-P:]] if P > 1 else [[]]
            add("base", np.tile(self.contributions.intercept, (rows, 1)), ["_".join(["", *score]) for score in scores])
            names = joined_names([(group, *score) for group in self.contributions.groups for score in scores], "_")
            parts = (part for values in self.contributions.groups.values() for part in values.reshape(rows, P).T)
            found |= {f"contribution_{name}": part for name, part in zip(names, parts, strict=True)}
        return found

    def to_frame(self) -> Any:
        """Return a row for each prediction, with probabilities, intervals and contributions where there are some."""
        return Tabulated.of(*(Series(name, values) for name, values in self.columns().items())).frame()

    def _repr_html_(self) -> str:
        more = f", the first {SHOWN}" * (len(self) > SHOWN)
        used = ", ".join(self.groups) or "no group (the base rate)"
        columns = (Series(name, values[:SHOWN]) for name, values in self.columns().items())
        return Tabulated.of(*columns, caption=f"{len(self)} rows{more}: {used}; cost {self.cost:g}")._repr_html_()

    def __repr__(self) -> str:
        return f"<TableAnswer: {len(self)} rows by prefix {self.prefix} of {self.steps}, cost {self.cost:g}>"


def joined(answers: Sequence[TableAnswer], rows: slice = slice(None)) -> TableAnswer:
    """Return the answer for some rows, all by default, of several batches of one table, at least one."""
    first = answers[0]
    if len(answers) == 1 and rows == slice(None):
        return first

    found: dict[str, Any] = {
        name: np.concatenate([getattr(each, name) for each in answers])[rows]
        for name in ("prediction", "probabilities", "scores", "interval", "prediction_set")
        if getattr(first, name) is not None
    }
    for name in ("imputed", "clamped"):
        marked = dict.fromkeys(column for each in answers for column in getattr(each, name))
        found[name] = tuple(marked) if len(found["scores"]) else ()
    if first.contributions is not None:
        parts = {
            part: {
                name: np.concatenate([getattr(each.contributions, part)[name] for each in answers])[rows]
                for name in getattr(first.contributions, part)
            }
            for part in ("groups", "features")
        }
        found["contributions"] = replace(first.contributions, **parts)
    return replace(first, **found)


def as_table(data: Any, groups: FeatureGroups) -> Table:
    """Return data of any type that `LoadedModel` accepts as a table; raise TableError for another type."""
    if isinstance(data, Table):
        return data
    if isinstance(data, str | Path):
        return open_table(data)
    if is_frame(data, groups.features):
        return table_of("the table", data)
    if isinstance(data, Mapping) and not hasattr(data, "tocsr"):  # a sparse matrix may be a dict
        data = [data]
    if isinstance(data, list | tuple) and data and all(isinstance(row, Mapping) for row in data):
        return _table_of_rows(data)
    try:
        data = data if hasattr(data, "dtype") else np.asarray(data)
    except ValueError as error:
        raise TableError(f"the table is a list of rows of different lengths ({error}); expected a matrix") from error
    data = np.empty((0, len(groups.features))) if data.shape == (0,) else data  # a list of no rows
    if data.ndim != 2:
        raise TableError(f"the table has shape {data.shape}; expected (rows, columns)")
    return table_of("the table", data, array_columns(data.shape[1], groups))


def _table_of_rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return rows as dicts as a table; what a row lacks is missing."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = np.empty((len(rows), len(names)), dtype=object)
    for i, row in enumerate(rows):
        for j, name in enumerate(names):
            cells[i, j] = row.get(name)
    return table_of("the table", cells, list(map(str, names)))


@dataclass(frozen=True)
class TableScorer:
    """What is read of a table, and how its rows are scored: everything that is decided before the first batch.

    Attributes
    ----------
    groups : tuple[str, ...]
        The groups to add to a prediction, in the order of the sequence.
    present : frozenset[str]
        The groups with a column in the table.
    limit : int
        The longest prefix to use.
    """

    model: Model
    table: Table
    budget: float | None
    limit: int
    policy: Policy
    groups: tuple[str, ...]
    present: frozenset[str]
    explain: bool

    @classmethod
    def of(
        cls,
        model: Model,
        table: Table,
        *,
        budget: float | None = None,
        prefix: int | None = None,
        policy: Policy = "prefix",
        explain: bool = False,
    ) -> TableScorer:
        """Check the arguments and the columns of a table; raise as `LoadedModel.predict`."""
        policy = checked_policy(policy)
        if prefix is None:
            budget = checked_budget(budget, model.groups.cost_unit)
            limit = model.affordable(budget, policy)
        else:
            if budget is not None:
                raise ValuesError(f"budget is {budget!r} and prefix is {prefix!r}; expected one of them")
            if isinstance(prefix, bool) or not isinstance(prefix, int | np.integer) or not 0 <= prefix <= model.steps:
                raise ValuesError(f"prefix is {prefix!r}; expected a number of steps, 0 to {model.steps}")
            limit = model.answering(int(prefix), policy)
        places = model.places
        present = frozenset(name for name, place in places.items() if any(map(table.has, place.features)))
        first = next((model.computed[k] for k in range(1, limit + 1) if model.computed[k]), ())
        by_set = policy == "arrived" and model.supports_arrived
        if by_set:
            allowed = present if prefix is None else present & model.needed[limit]
            names = model.order(usable(model, allowed, budget))
        else:
            names = model.computed[next((k for k in range(limit) if not model.needed[k + 1] <= present), limit)]
        if first and present.isdisjoint(places if by_set else first):
            columns = [column for name in first for column in places[name].features]
            others = "--policy arrived uses the other groups"
            remedy = others if model.supports_arrived else model.fallback_reason("arrived")
            raise TableError(
                f"{table.name} lacks {listed(columns)}, every column of the first step of model {model.name!r}"
                + f"; {remedy}" * bool(present)
            )
        return cls(model, table, budget, limit, policy, names, present, explain)

    @property
    def absent(self) -> tuple[str, ...]:
        """Return the columns of the longest affordable prefix that the table lacks, in the order of the sequence."""
        return tuple(
            column
            for name in self.model.computed[self.limit]
            for column in self.model.places[name].features
            if not self.table.has(column)
        )

    def answers(self, keep: Sequence[str] = ()) -> Iterator[tuple[TableAnswer, Batch]]:
        """Yield the answers of the batches, each with its rows: the columns `keep` as the table has them.

        A table without rows has one answer for none.
        """
        features = [
            column for name in self.groups for column in self.model.places[name].features if self.table.has(column)
        ]
        types = self.model.groups.column_types
        stated: dict[str, ReadAs] = {**{name: types[name] for name in features}, **dict.fromkeys(keep, "cells")}
        # The base rate needs no column, but its number of rows.
        read = list(stated) or list(self.table.columns[:1])
        if not stated:
            stated[read[0]] = "cells"
        twice = [name for name in keep if name in features]
        terms = len(self.model.prefixes.mean)
        store = np.empty((0, terms))  # of all batches: fresh pages take longer than the arithmetic
        for batch in self.table.batches(read, max(1, min(ROWS, MAX_VALUES // (terms + len(read)))), types=stated):
            if len(store) != max(batch.rows, 1):
                store = np.empty((max(batch.rows, 1), terms), order="F")
            try:
                used = {
                    name: read_as(
                        name, arrow_array(name, batch.columns[name]), types[name], batch.start, self.table.style
                    )
                    for name in twice
                }
                values = replace(batch, columns={**batch.columns, **used})
                try:
                    answer = self._answer(values, features, store)
                except ValuesError:
                    for name in features:
                        check_finite(values, name, types[name])
                    raise
            except (TableError, ValuesError) as error:
                raise TableError(f"{self.table.name}: {error}") from error
            yield answer if batch.rows else joined([answer], slice(0)), batch

    def _answer(self, batch: Batch, features: Sequence[str], store: Float) -> TableAnswer:
        model, prediction = self.model, Prediction(self.model, max(batch.rows, 1))
        prediction.store_in(store)
        known = {column.name: column.levels for name in self.groups for column in model.places[name].expansion.columns}
        levels = {j: each for j, name in enumerate(features) if (each := known[name]) is not None}
        X, at = feature_matrix(batch, features, levels) if features else None, 0
        if not batch.rows:  # a prediction has a row
            X = np.full((1, len(features)), np.nan)
        for group in self.groups:
            columns = model.places[group].features
            own = list(map(self.table.has, columns))
            assert X is not None  # noqa: S101  (its groups have columns)
            values = np.asarray(dense(X[:, at : at + sum(own)]), dtype=np.float64)  # consecutive, in this order
            at += sum(own)
            if not all(own):
                given, values = values, np.full((len(values), len(columns)), np.nan, order="F")
                values[:, own] = given
            prediction.add_checked(group, prediction.checked(group, values, coded=True))
        best = prediction.best(self.budget, self.policy, arrived_model, limit=self.limit)
        outputs = model_outputs(model, best.scores)
        classes, single = model.manifest.classes, best.scores.shape[1] == 1
        interval, members = covering(model, best.prefix if best.arrived is None else best.arrived.prefix, outputs)
        predicted = outputs[:, 0] if single else outputs
        if classes is not None:
            predicted = np.array(classes)[outputs.argmax(axis=1)]
        contributions = (
            prediction.parts(
                best,
                lambda values: values[..., 0] if single else values,
                lambda base: float(base[0]) if single else base,
            )
            if self.explain
            else None
        )
        sharing = group_sharing(model, best.prefix, best.arrived) if self.explain else ()
        first = f"; the first step costs {model.groups.amount(model.costs[1])}" * (not best.allowed)
        base = "" if best.groups else f"every row has the base rate: no group is used{first}"
        return TableAnswer(
            prediction=predicted,
            probabilities=None if classes is None else outputs,
            scores=best.scores,
            interval=interval,
            prediction_set=members,
            contributions=contributions,
            prefix=best.prefix,
            steps=model.steps,
            groups=best.groups,
            cost=best.cost,
            budget=best.budget,
            policy=best.policy,
            missing=tuple(name for name in model.computed[best.allowed] if name not in self.present),
            absent=self.absent,
            imputed=prediction.imputed(best.groups),
            clamped=prediction.clamped(best.groups),
            expected=best.expected,
            note="; ".join(filter(None, [base, best.note, cancelling(sharing)])) or None,
            names=tuple(map(str, classes or model.manifest.responses)),
            sharing=sharing,
        )
