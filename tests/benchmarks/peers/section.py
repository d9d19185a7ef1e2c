"""Results of one part of the comparison, as plain values that are stored between runs."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from anytime.evaluation.plots import write_figure
from benchmarks.limits import SLACK
from benchmarks.peers.environments import Absent, Environment
from benchmarks.peers.measurements import Spread, digits

__all__ = [
    "Cell",
    "Finding",
    "Picture",
    "Section",
    "Sheet",
    "Verdict",
    "cell",
    "mebibytes",
    "missing_peers",
    "picture",
    "within",
]

Verdict = Literal["holds", "missed", "ahead", "behind", "absent", "noted"]
"""Of a limit: holds or missed. Of a comparison: ahead or behind. Of a peer that could not be measured: absent."""

Cell = str | int | float | None


class Finding(msgspec.Struct, frozen=True):
    """One result in a line."""

    verdict: Verdict
    text: str


class Sheet(msgspec.Struct, frozen=True):
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


class Picture(msgspec.Struct, frozen=True):
    """A PNG in base64."""

    caption: str
    png: str


class Section(msgspec.Struct, frozen=True):
    """One part of the report.

    Attributes
    ----------
    name : on the command line.
    made : time of the measurement, in UTC.
    versions : of everything compared.
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
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figure.png"
        write_figure(figure, path)
        return Picture(caption, base64.b64encode(path.read_bytes()).decode())


def cell(value: Spread | None) -> Cell:
    """Convert a spread to a cell."""
    return None if value is None else str(value)


def within(what: str, ratio: Spread | None, limit: float) -> Finding:
    """Return whether a ratio is within its limit, or over by no more than `make bench` allows."""
    if ratio is None:
        return Finding("absent", f"{what}: not measured (limit {limit:g})")
    verdict: Verdict = "holds" if ratio.median <= SLACK * limit else "missed"
    return Finding(verdict, f"{what}: {ratio} times, limit {limit:g}")


def missing_peers(peers: Sequence[Environment | Absent]) -> list[Finding]:
    """Return the peers that could not be installed, and why."""
    return [
        Finding("absent", f"{peer.name} is not installed here: {peer.why}")
        for peer in peers
        if isinstance(peer, Absent)
    ]


def mebibytes(value: float) -> str:
    """Format an amount of memory."""
    return f"{digits(max(value, 0.0))} MiB"
