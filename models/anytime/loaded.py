"""A model from a file: it opens predictions, scores tables, and says what it would lose at other costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from anytime.errors import ValuesError
from anytime.inference.prediction import Prediction
from anytime.model.file import read_model
from anytime.model.model import Model
from anytime.types import Policy

if TYPE_CHECKING:
    from anytime.evaluation.report import Picture
    from anytime.inference.sharing import Sharing
    from anytime.inference.tables import TableAnswer
    from anytime.training.resequencing import WhatIf


class TableOptions(TypedDict, total=False):
    """Options of a table's answer.

    Attributes
    ----------
    budget : float | None
        Maximum cost of the groups used, per row, in the model's cost unit; None, the default, is no limit.
    prefix : int | None
        Number of steps to use, instead of a budget.
    policy : Policy
        "prefix", the default, "best" or "arrived", as in `Prediction.answer`.
    explain : bool
        Whether to have the `Contributions`, as arrays (rows,) or (rows, P).
    """

    budget: float | None
    prefix: int | None
    policy: Policy
    explain: bool


class LoadedModel(Model):
    """A model that opens predictions and scores tables; `load` returns one.

    A table is a path (Parquet, CSV, Arrow, svmlight, a folder of them), a frame of pandas, polars or any library
    that gives an Arrow stream, an array or a sparse matrix, a list of rows as dicts, or what `open_table` returns. The
    columns of an array are x0, x1, ..., or in the order of the groups.
    """

    @classmethod
    def of(cls, model: Model) -> Self:
        """Return a trained model as one that opens predictions, without copying."""
        return cls(model.manifest, model.prefixes, model.moments, model.curvatures)

    def open(self, rows: int | None = 1) -> Prediction:
        """Return a new prediction for a number of rows; None takes the number of rows of the first values."""
        return Prediction(self, rows)

    def what_if(
        self,
        *,
        costs: Mapping[str, float | str] = {},
        without: str | Iterable[str] = (),
        budgets: float | Iterable[float] = (),
        data: Any = None,
        weights: str | None = None,
    ) -> WhatIf:
        """Return this model next to itself at other costs or without some groups; see `anytime.training.resequencing`.

        `data` is a table with the target (see the class), which families other than "gaussian" are fitted on again, and
        `weights` its column of weights, if it has one.
        """
        from anytime.inference.tables import as_table  # noqa: PLC0415  (a server reads no tables, and trains nothing)
        from anytime.training.resequencing import what_if  # noqa: PLC0415

        if data is None and weights is not None:
            raise ValuesError(f"weights is {weights!r}, but there is no table; expected data with this column")
        return what_if(
            self,
            costs=costs,
            without=without,
            budgets=budgets,
            data=None if data is None else as_table(data, self.groups),
            weights=weights,
        )

    def sharing(self, prefix: int | None = None) -> tuple[Sharing, ...]:
        """Return what each group of a prefix, all steps by default, contributes alone, the strongest first.

        Contributions of correlated groups share what they add, or cancel. Empty without moments or second derivatives.

        Raises
        ------
        ValuesError
            There is no such prefix.
        """
        from anytime.inference.sharing import group_sharing  # noqa: PLC0415  (a server measures none)

        if prefix is not None and not 0 <= prefix <= self.steps:
            raise ValuesError(f"prefix is {prefix}; expected 0 to {self.steps}, the steps of model {self.name!r}")
        return group_sharing(self, prefix)

    def plot(self, test: Any = None, *, weights: str | None = None) -> Picture:
        """Return the picture of what each prefix explains against its cost, as HTML with SVG.

        Parameters
        ----------
        test
            A table with the target (see the class), whose values are drawn with their standard errors.
        weights : str | None
            Its column of weights, if it has one.

        Raises
        ------
        TableError
            The table is unreadable, or lacks columns.
        ValuesError
            Weights are given without a table.
        """
        from anytime.evaluation.report import curve_picture  # noqa: PLC0415  (a server draws none)

        return curve_picture(self, test, weights)

    def plot_shapes(self, *, prefix: int | None = None, top: int = 12) -> Picture:
        """Return the pictures of what the `top` strongest columns of a prefix add to the scores, as HTML with SVG.

        Raises
        ------
        ValuesError
            There is no such prefix, or it has no column; or `top` is below 1.
        """
        from anytime.evaluation.report import shapes_picture  # noqa: PLC0415

        return shapes_picture(self, prefix, top)

    def plot_calibration(self, test: Any, *, weights: str | None = None) -> Picture:
        """Return the diagram of predicted and observed shares on a test table, with a verdict, as HTML with SVG.

        A model of numbers has means of predictions and of the target instead. `weights` is the column of the weights of
        the rows, if the table has one.

        Raises
        ------
        TableError
            The table is unreadable, or lacks columns.
        """
        from anytime.evaluation.report import calibration_picture  # noqa: PLC0415

        return calibration_picture(self, test, weights)

    def predict(self, table: Any, **options: Unpack[TableOptions]) -> Any:
        """Return the predictions (rows,) of a table, or (rows, P) of several responses; with `explain`, a tuple.

        Only the columns of the prefix are read. A group without any of its columns in the table is missing: the longest
        complete prefix answers, or with "arrived" the optimum of the other groups. A lacking column of another group is
        a missing value in every row. `answer` reports both.

        Parameters
        ----------
        table
            See the class.
        options : Unpack[TableOptions]
            Budget, prefix, policy and explain, all optional; see `TableOptions`.

        Raises
        ------
        ValuesError
            The budget, the prefix or the policy is invalid.
        TableError
            The table is unreadable, lacks every column of the first step, or has a value that does not fit its column.
        """
        answer = self.answer(table, **options)
        return (answer.prediction, answer.contributions) if options.get("explain") else answer.prediction

    def predict_proba(self, table: Any, **options: Unpack[TableOptions]) -> Any:
        """Return the probabilities (rows, classes) of a table's rows, as `predict`; the model must have classes."""
        if self.manifest.classes is None:
            raise ValuesError(f"model {self.name!r} predicts numbers; probabilities require a model of classes")
        answer = self.answer(table, **options)
        return (answer.probabilities, answer.contributions) if options.get("explain") else answer.probabilities

    def answer(self, table: Any, **options: Unpack[TableOptions]) -> TableAnswer:
        """Return predictions of all rows of a table with what they are based on; arguments and errors as `predict`."""
        from anytime.inference.tables import joined  # noqa: PLC0415  (a server reads no tables)

        return joined(list(self.answers(table, **options)))

    def answers(self, table: Any, **options: Unpack[TableOptions]) -> Iterator[TableAnswer]:
        """Yield the answers of `answer` batch by batch, so that memory does not grow with the table."""
        from anytime.inference.tables import TableScorer, as_table  # noqa: PLC0415

        return (answer for answer, _ in TableScorer.of(self, as_table(table, self.groups), **options).answers())


def load(path: str | Path) -> LoadedModel:
    """Read a model file and validate all of its content.

    Raises
    ------
    ArtifactError
        The file does not exist, is not a model file, has a different format, is truncated or was modified.
    """
    return LoadedModel(*read_model(Path(path)))
