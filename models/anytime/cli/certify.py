"""`anytime certify`: lower bounds on each prefix's share of the best possible explained variance."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anytime._files import check_writable
from anytime.cli.console import print_json, progress, results
from anytime.cli.options import AsJson, ModelFile, workers
from anytime.cli.report import certificate_line, certificate_values, steps_table
from anytime.errors import TrainingError
from anytime.evaluation.certify import NODES, check_certifiable
from anytime.evaluation.certify import certify as certify_model
from anytime.inference.prediction import load

__all__ = ["certify"]

SECONDS = 60.0
"""Default time limit."""

Into = Annotated[
    Path | None,
    typer.Option("--out", help="Model file to write, named *.safetensors.", show_default=False),
]
InPlace = Annotated[bool, typer.Option("--in-place", help="Write to the model's own file instead of --out.")]
Seconds = Annotated[float, typer.Option(help="Time for all prefixes together; more time gives tighter bounds.")]
Nodes = Annotated[int | None, typer.Option(help="Maximum number of search nodes per prefix.", show_default=False)]
Processes = Annotated[int, typer.Option(help="Processes that search; -1 for all cores.")]


def certify(
    model: ModelFile,
    out: Into = None,
    in_place: InPlace = False,
    seconds: Seconds = SECONDS,
    nodes: Nodes = None,
    n_jobs: Processes = 1,
    json: AsJson = False,
) -> None:
    """Bound each prefix's explained variance as a share of the best set of groups of the same cost, in training."""
    if (out is None) != in_place:
        given = "both --out and --in-place are given" if in_place else "neither --out nor --in-place is given"
        raise TrainingError(f"{given}; give --out M.safetensors to write a new file, or --in-place to overwrite")
    if out is not None and out.exists() and model.exists() and out.samefile(model):
        raise TrainingError(f"--out is {str(out)!r}, the model itself; name another file, or give --in-place instead")
    out = model if out is None else out
    check_writable(out, (".safetensors",))
    loaded = load(model)
    check_certifiable(loaded)
    with progress(f"certifying {loaded.name}", loaded.steps + 1, "prefixes") as advance:
        found = certify_model(
            loaded,
            nodes=NODES if nodes is None else nodes,
            seconds=seconds,
            n_jobs=workers(n_jobs),
            progress=advance,
        )
    found = found.save(out)
    if json:
        print_json(certificate_values(found))
        return
    console = results()
    console.print(steps_table(found))
    console.print(certificate_line(found), markup=False)
    console.print(f"wrote {out}", markup=False)
