"""`anytime groups`: draft a groups file from a table. `anytime basis`: one with the basis of every column, to share."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from anytime._files import check_writable
from anytime.cli import options
from anytime.cli.console import Done, remark, working
from anytime.cli.train import open_groups
from anytime.data.dataset import Dataset
from anytime.data.draft import drafted
from anytime.data.survey import surveyed
from anytime.errors import GroupsError, listed
from anytime.features.bases import MIN_LEVEL_ROWS
from anytime.features.expansion import Expansion
from anytime.features.learning import checked_clamp, checked_level_rows
from anytime.groups import SUFFIXES, write_groups, write_text
from anytime.target import Target


@options.spread
def groups(
    data: options.Data,
    target: Annotated[list[str], typer.Option(help="Predict this column; repeat for several responses.")],
    out: Annotated[Path, typer.Option(help="Write the draft to this file (*.yaml).")],
    by_prefix: Annotated[
        str | None,
        typer.Option(
            help="Order columns into groups by the part of their names before this mark, such as '_'.", metavar="MARK"
        ),
    ] = None,
    cost: options.Costs = None,
    query: Annotated[str | None, typer.Option(help="Leave out this column, the query of each row.")] = None,
    weights: Annotated[str | None, typer.Option(help="Leave out this column, the weights of the rows.")] = None,
    text: options.TextColumns = None,
    number: options.NumberColumns = None,
    *,
    tables: options.TableFormat,
) -> None:
    """Write a groups file with comments to edit: what each column holds, and which columns are left out and why.

    Each column is a group at cost 1, unless --by-prefix and --cost state otherwise.

    Example: anytime groups train.csv --target target --by-prefix _ --cost hog=2.5ms --out groups.yaml
    """
    check_writable(out, (".yaml", ".yml"))
    if out.exists():
        raise GroupsError(f"{str(out)!r} exists, perhaps with your costs; remove it, or name another file")
    table = tables.open(data)
    with working(f"reading a sample of {data.name}"):
        draft = drafted(
            table,
            target,
            others=[name for name in (query, weights) if name is not None],
            stated=options.stated_types(text, number),
            by_prefix=by_prefix,
            costs=options.parsed_costs(cost),
        )
    head = (
        f"{data.name}, {draft.rows:,} rows, target {', '.join(target)}; set costs, and join columns computed together"
    )
    write_text(draft.text(" ".join(head.split())), out)
    for name, why in draft.left_out.items():
        remark(f"left out: {name!r} ({why})")
    Done([out]).print(
        f"wrote {out}: {len(draft.groups.features)} columns in {len(draft.groups)} groups, "
        f"{len(draft.left_out)} left out"
    )


@options.spread
def basis(
    data: options.Data,
    out: Annotated[Path, typer.Option(help="Write the groups with their bases to this file (JSON or YAML).")],
    groups: options.MaybeGroups = None,
    basis: options.Basis = None,
    clamp: options.ClampAt = None,
    min_level_rows: options.MinLevelRows = str(MIN_LEVEL_ROWS),
    target: Annotated[
        list[str] | None, typer.Option(help="Learn only from rows with a value in this column; repeat for several.")
    ] = None,
    text: options.TextColumns = None,
    number: options.NumberColumns = None,
    seed: options.Seed = 0,
    *,
    tables: options.TableFormat,
) -> None:
    """Learn the bases of the columns of a table, and write a groups file that states them.

    The file states the knots, levels and range of every column, and whether missing values have an indicator. `train`
    and `moments` learn none of them again, so the moments of several tables may be added.

    Example: anytime basis train.csv --groups groups.yaml --basis hinge --out bases.yaml
    """
    check_writable(out, SUFFIXES)
    quantile = checked_clamp(options.number_or_word(clamp))
    least = checked_level_rows(options.number_or_word(min_level_rows, int))
    options.checked_fixed(clamp, min_level_rows)
    table = tables.open(data)
    types = options.stated_types(text, number)
    known = open_groups(table, groups, target or ())
    if ignored := Dataset(table, known, Target("regression", tuple(target or ()))).check():
        remark(f"ignored: {listed(ignored, 10)} (in no group)")
    with working(f"reading a sample of {data.name}"):
        written, found = surveyed(
            table,
            known,
            target or (),
            stated=types,
            option=basis,
            clamp=quantile,
            min_level_rows=least,
            drop_missing=True,
            seed=seed,
            complete=True,
        )
    for each in (*found.warnings, *found.decisions):
        remark(each)
    write_groups(written, out)
    counts = Counter(str(each.basis).partition(":")[0] for each in written.bases.values())
    kinds = ", ".join(f"{count} {name}" for name, count in counts.items())
    terms = Expansion.of(written).size
    Done([out]).print(f"wrote {out}: {len(written.features)} columns ({kinds}) become {terms} terms")
