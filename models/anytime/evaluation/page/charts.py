"""Charts as SVG text: lines, bars and points in one plane, for reports, notebooks and the console.

Colours are those of `charts.css` (classes `c0`, `c1`, ...). A chart is a picture for readers of the page and a title
for readers of its text: every mark has a `<title>`. Attributes (`data-x`, `data-y`) let a script add marks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np

from anytime.errors import clipped
from anytime.tabulated import shown
from anytime.types import Float

STYLE = Path(__file__).with_name("charts.css")
"""Colours of light and dark pages, and the style of charts."""

WIDTH, HEIGHT = 440, 270
LETTER, LINE = 6.5, 12
"""Width of a letter of a label, and the distance of two lines, about."""

MANY_POINTS, BAR_DISTANCE = 60, 8
"""More points than this are small, and their bars are at least so far apart."""

LEFT, RIGHT, TOP, BOTTOM = 52, WIDTH - 14, 12, HEIGHT - 42
"""Edges of the plane."""

MAX_LABEL = 26

STRIP = 0.14
"""Share of the height that the distribution of the rows takes."""

MAX_LEVEL = 7
"""Most names along the x axis that stand upright; more are turned."""


COLOURS = 5
"""Colours of lines and points, from `c0` on."""


def ticks(low: float, high: float, count: int = 5, *, log: bool = False) -> list[float]:
    """Return about `count` round numbers that span a range, ascending; powers of ten on a logarithmic axis."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    if log and high >= 100 * low:
        powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
        return [10.0**k for k in powers[:: -(-len(powers) // (count + 1))]]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


class Chart:
    """A plane with axes, on which marks are drawn in the order of the calls.

    Parameters
    ----------
    title : str
        Of the picture, for readers of text.
    x, y : tuple[float, float]
        (low, high) of each axis.
    x_label, y_label : str
        Names of the axes with their units.
    levels : Sequence[str] | None
        Names along the x axis, at 0, 1, ..., instead of numbers.
    x_shown : Callable[[float], str]
        Text of a number of the x axis.
    log : str
        The logarithmic axes, "x", "y" or "xy"; their ends are above 0, and values below the low end lie there.
    """

    def __init__(
        self,
        title: str,
        x: tuple[float, float],
        y: tuple[float, float],
        x_label: str = "",
        y_label: str = "",
        levels: Sequence[str] | None = None,
        x_shown: Callable[[float], str] = shown,
        log: str = "",
    ) -> None:
        self._x, self._y, self._log = _widened(*x), _widened(*y), log
        self._parts: list[str] = []
        self._words: list[tuple[float, float, float]] = []
        """The left ends, the widths and the base lines of the labels."""
        self._labels: list[tuple[str, int]] = []
        self._title, self._levels = title, levels
        for value in ticks(*self._y, log="y" in log):
            at = self._at(0.0, value)[1]
            self._parts += [
                f'<path class="grid" d="M{LEFT} {at:.1f}H{RIGHT}"/>',
                f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{shown(value + 0.0)}</text>',
            ]
        places = (
            [(float(k), clipped(name, 9)) for k, name in enumerate(levels)]
            if levels is not None
            else [(value, x_shown(value + 0.0)) for value in ticks(*self._x, log="x" in log)]
        )
        for value, name in places:
            at = self._at(value, 0.0)[0]
            below = BOTTOM + 16
            place = (
                f'x="{at + 6:.1f}" y="{below - 2}" text-anchor="end" transform="rotate(-35 {at + 6:.1f} {below})"'
                if len(places) > MAX_LEVEL
                else f'x="{at:.1f}" y="{below}" text-anchor="middle"'
            )
            self._parts.append(f"<text {place}>{escape(name)}</text>")
        name = x_label if len(places) <= MAX_LEVEL else ""  # turned names take its place
        turned = f"translate(12 {(TOP + BOTTOM) / 2}) rotate(-90)"
        self._parts += [
            f'<path class="axis" d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}"/>',
            f'<text class="label" x="{(LEFT + RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(name)}</text>',
            f'<text class="label" transform="{turned}" text-anchor="middle">{escape(y_label)}</text>',
        ]

    def _at(self, x: float, y: float) -> tuple[float, float]:
        u = LEFT + _share(x, *self._x, "x" in self._log) * (RIGHT - LEFT)
        v = BOTTOM - _share(y, *self._y, "y" in self._log) * (BOTTOM - TOP)
        return min(max(u, LEFT - 1), WIDTH), min(max(v, TOP - 8), BOTTOM + 8)

    def line(
        self,
        x: Float,
        y: Float,
        colour: int = 0,
        label: str = "",
        *,
        stairs: Literal["after", "before"] | None = None,
        dashed: bool = False,
    ) -> None:
        """Draw a line, or stairs whose values apply after their x until the next, or before it.

        Missing values interrupt a line.
        """
        path, pen = [], False
        for u, v in zip(np.asarray(x).tolist(), np.asarray(y).tolist(), strict=True):
            if not math.isfinite(v):
                pen = False
                continue
            a, b = self._at(u, v)
            if pen and stairs is not None:
                path.append(f"H{a:.1f}" if stairs == "after" else f"V{b:.1f}")
            path.append(f"{'L' if pen else 'M'}{a:.1f} {b:.1f}")
            pen = True
        if stairs == "after" and pen and path:
            path.append(f"H{RIGHT}")
        style = ' stroke-dasharray="5 4"' * dashed
        self._parts.append(f'<path class="line c{colour}" d="{"".join(path)}"{style}/>')
        if label:
            self._labels.append((label, colour))

    def points(
        self, x: Float, y: Float, titles: Sequence[str], colour: int = 0, label: str = "", errors: Float | None = None
    ) -> None:
        """Draw points, with bars of one standard error if given."""
        spread = np.full(len(np.asarray(y)), np.nan) if errors is None else np.asarray(errors)
        size, barred = 3.2 if len(titles) <= MANY_POINTS else 1.6, -math.inf
        for u, v, e, title in zip(np.asarray(x).tolist(), np.asarray(y).tolist(), spread.tolist(), titles, strict=True):
            if not math.isfinite(v):
                continue
            a, b = self._at(u, v)
            if math.isfinite(e) and (len(titles) <= MANY_POINTS or a >= barred + BAR_DISTANCE):
                barred = a
                low, high = self._at(u, v - e)[1], self._at(u, v + e)[1]
                self._parts.append(f'<path class="bar c{colour}" d="M{a:.1f} {low:.1f}V{high:.1f}"/>')
            self._parts.append(
                f'<circle class="c{colour}" cx="{a:.1f}" cy="{b:.1f}" r="{size}">'
                f"<title>{escape(title)}</title></circle>"
            )
        if label:
            self._labels.append((label, colour))

    def bars(self, heights: Float, titles: Sequence[str], colour: int = 0, width: float = 0.7) -> None:
        """Draw a bar from 0 at each of the places 0, 1, ..."""
        for k, (height, title) in enumerate(zip(np.asarray(heights).tolist(), titles, strict=True)):
            (a, zero), (b, top) = self._at(k - width / 2, 0.0), self._at(k + width / 2, height)
            size = f'width="{b - a:.1f}" height="{abs(top - zero):.1f}"'
            self._parts.append(
                f'<rect class="c{colour}" x="{a:.1f}" y="{min(top, zero):.1f}" {size}>'
                f"<title>{escape(title)}</title></rect>"
            )

    def strip(self, edges: Float, shares: Float, titles: Sequence[str]) -> None:
        """Draw shares of the rows as pale bars at the bottom of the plane; `edges` has one element more."""
        most = float(np.max(shares, initial=0.0)) or 1.0
        at = [self._at(edge, 0.0)[0] for edge in np.asarray(edges).tolist()]
        for (left, right), share, title in zip(pairwise(at), np.asarray(shares).tolist(), titles, strict=True):
            tall = STRIP * (BOTTOM - TOP) * share / most
            size = f'width="{max(right - left - 1, 0.5):.1f}" height="{tall:.1f}"'
            self._parts.append(
                f'<rect class="rows" x="{left + 0.5:.1f}" y="{BOTTOM - tall:.1f}" {size}>'
                f"<title>{escape(title)}</title></rect>"
            )

    def label(self, x: float, low: float, high: float, words: str) -> None:
        """Write words below ascending lines at x, where there is space to the right; near the right end above them.

        Words that would cover earlier ones are left out.
        """
        end = self._at(x, high)[0] > 0.7 * WIDTH
        a, b = self._at(x, high if end else low)
        anchor, shift, drop = ("end", -6, -6) if end else ("start", 4, 14)
        x, y, words = a + shift, b + drop, clipped(words, MAX_LABEL)
        wide = LETTER * len(words)
        left = x - wide if end else x
        if any(left < other + w and other < left + wide and abs(y - v) < LINE for other, w, v in self._words):
            return
        self._words.append((left, wide, y))
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self._parts.append(f'<text class="name" {place}>{escape(words)}</text>')

    def svg(self, caption: str = "") -> str:
        """Return an HTML element `figure` with a legend, the picture and a caption."""
        place = {"x": self._x, "y": self._y, "names": self._levels, "frame": (LEFT, RIGHT, BOTTOM, TOP)}
        plane = "".join(f' data-{key}="{escape(json.dumps(each))}"' for key, each in place.items() if each is not None)
        picture = (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self._title)}"{plane}>'
            f"{''.join(self._parts)}</svg>"
        )
        keys = "".join(f'<span><i class="c{colour}"></i>{escape(name)}</span>' for name, colour in self._labels)
        legend = f'<div class="legend">{keys}</div>' if len(self._labels) > 1 else ""
        words = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
        return f"<figure>{legend}{picture}{words}</figure>"


def _share(value: float, low: float, high: float, is_log: bool) -> float:
    """Return where a value lies on an axis, from 0 at its low end to 1 at its high end."""
    return math.log(max(value, low) / low, high / low) if is_log else (value - low) / (high - low)


def _widened(low: float, high: float) -> tuple[float, float]:
    if not (math.isfinite(low) and math.isfinite(high)):
        return 0.0, 1.0
    margin = 0 if high > low else abs(low) * 0.1 or 1.0
    return low - margin, high + margin


def bar_rows(rows: Sequence[tuple[str, float, str]], colour: int = 0) -> str:
    """Return horizontal bars as a table: a name, a bar as long as the value, and words; negative bars are pale."""
    most = max((abs(value) for _, value, _ in rows if math.isfinite(value)), default=0.0) or 1.0
    lines = []
    for name, value, words in rows:
        size = 100 * abs(value) / most if math.isfinite(value) else 0.0
        bar = f'<div class="c{colour}{" less" if value < 0 else ""}" style="width:{size:.1f}%"></div>'
        lines.append(f'<tr><th>{escape(name)}</th><td class="bars">{bar}</td><td>{escape(words)}</td></tr>')
    return f'<div class="wide"><table class="rows">{"".join(lines)}</table></div>'
