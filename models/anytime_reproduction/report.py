"""The report: one self-contained HTML file, with the figures as pages of their own and the numbers as CSV files.

Charts of lines are made here, from what is measured.
"""

from __future__ import annotations

import csv
import datetime
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from anytime._files import write_atomically
from anytime.errors import AnytimeError, file_error
from anytime.evaluation.page.charts import COLOURS, STYLE as CHARTS, Chart
from anytime.evaluation.report import Picture
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


def write_report(sections: Sequence[tuple[Experiment, Section]], ran_on: Sequence[str], folder: Path) -> Path:
    """Write report.html, with the lines `ran_on` on the data, figures/ and tables/ into a folder; return its path.

    Raise AnytimeError if the folder is not writable.
    """
    check_folder(folder)
    try:
        for _, section in sections:
            for table in section.tables:
                _write_csv(table, folder / "tables" / f"{table.name}.csv")
            for figure in section.figures:
                Picture(_picture(figure)).save(folder / "figures" / f"{figure.name}.html")
        path = folder / "report.html"
        write_atomically(path, _page(sections, ran_on).encode())
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


def _page(sections: Sequence[tuple[Experiment, Section]], ran_on: Sequence[str]) -> str:
    made = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    parts = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>The papers, reproduced</title>",
        f"<style>{''.join(path.read_text(encoding='utf-8') for path in (CHARTS, STYLE))}</style>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'></head><body>",
        "<h1>The papers, reproduced</h1>",
        f"<p>Every published table and figure together with ours. {escape(VERDICTS)} After ± is the standard error of "
        "the mean; intervals are given as such.</p>",
        "".join(f"<p>{escape(line)}</p>" for line in ran_on),
        "<nav><table>",
        *(_counts(experiment, section) for experiment, section in sections),
        "</table></nav>",
        *(_section(experiment, section) for experiment, section in sections),
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


def _section(experiment: Experiment, section: Section) -> str:
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
        *map(_picture, section.figures),
    )
    return "\n".join(parts)


def _picture(figure: Figure) -> str:
    return f'<div class="grid">{"".join(each.svg() for each in figure.charts)}</div><p>{escape(figure.caption)}</p>'


def lines(
    title: str,
    named: Mapping[str, tuple[Any, Any]],
    x_label: str,
    y_label: str,
    *,
    log: str = "",
    stairs: bool = True,
    kind: Callable[..., Chart] = Chart,
) -> Chart:
    """Return a chart of lines x and y by name, on axes that are logarithmic if `log` names them.

    Stairs are values that apply from their x on, until the next. `kind` makes the chart.
    """
    found = (np.concatenate([np.ravel(each[k]) for each in named.values()]).astype(np.float64) for k in (0, 1))
    ends = [_ends(values, axis in log) for values, axis in zip(found, "xy", strict=True)]
    chart = kind(title, *ends, x_label, y_label, **({"log": log} if log else {}))
    for number, (name, (x, y)) in enumerate(named.items()):
        chart.line(x, y, number % COLOURS, name, stairs="after" if stairs else None, dashed=number >= COLOURS)
    return chart


def _ends(values: Any, is_log: bool) -> tuple[float, float]:
    """Return the ends of an axis: the largest value, and the least above 0 if logarithmic, else the least or 0."""
    positive = values[np.isfinite(values) & (values > 0)]
    high, least = float(positive.max(initial=0.0)) or 1.0, float(np.nanmin(values))
    return float(positive.min(initial=high)) if is_log else least if 2 * least > high else min(0.0, least), high
