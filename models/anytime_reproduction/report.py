"""The report: one self-contained HTML file, with the figures as PNG files and the numbers as CSV files.

All figures are drawn in the styles of this module.
"""

from __future__ import annotations

import base64
import csv
import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from anytime._files import write_atomically
from anytime.errors import AnytimeError, file_error
from anytime.evaluation.plots import blank_figure, default_style, write_figure
from anytime.types import Float
from anytime_reproduction.experiment import Estimate, Experiment, Figure, Section, Table

VERDICTS = (
    "Agrees or differs: our numbers support or refute what is published, by the rule that the section states; of means "
    "over runs, the 95 % interval by Student's t lies entirely on one side. Undecided: they do neither. Noted: nothing "
    "is published to compare with, or stand-ins replace the published data."
)
"""The meaning of the verdicts."""

STYLE = Path(__file__).with_name("report.css")


def check_folder(folder: Path) -> None:
    """Create the folders of a report before the work for it starts; raise AnytimeError if that fails."""
    try:
        for name in ("figures", "tables", "runs"):
            (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise file_error(AnytimeError, f"write into {str(folder)!r}", error) from error


@default_style()
def write_report(sections: Sequence[tuple[Experiment, Section]], ran_on: Sequence[str], folder: Path) -> Path:
    """Write report.html, with the lines `ran_on` on the data, figures/ and tables/ into a folder; return its path.

    Raise AnytimeError if the folder is not writable, or matplotlib is not installed.
    """
    check_folder(folder)
    try:
        for _, section in sections:
            for table in section.tables:
                _write_csv(table, folder / "tables" / f"{table.name}.csv")
            for figure in section.figures:
                write_figure(figure.draw(), folder / "figures" / f"{figure.name}.png")
        path = folder / "report.html"
        write_atomically(path, _page(sections, ran_on, folder).encode())
    except OSError as error:
        raise file_error(AnytimeError, f"write into {str(folder)!r}", error) from error
    return path


def _write_csv(table: Table, path: Path) -> None:
    """Write every number with all its digits; an estimate fills two columns."""
    columns: list[list[Any]] = []
    for each in table.columns:
        columns.append([each.heading, *(getattr(value, "mean", value) for value in each)])
        if any(isinstance(value, Estimate) for value in each):
            columns.append([f"{each.heading} (standard error)", *(getattr(value, "error", None) for value in each)])
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(zip(*columns, strict=True))


def _page(sections: Sequence[tuple[Experiment, Section]], ran_on: Sequence[str], folder: Path) -> str:
    made = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    parts = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>The papers, reproduced</title>",
        f"<style>{STYLE.read_text(encoding='utf-8')}</style>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'></head><body>",
        "<h1>The papers, reproduced</h1>",
        f"<p>Every published table and figure together with ours. {escape(VERDICTS)} After ± is the standard error of "
        "the mean; intervals are given as such.</p>",
        "".join(f"<p>{escape(line)}</p>" for line in ran_on),
        "<nav><table>",
        *(_counts(experiment, section) for experiment, section in sections),
        "</table></nav>",
        *(_section(experiment, section, folder) for experiment, section in sections),
        f"<footer>Made {made}. Numbers are in tables/, pictures in figures/, results of runs in runs/.</footer>",
        "</body></html>",
    )
    return "\n".join(parts)


def _counts(experiment: Experiment, section: Section) -> str:
    cells = "".join(
        f"<td>{sum(each.claims for each in section.findings if each.verdict == verdict)} {word}</td>"
        for word, verdict in (("agree", "agrees"), ("differ", "differs"), ("undecided", "undecided"))
    )
    return f"<tr><td><a href='#{escape(experiment.name)}'>{escape(experiment.title)}</a></td>{cells}</tr>"


def _section(experiment: Experiment, section: Section, folder: Path) -> str:
    name, source = escape(experiment.name), escape(experiment.source or "not in the papers")
    parts = (
        f"<h2 id='{name}'>{escape(experiment.title)}</h2>",
        f"<p class='source'>{source} · anytime reproduce {name}</p>",
        "<ul class='findings'>",
        *(
            f"<li><span class='verdict {each.verdict}'>{each.verdict}</span> {escape(each.text)}</li>"
            for each in section.findings
        ),
        "</ul>",
        *(f"<p>{escape(paragraph)}</p>" for paragraph in section.text),
        *(f"<div class='scroll'>{table.html()}</div>" for table in section.tables),
        *(_picture(figure, folder) for figure in section.figures),
    )
    return "\n".join(parts)


def _picture(figure: Figure, folder: Path) -> str:
    picture = base64.b64encode((folder / "figures" / f"{figure.name}.png").read_bytes()).decode()
    caption = escape(figure.caption)
    return (
        f"<figure><img src='data:image/png;base64,{picture}' alt='{caption}'>\n"
        f"<figcaption>{caption}</figcaption></figure>"
    )


@dataclass(frozen=True)
class Style:
    """Look of a line: shade (0 black to 1 white), dashes, marker. Lines are distinguishable in greyscale."""

    shade: str
    dashes: Any
    marker: str = ""


STYLES: dict[str, Style] = {
    "CS-G-FR": Style("0.0", "-"),
    "CS-G-OMP": Style("0.0", "--"),
    "Single": Style("0.45", "-."),
    "No-Whiten": Style("0.45", ":"),
    "G-OMP": Style("0.6", "-", "s"),
    "Doubling": Style("0.3", (0, (5, 1)), "^"),
    "FR Oracle": Style("0.75", "-"),
    "OMP Oracle": Style("0.75", "--"),
    "Sparse": Style("0.5", (0, (3, 1, 1, 1)), "x"),
    "Sparse (shrunken)": Style("0.5", (0, (1, 1)), "o"),
    "OLS": Style("0.65", "none", "v"),
    "Lasso": Style("0.5", "none", "s"),
    "OMP": Style("0.5", "none", "^"),
    "Group Lasso": Style("0.25", "none", "D"),
    "Group-OMP": Style("0.0", "none", "o"),
}
"""Styles of the methods, by the papers' names."""

OTHERS = (
    *(Style("0.0", "-", "o"), Style("0.4", "--", "s"), Style("0.6", ":", "^"), Style("0.25", "-.", "x")),
    *(Style("0.6", "-", "D"), Style("0.0", "--", "v"), Style("0.25", ":", "P")),
)
"""Styles for all other lines, used in turn."""

MARKS = 12  # maximum number of markers on a line


def panels(count: int, width: float = 4.6, height: float = 3.6, ylabel: str = "") -> tuple[Any, list[Any]]:
    figure, axes = blank_figure(count, across=True)
    figure.set_size_inches(width * count, height)
    axes[0].set_ylabel(ylabel)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=9)
    return figure, axes


def curve(axis: Any, x: Float, y: Float, name: str, number: int = 0, **more: Any) -> None:
    """Draw one line in the style of a method, or the style of that number."""
    style = STYLES.get(name, OTHERS[number % len(OTHERS)])
    look = {"color": style.shade, "linestyle": style.dashes, "marker": style.marker or None, "label": name}
    axis.plot(x, y, markevery=max(1, len(x) // MARKS), markersize=4, linewidth=1.5, **look, **more)


def mean(axis: Any, x: float, name: str, ours: Estimate, published: Estimate | None, apart: float = 0.04) -> None:
    """Draw our mean (filled) left of x and the published mean (hollow) right of it, with standard errors."""
    style = STYLES[name]
    look = {"color": style.shade, "linestyle": style.dashes, "marker": style.marker, "markersize": 5, "elinewidth": 1.0}
    axis.errorbar(x - apart, ours.mean, ours.error or 0.0, **look)
    if published is not None:
        axis.errorbar(x + apart, published.mean, published.error, markerfacecolor="white", **look)


def drawn(
    items: Mapping[str, Any],
    draw: Callable[[Any, str, Any], None],
    legend: Mapping[str, Any] | None = None,
    **more: Any,
) -> Any:
    """Return a figure with a panel for each item, which `draw` draws by axis, title and item; `more` is of `panels`.

    The last panel has the legend, if there is one.
    """
    figure, axes = panels(len(items), **more)
    for axis, (title, item) in zip(axes, items.items(), strict=True):
        draw(axis, title, item)
    if legend is not None:
        axes[-1].legend(**legend)
    return figure
