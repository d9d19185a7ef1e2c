"""`anytime groups`: draft a groups file from a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anytime._files import check_writable
from anytime.cli import options
from anytime.cli.console import print_results, remark, working
from anytime.data.draft import drafted
from anytime.errors import GroupsError
from anytime.groups import write_text


@options.spread
def groups(
    data: options.Data,
    target: options.TargetColumns,
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
    others = [name for name in (query, weights) if name is not None]
    with working(f"reading a sample of {data.name}"):
        draft = drafted(
            table,
            target,
            others=others,
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
    print_results(
        f"wrote {out}: {len(draft.groups.features)} columns in {len(draft.groups)} groups, "
        f"{len(draft.left_out)} left out",
        written=[out],
    )
