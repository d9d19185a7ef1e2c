"""What one part of the benchmarks found: plain values, so that a report is made of parts measured apart."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from anytime.evaluation.plots import write_figure
from benchmarks.peers.environments import Absent, Environment
from benchmarks.peers.turns import Spread, digits

__all__ = [
    "Cell",
    "Finding",
    "Picture",
    "Section",
    "Sheet",
    "Verdict",
    "absence",
    "cell",
    "mebibytes",
    "picture",
    "within",
]

Verdict = Literal["holds", "missed", "ahead", "behind", "absent", "noted"]
"""Of a limit: holds or missed. Of a comparison: ahead or behind. A rival that could not be measured: absent."""

Cell = str | int | float | None


class Finding(msgspec.Struct, frozen=True):
    """One line on what was found."""

    verdict: Verdict
    text: str


class Sheet(msgspec.Struct, frozen=True):
    """A table."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


class Picture(msgspec.Struct, frozen=True):
    """A picture: a PNG in base64."""

    caption: str
    png: str


class Section(msgspec.Struct, frozen=True):
    """One part of the report.

    Attributes
    ----------
    name : on the command line.
    made : when it was measured, in UTC.
    versions : what was measured beside what.
    """

    name: str
    title: str
    made: str
    versions: tuple[str, ...]
    findings: tuple[Finding, ...]
    text: tuple[str, ...] = ()
    sheets: tuple[Sheet, ...] = ()
    pictures: tuple[Picture, ...] = ()


def picture(caption: str, figure: Any) -> Picture:
    """A matplotlib figure as it goes into the report."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figure.png"
        write_figure(figure, path)
        return Picture(caption, base64.b64encode(path.read_bytes()).decode())


def cell(value: Spread | None) -> Cell:
    """A spread as a cell."""
    return None if value is None else str(value)


def within(what: str, ratio: Spread | None, limit: float) -> Finding:
    """Whether a ratio keeps its limit."""
    if ratio is None:
        return Finding("absent", f"{what}: not measured (limit {limit:g})")
    verdict: Verdict = "holds" if ratio.median <= limit else "missed"
    return Finding(verdict, f"{what}: {ratio} times, limit {limit:g}")


def absence(rivals: Sequence[Environment | Absent]) -> list[Finding]:
    """Who could not be installed, and why."""
    return [
        Finding("absent", f"{rival.name} cannot be installed here: {rival.why}")
        for rival in rivals
        if isinstance(rival, Absent)
    ]


def mebibytes(value: float) -> str:
    """Memory in words."""
    return f"{digits(max(value, 0.0))} MiB"
