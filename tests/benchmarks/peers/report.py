"""Interleaved measurements, with medians and spreads, and one report of all parts.

The machine is shared, and its noise lasts for seconds. So everything that is compared is measured round by round, one
after the other, and reported as the ratio within a round, in which noise affects both sides. The report is text, and a
self-contained page with pictures. Parts measured earlier are retained.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Literal

import msgspec

from anytime.evaluation.page.charts import STYLE as CHARTS
from anytime_reproduction.report import STYLE, lines as chart_of
from benchmarks.harness import SLACK, aligned
from benchmarks.peers.environments import FailedError, NotInstalledError, prepared


@dataclass(frozen=True)
class Spread:
    """Median and quartiles; minimum and maximum of fewer than four values."""

    median: float
    low: float
    high: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Summarise at least one value."""
        if len(values) < 4:
            return Spread(statistics.median(values), min(values), max(values), len(values))
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(median, low, high, len(values))

    def __str__(self) -> str:
        return digits(self.median) + (f" ({digits(self.low)} to {digits(self.high)})" if self.count > 1 else "")


def digits(value: float) -> str:
    """Format with two significant digits below ten, no decimals above."""
    return f"{value:,.0f}" if abs(value) >= 9.95 else f"{value:#.2g}"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Return ours as a share of theirs, per round; only rounds that both have."""
    return Spread.of([a / b for a, b in zip(ours, theirs, strict=False)])


@dataclass(frozen=True)
class Measurements:
    """Values of each measurement, one per round, and why one failed: it has no values then, or fewer."""

    values: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def spread(self, name: str) -> Spread | None:
        """Return the spread of a measurement; None without values."""
        values = self.values.get(name)
        return Spread.of(values) if values else None

    def ratio(self, ours: str, theirs: str) -> Spread | None:
        """Return one measurement as a share of another; None if either is missing."""
        a, b = self.values.get(ours), self.values.get(theirs)
        return ratios(a, b) if a and b else None


def interleave(
    measures: Mapping[str, Callable[[], float]], rounds: int, *, few: int = 3, warm_up: bool = True, long: float = 1e99
) -> Measurements:
    """Interleave measurements.

    Parameters
    ----------
    measures : each returns its value, or raises `FailedError` and is skipped from then on.
    long : a measurement with a larger first value has `few` rounds only.
    warm_up : whether to discard the first turn.
    """
    results = Measurements({name: [] for name in measures})
    rounds_of = dict.fromkeys(measures, rounds)
    for turn in range(rounds + warm_up):
        for name, measure in measures.items():
            if name in results.failed or len(results.values[name]) >= rounds_of[name]:
                continue
            try:
                value = measure()
            except FailedError as error:
                results.failed[name] = str(error)
                continue
            if turn == 0 and value > long:
                rounds_of[name] = min(rounds, few)
            if turn > 0 or not warm_up:
                results.values[name].append(value)
    return results


Verdict = Literal["holds", "missed", "ahead", "behind", "absent", "noted"]
"""Of a limit: holds or missed. Of a comparison: ahead or behind. Of a peer that could not be measured: absent."""

Cell = str | int | float | None

HOW_TO_READ = (
    "Every peer runs in its own environment, interleaved with us, on the same data, threads and cores. Shown are "
    "ratios within a round, their median and in brackets their quartiles: the machine is shared and noisy, and seconds "
    "on it mean little. Below 1 we need less. Holds and missed are limits that were set in advance; ahead and behind "
    "are comparisons without one; absent is a measurement that failed, with the reason."
)


class Finding(msgspec.Struct, frozen=True):
    """One result in a line."""

    verdict: Verdict
    text: str


class Sheet(msgspec.Struct, frozen=True):
    """A table of numbers."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


class Picture(msgspec.Struct, frozen=True):
    """Charts in HTML."""

    caption: str
    html: str


class Section(msgspec.Struct, frozen=True):
    """One part of the report; `name` and `made`, the time and length of the measurement, are set by `run.py`."""

    title: str
    versions: tuple[str, ...]
    findings: tuple[Finding, ...]
    text: tuple[str, ...] = ()
    sheets: tuple[Sheet, ...] = ()
    pictures: tuple[Picture, ...] = ()
    name: str = ""
    made: str = ""


def drawn(
    caption: str, panes: Mapping[str, Mapping[str, tuple[Any, Any]]], x_label: str, y_label: str, log: str = ""
) -> Picture:
    """Return named lines of x and y, in a pane for each title; on a logarithmic y-axis they are no stairs."""
    charts = (chart_of(title, of, x_label, y_label, log=log, stairs="y" not in log) for title, of in panes.items())
    return Picture(caption, "".join(chart.svg() for chart in charts))


def cell(value: Spread | None) -> Cell:
    """Convert a spread to a cell."""
    return None if value is None else str(value)


def within(what: str, ratio: Spread | None, limit: float) -> Finding:
    """Return whether a ratio is within its limit, or over by no more than `make bench` allows."""
    if ratio is None:
        return Finding("absent", f"{what}: not measured (limit {limit:g})")
    return Finding("holds" if ratio.median <= SLACK * limit else "missed", f"{what}: {ratio} times, limit {limit:g}")


def compared(text: str, is_ahead: bool) -> Finding:
    """Return a comparison without a limit."""
    return Finding("ahead" if is_ahead else "behind", text)


def difference(text: str, gain: float, error: float, errors: float = 2.0) -> Finding:
    """Return a paired difference: ours is ahead or behind if it is larger than some standard errors."""
    whole = f"{text} {gain:+.4f} ± {error:.4f}"
    return compared(whole, gain > 0) if abs(gain) > errors * error else Finding("noted", whole)


class Part:
    """A part of the report while it is measured.

    Parameters
    ----------
    peers : names of the environments that it needs. Those that fail to install are findings.
    """

    def __init__(self, title: str, *peers: str) -> None:
        self.title, self._peers = title, [prepared(name) for name in peers]
        absent = [peer for peer in self._peers if peer.why]
        self.findings = [Finding("absent", f"{peer.name} is not installed here: {peer.why}") for peer in absent]
        self.sheets, self.pictures = list[Sheet](), list[Picture]()

    @contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """Note why the measurement of the block failed, and continue."""
        try:
            yield
        except NotInstalledError:
            pass  # noted once for the part
        except (FailedError, FileNotFoundError) as error:
            why = f"not found: {error}" if isinstance(error, FileNotFoundError) else error
            self.findings.append(Finding("absent", f"{what}: {why}"))

    def section(self, *text: str) -> Section:
        """Return what was measured."""
        used = tuple(f"{peer.name}: {peer.versions_text}" for peer in self._peers if not peer.why)
        return Section(self.title, used, tuple(self.findings), text, tuple(self.sheets), tuple(self.pictures))


def mebibytes(value: float) -> str:
    """Format an amount of memory."""
    return f"{digits(max(value, 0.0))} MiB"


def machine() -> str:
    """Describe the processor, the memory and the system."""
    information = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.split(":", 1)[1].strip() for line in information if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = models[0] if models else platform.machine()
    system = f"{platform.system()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores ({processor}), {memory:.0f} GiB, {system}"


def read_sections(path: Path) -> list[Section]:
    """Return the parts that were measured before."""
    return msgspec.json.decode(path.read_bytes(), type=list[Section]) if path.is_file() else []


def write(sections: Sequence[Section], folder: Path) -> Path:
    """Write peers-report.html, and its data as JSON."""
    (folder / "peers-report.json").write_bytes(msgspec.json.encode(list(sections)))
    path = folder / "peers-report.html"
    path.write_text("\n".join(page(sections)), encoding="utf-8")
    return path


def page(sections: Sequence[Section]) -> Iterator[str]:
    """Yield the report in HTML: the text of each part, and its pictures."""
    yield "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Compared with peers</title>"
    yield "<meta name='viewport' content='width=device-width, initial-scale=1'>"
    styles = "".join(path.read_text(encoding="utf-8") for path in (CHARTS, STYLE))
    yield f"<style>{styles} pre {{ overflow: auto; }}</style>"
    yield f"</head><body><h1>anytime-linear compared with its peers</h1><p>{HOW_TO_READ}</p>"
    yield f"<p>Measured on {escape(machine())}.</p>"
    for section in sections:
        yield f"<h2>{escape(section.title)}</h2><p class='source'>{escape(' · '.join(section.versions))}</p>"
        yield from (f"<p>{escape(paragraph)}</p>" for paragraph in section.text)
        yield f"<pre>{escape(chr(10).join(lines(section)))}</pre>"
        for image in section.pictures:
            yield f"<div class='grid'>{image.html}</div><p>{escape(image.caption)}</p>"
    yield "</body></html>"


def format_cell(value: Cell) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else value


def lines(section: Section) -> Iterator[str]:
    """Yield a part as text."""
    yield f"== {section.title} ({section.made})"
    yield from (f"  {finding.verdict:>7}  {finding.text}" for finding in section.findings)
    for sheet in section.sheets:
        yield from ("", f"  {sheet.caption}")
        rows = ([format_cell(value) for value in row] for row in sheet.rows)
        yield from (f"    {line}" for line in aligned(sheet.columns, rows))
    yield ""
