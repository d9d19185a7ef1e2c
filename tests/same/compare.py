"""What differs between the records of two commits, largest first.

A record is JSON: cases by name, and in each what was printed, returned or received. Numbers are compared by their
relative difference, in a list relative to its largest, and numbers in texts likewise. Anything else differs or not, and
is listed before numbers.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

TOLERANCE = 1e-9
"""Relative difference that rounding explains: another order of a sum changes the last digits."""

FLOOR = 1e-6
"""A number is compared with this size if it is smaller: a zero with rounding is still a zero."""

SCREENFUL = 20

FIELDS = {
    "elapsed_ms": "the time of an answer",
    "created": "the time of a training",
    "request_id": "counts requests of a process with a random start",
    "versions": "packages and models of the environment",
}
"""Fields whose values are never compared, and why."""

TEXTS = (
    (r"\b[0-9a-f]{16}\b", "VERSION", "hash of a model file: its contents are compared, within the tolerance"),
    (r"(?<=/sessions/)[\w-]{22}|^[\w-]{22}$", "SESSION", "random id of a session"),
    (r"\b[0-9a-f]{12}-[0-9a-f]+\b", "REQUEST", "id of a request: a random start and a count"),
    (r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", "DATE", "header of a response"),
    (r"(?<=127\.0\.0\.1:)\d+", "PORT", "a free port"),
    (r"(?<=process \[)\d+|(?<=pid )\d+", "PROCESS", "number of a process"),
    (r"(?:/[\w.-]+)*/tmp\w{8}\b", "FOLDER", "a temporary folder"),
    (r"0x[0-9a-f]{6,}", "ADDRESS", "address of an object"),
    (r"\S+/(\w+\.py):\d+(?=:)", r"\1", "place of a Python warning"),
    (
        r"(?m)^((?:anytime_\w+_seconds|process_|python_)\w*(?:{.*})?|anytime_(?:memory_limit|held)_bytes) \S+$",
        r"\1",
        "a metric of time, of the machine or of the process",
    ),
)
"""Parts of texts that are replaced before the comparison: pattern, replacement, reason."""

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_MASKS = [(re.compile(pattern), replacement) for pattern, replacement, _ in TEXTS]


@dataclass(frozen=True)
class Difference:
    """One place where two records differ."""

    kind: str
    """Where, without the table, the options and the places in lists."""
    where: str
    size: float
    """Relative difference of numbers; infinite for anything else."""
    base: str
    here: str

    def __str__(self) -> str:
        return f"{amount(self.size):>8}  {self.where}: {self.base} -> {self.here}"


def amount(size: float) -> str:
    return "other" if math.isinf(size) else f"{size:.1e}"


def masked(text: str) -> str:
    """Return a text without what differs between two runs of one commit."""
    for pattern, replacement in _MASKS:
        text = pattern.sub(replacement, text)
    return text


def differences(base: dict[str, Any], here: dict[str, Any], tolerance: float = TOLERANCE) -> list[Difference]:
    """Return what differs in two records, largest first."""
    found = list(_walk(base, here, (), tolerance))
    return sorted(found, key=lambda each: -each.size)


def _walk(base: Any, here: Any, path: tuple[str | int, ...], tolerance: float) -> Iterator[Difference]:
    if isinstance(base, dict) and isinstance(here, dict):
        for key in (*base, *(key for key in here if key not in base)):
            if key in FIELDS and key in base and key in here:
                continue
            if key in base and key in here:
                yield from _walk(base[key], here[key], (*path, key), tolerance)
            else:
                sides = [short(each[key]) if key in each else "absent" for each in (base, here)]
                yield _difference((*path, key), math.inf, *sides)
        if path and set(base) == set(here) and list(base) != list(here):  # cases have no order
            yield _difference(path, math.inf, "order " + short(list(base)), short(list(here)))
    elif isinstance(base, list) and isinstance(here, list) and len(base) == len(here) and not _are_numbers(base, here):
        for place, pair in enumerate(zip(base, here, strict=True)):
            yield from _walk(*pair, (*path, place), tolerance)
    else:
        size = _size(base, here)
        if size > tolerance:
            yield _difference(path, size, *_sides(base, here))


def _are_numbers(*lists: list[Any]) -> bool:
    return all(_is_number(each) for values in lists for each in values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _size(base: Any, here: Any) -> float:
    """Return by how much two values differ: 0 if they do not."""
    if isinstance(base, str) and isinstance(here, str):
        base, here = masked(base), masked(here)
        if base == here:
            return 0.0
        if NUMBER.sub("#", base) != NUMBER.sub("#", here):
            return math.inf
        pairs = zip(NUMBER.findall(base), NUMBER.findall(here), strict=True)
        return max(_relative([float(one)], [float(two)]) for one, two in pairs)
    if isinstance(base, list) and isinstance(here, list) and len(base) == len(here):
        return _relative(base, here)
    if _is_number(base) and _is_number(here):
        return _relative([base], [here])
    return 0.0 if type(base) is type(here) and base == here else math.inf


def _relative(base: Sequence[float], here: Sequence[float]) -> float:
    """Return the largest difference of two lists of numbers, as a share of their largest number."""
    different = [
        (one, two) for one, two in zip(base, here, strict=True) if one != two and not (one != one and two != two)
    ]
    if not all(math.isfinite(each) for pair in different for each in pair):
        return math.inf
    largest = max((abs(each) for each in (*base, *here) if math.isfinite(each)), default=0.0)
    return max((abs(one - two) for one, two in different), default=0.0) / max(largest, FLOOR)


def _sides(base: Any, here: Any) -> tuple[str, str]:
    """Return two values as they are printed: of long ones the part from shortly before the first difference."""
    if isinstance(base, list) and isinstance(here, list) and len(base) == len(here):
        base, here = max(zip(base, here, strict=True), key=lambda pair: abs(pair[0] - pair[1]))
    if isinstance(base, str) and isinstance(here, str):
        base, here = masked(base), masked(here)
        start = next(
            (i for i, (one, two) in enumerate(zip(base, here, strict=False)) if one != two), min(len(base), len(here))
        )
        start = max(0, start - 20)
        base, here = base[start:], here[start:]
    return short(base), short(here)


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _difference(path: tuple[str | int, ...], size: float, base: str, here: str) -> Difference:
    case, *places = path
    names = [each.split(" ")[0] for each in places if isinstance(each, str)]
    kind = f"{str(case).split('/')[0]}: {'.'.join(names[:4]) or 'the whole'}"
    where = f"{case}{''.join(f'[{each}]' if isinstance(each, int) else f' .{each}' for each in places)}"
    return Difference(kind, where, size, base, here)


def summary(found: Sequence[Difference]) -> list[str]:
    """Return a screenful: a line for each kind of difference, the largest first, with its first case."""
    kinds: dict[str, list[Difference]] = defaultdict(list)
    for each in found:
        kinds[each.kind].append(each)
    lines = [f"{'largest':>8}  places  kind, and the largest: base -> here"] if kinds else []
    for kind, group in list(kinds.items())[:SCREENFUL]:
        first = group[0]
        lines.append(f"{amount(first.size):>8}  {len(group):>6}  {kind}")
        lines.append(f"{'':>18}{first.where}: {first.base} -> {first.here}")
    if len(kinds) > SCREENFUL:
        lines.append(f"... and {len(kinds) - SCREENFUL} more kinds")
    return lines
