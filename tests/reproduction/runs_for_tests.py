"""Runs that leave a trace, in a module of its own so that other processes find them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anytime_reproduction.experiment import Experiment, Result, Run, Section, Setting

__all__ = ["assert_complete", "executed", "experiment", "failing", "traced", "writing"]


def traced(setting: Setting, traces: str, number: int) -> Result:
    """Leave a trace, return a number that depends on the setting."""
    (Path(traces) / f"{number}-{uuid.uuid4().hex}").write_text(str(os.getpid()), encoding="utf-8")
    return {"square": number**2, "seed": setting.seed}


def failing(setting: Setting, traces: str, number: int) -> Result:
    """Fail, unless the cause is fixed."""
    if not (Path(traces) / "fixed").exists():
        raise ZeroDivisionError("nothing to divide by")
    return traced(setting, traces, number)


def writing(setting: Setting, traces: str, number: int) -> Result:
    """Say which runs were done before this one, and whether another is on its way now."""
    busy = Path(traces) / "busy"
    alone = not busy.exists()
    busy.touch()
    before = sorted(int(path.name.split("-")[0]) for path in Path(traces).glob("*-*"))
    traced(setting, traces, number)
    busy.unlink()
    return {"alone": alone, "before": before}


def assert_complete(section: Section) -> None:
    """Assert that the rows of each table have a cell for each column, and that each figure draws something."""
    assert all(len(row) == len(table.columns) for table in section.tables for row in table.rows)
    assert all("<path" in chart.svg() for figure in section.figures for chart in figure.charts)


def executed(traces: Path) -> list[int]:
    """Numbers of the runs that have left a trace, in order, each as often as it ran."""
    return sorted(int(path.name.split("-")[0]) for path in traces.glob("*-*"))


def experiment(traces: Path, numbers: Sequence[int] = (1, 2, 3), **special: Mapping[str, Any]) -> Experiment:
    """An experiment of traced runs, run2 and so on; `special` replaces fields of one of them."""
    runs = []
    for number in numbers:
        fields = {"name": f"run{number}", "work": traced, "arguments": {"traces": str(traces), "number": number}}
        runs.append(Run(**{**fields, **special.get(f"run{number}", {})}))
    return Experiment("squares", "Squares", "", lambda _: runs, lambda *_: Section(()))
