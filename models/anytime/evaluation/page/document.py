"""A page of sections: its style, tables and words, all in one file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from anytime.model.notebook import html_table

STYLE = """
:root{--back:#fff;--text:#1b1f24;--soft:#5b6470;--line:#d9dee4;--card:#f6f8fa;--c0:#1f5fbf;--c1:#c2570c;--c2:#15803d;
--c3:#8b3fb0;--c4:#777}
@media (prefers-color-scheme:dark){:root{--back:#14171b;--text:#e7eaee;--soft:#a3adb8;--line:#363d46;--card:#1d2228;
--c0:#79aefc;--c1:#f0a35e;--c2:#6fcf8e;--c3:#d19bf0;--c4:#aaa}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1000px;padding:16px;background:var(--back);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.5em;margin:.2em 0}
h2{font-size:1.15em;margin:1.6em 0 .4em;border-top:1px solid var(--line);padding-top:.8em}
p{margin:.4em 0;max-width:72ch}.soft{color:var(--soft)}.lead{font-size:1.1em}
.grid{display:grid;gap:12px;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr))}
figure{margin:8px 0;min-width:0;max-width:640px;break-inside:avoid}figcaption{font-size:.85em;color:var(--soft)}
.one{max-width:620px}
svg{width:100%;height:auto;display:block}svg text{fill:var(--soft);font-size:11px}svg .label{font-size:11.5px}
svg .name{fill:var(--text)}svg .grid{stroke:var(--line);stroke-width:.7;fill:none}
svg .axis{stroke:var(--soft);stroke-width:1;fill:none}svg .line{fill:none;stroke-width:2}svg .bar{stroke-width:1.3}
.legend{font-size:.85em;display:flex;flex-wrap:wrap;gap:2px 14px}.legend i{display:inline-block;width:12px;height:3px;
margin-right:5px;vertical-align:middle}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9em;font-variant-numeric:tabular-nums}
th,td{padding:2px 10px 2px 0;text-align:right;vertical-align:top;font-weight:normal}
thead th{color:var(--soft);border-bottom:1px solid var(--line)}th:first-child,td.words,th.words{text-align:left}
td.words{min-width:9em}.rows{width:100%}.rows th{max-width:16em;overflow-wrap:anywhere}.rows td{white-space:nowrap}
.bars{width:55%}.bars div{height:12px;border-radius:2px}
td.cell{padding:4px 12px;border:1px solid var(--line);text-align:center}
ul{padding-left:1.2em;margin:.4em 0}li{margin:.25em 0}.warn{border-left:3px solid var(--c1);padding-left:10px}
code{background:var(--card);padding:1px 4px;border-radius:3px;overflow-wrap:anywhere}
@media print{:root{--back:#fff;--text:#000;--soft:#444;--line:#ccc;--card:#f4f4f4;--c0:#1f5fbf;--c1:#c2570c;
--c2:#15803d;--c3:#8b3fb0;--c4:#777}body{max-width:none;font-size:11pt;padding:0}h2{break-after:avoid}.wide{overflow:visible}
table{font-size:7.5pt}th,td{padding-right:5px}
.bars div,.legend i{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""


def page(title: str, lead: Iterable[str], sections: Sequence[tuple[str, str]]) -> str:
    """Return a page: its title, its first sentences as text, and sections (heading, HTML) that are not empty."""
    body = "".join(f"<section><h2>{escape(name)}</h2>{html}</section>" for name, html in sections if html)
    sentences = "".join(f'<p class="lead">{escape(each)}</p>' for each in lead)
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    meta += '<meta name="color-scheme" content="light dark">'
    head = f"<head>{meta}<title>{escape(title)}</title><style>{STYLE}</style></head>"
    return f'<!doctype html><html lang="en">{head}<body><h1>{escape(title)}</h1>{sentences}{body}</body></html>\n'


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], words: Sequence[int] = ()) -> str:
    """Return a table; the columns `words` are text, the others numbers."""
    return f'<div class="wide">{html_table(columns, rows, words)}</div>'


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph of text; what stands between back quotes is code."""
    parts = text.split("`")
    inner = "".join(f"<code>{escape(part)}</code>" if k % 2 else escape(part) for k, part in enumerate(parts))
    return f'<p class="{kind}">{inner}</p>' if kind else f"<p>{inner}</p>"


def grid(parts: Iterable[str]) -> str:
    return f'<div class="grid">{"".join(parts)}</div>'
