"""`anytime certify`: how much of the best possible each prefix of a model reaches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anytime.cli.arguments import AsJson, ModelFile, workers
from anytime.cli.output import check_out

__all__ = ["certify"]

SECONDS = 60.0
"""How long it may take unless told."""

Into = Annotated[
    Path | None,
    typer.Option("--out", help="Model file to write; by default the model's own.", show_default=False),
]
Seconds = Annotated[float, typer.Option(help="Time for all prefixes together; more makes bounds tighter.")]
Nodes = Annotated[int | None, typer.Option(help="Nodes that the search for each prefix may bound.", show_default=False)]
Processes = Annotated[int, typer.Option(help="Processes that search; -1 for all cores.")]


def certify(
    model: ModelFile,
    out: Into = None,
    seconds: Seconds = SECONDS,
    nodes: Nodes = None,
    n_jobs: Processes = 1,
    json: AsJson = False,
) -> None:
    """Prove how much of what the best set of groups of the same cost explains each prefix explains, in training."""
    from anytime.artifact import load  # noqa: PLC0415
    from anytime.certifying import NODES, certified, check_certifiable  # noqa: PLC0415
    from anytime.cli.console import print_json, progress, results  # noqa: PLC0415
    from anytime.cli.reporting import certificate_line, certificate_values, steps_table  # noqa: PLC0415

    out = model if out is None else out
    check_out(out)
    loaded = load(model)
    check_certifiable(loaded)
    with progress(f"certifying {loaded.name}", loaded.steps + 1, "prefixes") as told:
        found = certified(
            loaded,
            nodes=NODES if nodes is None else nodes,
            seconds=seconds,
            n_jobs=workers(n_jobs),
            progress=told,
        )
    found = found.save(out)
    if json:
        print_json(certificate_values(found))
        return
    console = results()
    console.print(steps_table(found))
    console.print(certificate_line(found), markup=False)
    console.print(f"wrote {out}", markup=False)
