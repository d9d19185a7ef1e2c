"""A page of sections: its style, tables and words, all in one file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from anytime._files import check_writable, write_atomically
from anytime.evaluation.page import charts
from anytime.tabulated import Tabulated

STYLE = """
*{box-sizing:border-box}
body{margin:0 auto;max-width:1000px;padding:16px;background:var(--card);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.5em;margin:.2em 0}
h2{font-size:1.15em;margin:1.6em 0 .4em;border-top:1px solid var(--line);padding-top:.8em}
p{margin:.4em 0;max-width:72ch}.soft{color:var(--soft)}.lead{font-size:1.1em}
.grid{display:grid;gap:12px;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr))}
.one{max-width:620px}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9em;font-variant-numeric:tabular-nums}
th,td{padding:2px 10px 2px 0;text-align:right;vertical-align:top;font-weight:normal}
thead th{color:var(--soft);border-bottom:1px solid var(--line)}th:first-child,td.words,th.words{text-align:left}
td.words{min-width:9em;overflow-wrap:anywhere}
td.cell{padding:4px 12px;border:1px solid var(--line);text-align:center}
ul{padding-left:1.2em;margin:.4em 0}li{margin:.25em 0}.warn{border-left:3px solid var(--c1);padding-left:10px}
summary{cursor:pointer;color:var(--soft)}
code{background:var(--back);padding:1px 4px;border-radius:3px;overflow-wrap:anywhere}
@media print{body{max-width:none;font-size:11pt;padding:0}h2{break-after:avoid}.wide{overflow:visible}
table{font-size:7.5pt}th,td{padding-right:5px}}
"""


@dataclass(frozen=True)
class Picture:
    """A part of the report: notebooks show it, and `save` writes it as a page of its own.

    Attributes
    ----------
    html : str
        The part as HTML, without its style.
    """

    html: str

    def __repr__(self) -> str:
        return f"<Picture of {len(self.html):,} characters of HTML; show it in a notebook, or save it to a file>"

    def _repr_html_(self) -> str:
        style = charts.STYLE.read_text(encoding="utf-8").replace(":root", "&")  # of this element only
        own = "padding:8px;background:var(--card);color:var(--text);"
        grid = ".grid{display:grid;gap:12px;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr))}"
        return f'<div class="anytime"><style>.anytime{{{own}{grid}{style}}}</style>{self.html}</div>'

    def save(self, path: str | Path) -> None:
        """Write a page that loads nothing from elsewhere; raise AnytimeError if writing fails."""
        path = Path(path)
        check_writable(path, (".html", ".htm"))
        write_atomically(path, page(path.stem, (), [("", self.html)]).encode())


def page(title: str, lead: Iterable[str], sections: Sequence[tuple[str, str]]) -> str:
    """Return a page: its title, its first sentences as text, and sections (heading, HTML) that are not empty."""
    body = "".join(
        f"<section>{f'<h2>{escape(name)}</h2>' if name else ''}{html}</section>" for name, html in sections if html
    )
    sentences = "".join(f'<p class="lead">{escape(each)}</p>' for each in lead)
    meta = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
    )
    head = (
        f"<head>{meta}<title>{escape(title)}</title>"
        f"<style>{charts.STYLE.read_text(encoding='utf-8')}{STYLE}</style></head>"
    )
    return f'<!doctype html><html lang="en">{head}<body><h1>{escape(title)}</h1>{sentences}{body}</body></html>\n'


ROWS_SHOWN = 40
"""Rows of a long table that a page shows at once; a click shows the others."""


def table(results: Tabulated) -> str:
    rows = len(results.rows)
    shown = rows if rows <= 2 * ROWS_SHOWN else ROWS_SHOWN
    first, rest = (results.take(part).html() for part in (range(shown), range(shown, rows)))
    more = f"<details><summary>{rows - shown:,} more rows</summary>{rest}</details>" if shown < rows else ""
    return f'<div class="wide">{first}{more}</div>'


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph of text; what stands between back quotes is code."""
    parts = text.split("`")
    inner = "".join(f"<code>{escape(part)}</code>" if k % 2 else escape(part) for k, part in enumerate(parts))
    return f'<p class="{kind}">{inner}</p>' if kind else f"<p>{inner}</p>"


def grid(parts: Iterable[str]) -> str:
    return f'<div class="grid">{"".join(parts)}</div>'
