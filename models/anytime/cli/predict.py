"""`anytime predict`: score the rows of a table by a model, within a budget."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from anytime._files import ENDING, check_writable, cleanup_on
from anytime.cli.console import progress, remark
from anytime.cli.options import Data, ModelFile, TableFormat, spread
from anytime.data.formats import Batch, ReadAs, Table
from anytime.data.formats.csv import CsvTable
from anytime.data.formats.writing import WRITABLE, TableWriter
from anytime.errors import TableError, ValuesError, clipped, listed
from anytime.inference.tables import TableAnswer, TableScorer
from anytime.loaded import load
from anytime.model.model import Model
from anytime.types import Policy


@spread
def predict(
    model: ModelFile,
    data: Data,
    out: Annotated[
        Path, typer.Option(help="Write the predictions to this table (*.csv, *.csv.gz, *.parquet, *.arrow, *.feather).")
    ],
    budget: Annotated[
        float | None, typer.Option(help="Use groups of at most this cost per row, in the model's cost unit.")
    ] = None,
    prefix: Annotated[int | None, typer.Option(help="Use this many steps, instead of a budget.")] = None,
    policy: Annotated[
        Policy,
        typer.Option(
            help="Use the longest complete prefix; that or a shorter one of less cross-validated error (best); or "
            "every group that the table has (arrived)."
        ),
    ] = "prefix",
    proba: Annotated[bool, typer.Option("--proba", help="Add the probability of each class.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Add the contribution of each group to the score, and its base.")
    ] = False,
    interval: Annotated[
        bool, typer.Option("--interval", help="Add the interval, or the set of classes, of a calibrated model.")
    ] = False,
    keep: Annotated[
        list[str] | None, typer.Option(help="Keep this column of the table, such as an id; repeat for several.")
    ] = None,
    *,
    tables: TableFormat,
) -> None:
    """Predict every row of a table by the groups within a budget; only their columns are read.

    A group without any column in the table is missing: the longest complete prefix answers, or with `--policy arrived`
    the optimum of the other groups. A table of any size takes the same memory.

    Example: anytime predict model.safetensors rows.parquet --budget 10 --keep id --out predictions.csv
    """
    check_writable(out, WRITABLE)
    loaded = load(model)
    columns = OutputColumns(loaded, tuple(keep or ()), proba=proba, interval=interval)
    for path, what in ((out, "the table itself"), (out.parent, "in the folder that is the table")):
        if data.exists() and path.exists() and data.samefile(path):
            raise TableError(f"--out is {str(out)!r}, {what}; name another file")
    table = tables.open(data)
    kept_as = _kept_as(table, columns.keep, out)
    scorer = TableScorer.of(loaded, table, budget=budget, prefix=prefix, policy=policy, explain=explain)
    last, imputed = None, dict[str, None]()
    shown = progress(f"predicting {data.name}", table.known_rows)
    with cleanup_on(*ENDING), shown as advance, TableWriter(out) as writer:
        for answer, batch in scorer.answers(columns.keep, kept_as):
            writer.add(columns.of(answer, batch))
            imputed |= dict.fromkeys(answer.imputed)
            last = answer
            advance(batch.rows)
    assert last is not None  # noqa: S101  (a table has rows)
    for line in _remarks(loaded, last, [name for name in imputed if name not in last.absent]):
        remark(line)
    remark(f"wrote {out}")


class OutputColumns:
    """The columns to write, by the options of the command; raises where the model does not have one of them."""

    def __init__(self, model: Model, keep: tuple[str, ...], *, proba: bool, interval: bool) -> None:
        manifest = model.manifest
        if proba and manifest.classes is None:
            raise ValuesError(f"--proba requires a model of classes; {model.name!r} predicts {manifest.task}")
        if interval and manifest.calibration is None:
            raise ValuesError(
                f"--interval requires a calibrated model; train {model.name!r} with --calibrate TABLE of held-out rows"
            )
        self.keep = tuple(dict.fromkeys(keep))
        self._proba, self._interval = proba, interval

    def of(self, answer: TableAnswer, batch: Batch) -> dict[str, Any]:
        """Return the columns of a batch by name, those of the table first."""
        found: dict[str, Any] = {name: batch.column(name) for name in self.keep}
        for name, values in answer.columns(proba=self._proba, interval=self._interval).items():
            if name in found:
                raise TableError(f"--keep {name}: a column of the predictions has this name; rename the table's")
            found[name] = values
        return found


def _kept_as(table: Table, keep: tuple[str, ...], out: Path) -> Mapping[str, ReadAs]:
    """Return what kept columns are read as: cells from CSV to CSV, and dates, are copied as text."""
    if isinstance(table, CsvTable) and out.suffix.lower() in (".csv", ".gz"):
        table.types((), {})
        return dict.fromkeys(keep, "text")
    return {name: "text" if kind == "date" else kind for name, kind in table.types(keep).items()} if keep else {}


def _remarks(model: Model, answer: TableAnswer, imputed: list[str]) -> list[str]:
    used = f"{listed(answer.groups, 10)} (cost {model.groups.amount(answer.cost)} a row)"
    of = (
        "the optimum of the table's groups" if answer.policy == "arrived" else f"step {answer.prefix} of {answer.steps}"
    )
    lines = [f"predicted by {of}: {used}"] if answer.groups else []
    if answer.note:
        lines.append(answer.note)
    if answer.contributions is not None and answer.probabilities is not None and answer.scores.shape[1] == 1:
        lines.append(f"contributions add to the score of {answer.names[-1]!r}")
    if answer.missing:
        lines.append(f"missing: {listed(answer.missing, 10)} (the table has none of their columns)")
    lacking = [name for name in answer.absent if name in _columns_of(model, answer.groups)]
    if lacking:
        lines.append(f"imputed: {listed(map(clipped, lacking), 10)} (the table lacks these columns)")
    if imputed:
        lines.append(f"imputed: {listed(map(clipped, imputed), 10)} (missing or unknown values in some rows)")
    return lines


def _columns_of(model: Model, groups: tuple[str, ...]) -> set[str]:
    return {column for name in groups for column in model.places[name].features}
