"""mlxtend's forward selection of feature groups compared with ours: the same selection, by fits on rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.peers.environments import Absent, ours, prepared
from benchmarks.peers.measurements import FailedError, Spread, digits, interleave, ratios
from benchmarks.peers.problems import make_problem
from benchmarks.peers.section import Finding, Sheet, cell
from benchmarks.peers.workers import Process

__all__ = ["forward_selection"]

ROWS, COLUMNS, SIZE = 2_000, 100, 5
MINE, THEIRS = "ours from rows, cost-blind", "mlxtend SequentialFeatureSelector with feature_groups"


def forward_selection(folder: Path, rounds: int) -> tuple[list[Finding], Sheet]:
    """Compare on a small problem, since mlxtend fits all rows for each candidate at each step."""
    small = make_problem(ROWS, COLUMNS, SIZE, folder / "small", seed=3)
    caption = f"Forward selection of groups without costs; {small.name}, 2 threads"
    columns = ("", "seconds", "ours / theirs")
    environment = prepared("mlxtend")
    if isinstance(environment, Absent):
        return [], Sheet(caption, columns, ())
    arrays = ("X", "y", "S", "q", "sizes", "costs", "rows")
    options = {"threads": 2, "cost_blind": True}
    with (
        Process(ours(), "with_ours", 2, folder / "ours.log") as mine,
        Process(environment, "with_mlxtend", 2, folder / "mlxtend.log") as theirs,
    ):
        try:
            mine.load(small.folder, arrays)
            theirs.load(small.folder, arrays)
            own = mine.arrays("rows", options)[1]
            other = theirs.arrays("rows", options)[1]
        except FailedError as error:
            return [Finding("absent", f"mlxtend: {error}")], Sheet(caption, columns, ())
        measures = {MINE: partial(_seconds, mine, options), THEIRS: partial(_seconds, theirs, options)}
        measured = interleave(measures, rounds)
    ratio = ratios(measured.values[MINE], measured.values[THEIRS])
    equal = int(np.sum(own["order"] == other["order"]))
    difference = float(np.abs(own["explained"][1:] - other["explained"]).max())
    factor = f"mlxtend takes {digits(1 / ratio.median)} times as long"
    steps = f"{equal} of {len(own['order'])} steps equal, F differs by {difference:.1e}"
    text = f"{factor} for the same selection ({caption}): {steps}"
    rows = (
        (MINE, cell(Spread.of(measured.values[MINE])), None),
        (THEIRS, cell(Spread.of(measured.values[THEIRS])), cell(ratio)),
    )
    return [Finding("ahead" if ratio.median < 1 else "behind", text)], Sheet(caption, columns, rows)


def _seconds(process: Process, options: Mapping[str, object]) -> float:
    return float(process.run("rows", options)["seconds"])
