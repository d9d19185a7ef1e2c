"""`anytime predict`: score the rows of a table by a model, within a budget."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from anytime._files import ENDING, check_writable, cleanup_on
from anytime.cli.console import progress, remark
from anytime.cli.options import Data, ModelFile, TableFormat, spread
from anytime.data.formats.writing import WRITABLE, types_to_write, write_table
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
        Path,
        typer.Option(
            help="Write the predictions to this table (*.csv, *.csv.gz, *.tsv, *.parquet, *.arrow, *.feather)."
        ),
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
        list[str] | None,
        typer.Option(help="Keep this column of the table unchanged, such as an id; repeat for several."),
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
    if proba and loaded.manifest.classes is None:
        raise ValuesError(f"--proba requires a model of classes; {loaded.name!r} predicts {loaded.manifest.task}")
    if interval and loaded.manifest.calibration is None:
        raise ValuesError(
            f"--interval requires a calibrated model; train {loaded.name!r} with --calibrate TABLE of held-out rows"
        )
    for path, what in ((out, "the table itself"), (out.parent, "in the folder that is the table")):
        if data.exists() and path.exists() and data.samefile(path):
            raise TableError(f"--out is {str(out)!r}, {what}; name another file")
    table = tables.open(data)
    kept = tuple(dict.fromkeys(keep or ()))
    table.require(kept)
    scorer = TableScorer.of(loaded, table, budget=budget, prefix=prefix, policy=policy, explain=explain)
    last, imputed = deque[TableAnswer](maxlen=1), dict[str, None]()

    def batches(advance: Callable[[int], None]) -> Iterator[Mapping[str, Any]]:
        for answer, batch in scorer.answers(kept):
            predicted = answer.columns(proba=proba, interval=interval)
            if both := [name for name in predicted if name in kept]:
                raise TableError(f"--keep {both[0]}: a column of the predictions has this name; rename the table's")
            yield {name: batch.columns[name] for name in kept} | predicted
            last.append(answer)
            imputed.update(dict.fromkeys(answer.imputed))
            advance(batch.rows)

    with cleanup_on(*ENDING), progress(f"predicting {data.name}", table.known_rows) as advance:
        write_table(out, batches(advance), types_to_write(table, kept, out))
    for line in _remarks(loaded, last[0], [name for name in imputed if name not in last[0].absent]):
        remark(line)
    remark(f"wrote {out}")


def _remarks(model: Model, answer: TableAnswer, imputed: list[str]) -> Iterator[str]:
    if answer.groups:
        prefix = f"step {answer.prefix} of {answer.steps}"
        by = "the optimum of the table's groups" if answer.policy == "arrived" else prefix
        yield f"predicted by {by}: {listed(answer.groups, 10)} (cost {model.groups.amount(answer.cost)} a row)"
    if answer.note:
        yield answer.note
    if answer.contributions is not None and answer.probabilities is not None and answer.scores.shape[1] == 1:
        yield f"contributions add to the score of {answer.names[-1]!r}"
    if answer.missing:
        yield f"missing: {listed(answer.missing, 10)} (the table has none of their columns)"
    used = {column for name in answer.groups for column in model.places[name].features}
    if lacking := [name for name in answer.absent if name in used]:
        yield f"imputed: {listed(map(clipped, lacking), 10)} (the table lacks these columns)"
    if imputed:
        yield f"imputed: {listed(map(clipped, imputed), 10)} (missing or unknown values in some rows)"
