"""One report of all parts: a self-contained page, and the same as text. Parts measured earlier are retained."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import msgspec

from anytime_reproduction.report import STYLE
from benchmarks.peers.section import Cell, Finding, Section, Sheet

__all__ = ["format_cell", "lines", "machine", "page", "read_sections", "write"]

HOW_TO_READ = (
    "Every peer runs in its own environment, interleaved with us, on the same data, threads and cores. Shown are "
    "ratios within a round, their median and in brackets their quartiles: the machine is shared and noisy, and seconds "
    "on it mean little. Below 1 we need less. <em>Holds</em> and <em>missed</em> are limits that were set in advance; "
    "<em>ahead</em> and <em>behind</em> are comparisons without one; <em>absent</em> is a measurement that failed, "
    "with the reason."
)

MORE_STYLE = """
.missed, .behind { background: #333; color: #fff; }
.absent { border-style: dotted; }
figure.picture img { max-width: 100%; }
"""


def read_sections(path: Path) -> list[Section]:
    """Return the parts that were measured before."""
    return msgspec.json.decode(path.read_bytes(), type=list[Section]) if path.is_file() else []


def write(sections: Sequence[Section], folder: Path) -> Path:
    """Write peers-report.html, and its data as JSON."""
    (folder / "peers-report.json").write_bytes(msgspec.json.encode(list(sections)))
    path = folder / "peers-report.html"
    temporary = path.with_suffix(".tmp")
    temporary.write_text("\n".join(page(sections)), encoding="utf-8")
    temporary.replace(path)
    return path


def machine() -> str:
    models = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = models[0] if models else platform.machine()
    system = f"{platform.system()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores ({processor}), {memory:.0f} GiB, {system}"


def page(sections: Sequence[Section]) -> Iterator[str]:
    """Yield the report in HTML."""
    yield "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Compared with peers</title>"
    yield f"<style>{STYLE.read_text(encoding='utf-8')}{MORE_STYLE}</style>"
    yield "<meta name='viewport' content='width=device-width, initial-scale=1'></head><body>"
    yield f"<h1>anytime-linear compared with its peers</h1><p>{HOW_TO_READ}</p><p>Measured on {escape(machine())}.</p>"
    yield "<nav><table>"
    for section in sections:
        verdicts = [finding.verdict for finding in section.findings]
        counts = "".join(f"<td>{verdicts.count(word)} {word}</td>" for word in ("holds", "missed", "absent"))
        yield f"<tr><td><a href='#{escape(section.name)}'>{escape(section.title)}</a></td>{counts}</tr>"
    yield "</table></nav>"
    for section in sections:
        yield from _section(section)
    made = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    yield f"<footer>Made {made} by make bench-peers.</footer></body></html>"


def _section(section: Section) -> Iterator[str]:
    yield f"<h2 id='{escape(section.name)}'>{escape(section.title)}</h2>"
    versions = " · ".join(section.versions)
    yield f"<p class='source'>measured {escape(section.made)} · {escape(versions)}</p><ul class='findings'>"
    yield from (_finding(finding) for finding in section.findings)
    yield "</ul>"
    yield from (f"<p>{escape(paragraph)}</p>" for paragraph in section.text)
    for sheet in section.sheets:
        yield from _sheet(sheet)
    for each in section.pictures:
        caption = escape(each.caption)
        image = f"<img src='data:image/png;base64,{each.png}' alt='{caption}'>"
        yield f"<figure class='picture'>{image}<figcaption>{caption}</figcaption></figure>"


def _finding(finding: Finding) -> str:
    return f"<li><span class='verdict {finding.verdict}'>{finding.verdict}</span> {escape(finding.text)}</li>"


def _sheet(sheet: Sheet) -> Iterator[str]:
    yield f"<div class='scroll'><table class='numbers'><caption>{escape(sheet.caption)}</caption><tr>"
    yield "".join(f"<th>{escape(column)}</th>" for column in sheet.columns) + "</tr>"
    for row in sheet.rows:
        yield "<tr>" + "".join(f"<td>{escape(format_cell(value))}</td>" for value in row) + "</tr>"
    yield "</table></div>"


def format_cell(value: Cell) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else value


def lines(section: Section) -> Iterator[str]:
    """Yield a part as text for a terminal."""
    yield f"== {section.title} ({section.made})"
    yield from (f"  {finding.verdict:>7}  {finding.text}" for finding in section.findings)
    for sheet in section.sheets:
        yield ""
        yield f"  {sheet.caption}"
        cells = [sheet.columns, *([format_cell(value) for value in row] for row in sheet.rows)]
        widths = [max(len(row[j]) for row in cells) for j in range(len(sheet.columns))]
        for row in cells:
            first, *others = (
                value.ljust(width) if j == 0 else value.rjust(width)
                for j, (value, width) in enumerate(zip(row, widths, strict=True))
            )
            yield "    " + "  ".join([first, *others]).rstrip()
    yield ""
