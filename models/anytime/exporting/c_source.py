"""A model as one C header: declarations, which C++ may read, too, and their definitions for one file of C11.

What a program does with it is what `anytime.prediction` does for a row: begin, add groups as they are computed, ask for
an answer at any time. Nothing is allocated and nothing is searched, so that no answer takes longer than that of the
longest prefix.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from string import Template

import numpy as np

from anytime.arrays import Float
from anytime.errors import ArtifactError
from anytime.exporting.c_template import DECLARATIONS, DEFINITIONS, TELLING
from anytime.manifest import Label
from anytime.model import AnytimeModel

__all__ = ["c_source"]

WIDTH = 118
"""Length of the lines of numbers, at most."""

PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(b'"\\?')
"""Bytes that stand for themselves in a string of C."""


def c_source(model: AnytimeModel) -> str:
    """The header of a model; its names begin with `anytime_` and the model's name, in letters that C takes.

    Raises
    ------
    ArtifactError
        The model's name has no such letter.
    """
    manifest, prefixes = model.manifest, model.prefixes
    if not _word(model.name):
        raise ArtifactError(
            f"model {model.name!r} has no name in C; expected a letter from A to Z or a digit in it: name it otherwise"
        )
    name = f"anytime_{_word(model.name).lower()}"
    constants = _constants(group.name for group in model.groups.groups if group.features)
    classes = () if manifest.classes is None else manifest.classes
    scores = len(prefixes.intercept)
    outputs = len(classes) or scores
    places = model.places
    values = {
        "name": name,
        "NAME": name.upper(),
        "HASH": model.version.upper() or "NOT_SAVED",
        "version": _string(model.version),
        "model": _string(model.name),
        "unit": _string(model.groups.cost_unit),
        "steps": model.steps,
        "features": len(prefixes.columns),
        "groups": len(places),
        "scores": scores,
        "outputs": outputs,
        "group_ids": _lines(f"{name.upper()}_GROUP_{constants[place]}" for place in places),
        "group_names": _lines(map(_string, places)),
        "output_names": _lines(_string(_text(each)) for each in (classes or manifest.responses)),
        "group_start": _lines([*(str(place.start) for place in places.values()), str(len(prefixes.columns))]),
        "group_step": _lines(str(place.step) for place in places.values()),
        "means": _numbers(prefixes.mean[prefixes.columns]),
        "costs": _numbers(model.costs),
        "ends": _lines(map(str, prefixes.ends.tolist())),
        "offsets": _lines(map(str, (prefixes.offsets[:-1] * scores).tolist())),
        "intercepts": _numbers(np.stack([prefixes.intercept_of(prefix) for prefix in range(model.steps + 1)])),
        "coefs": _numbers(prefixes.packed),
        "telling": Template(TELLING[_kind(model)]).substitute(NAME=name.upper()),
    }
    return Template(DECLARATIONS + DEFINITIONS).substitute(values)


def _kind(model: AnytimeModel) -> str:
    """By which rule scores become what is told: the link, or that of indicators of classes by least squares."""
    if model.manifest.classes is None or model.manifest.family != "gaussian":
        return model.manifest.link
    return "second indicator" if len(model.prefixes.intercept) == 1 else "indicators"


def _word(text: str) -> str:
    """Upper-case letters, digits and single underscores that stand for a name."""
    return re.sub(r"[^0-9A-Z]+", "_", text.upper()).strip("_")


def _constants(names: Iterable[str]) -> dict[str, str]:
    """A word for each name, numbered where it comes again: in the order of the groups file, which stays."""
    found: dict[str, str] = {}
    used: set[str] = set()
    times: Counter[str] = Counter()
    for name in names:
        word = one = _word(name) or "UNNAMED"
        times[word] += 1
        while one in used:
            one = f"{word}_{times[word]}"
            times[word] += 1
        used.add(one)
        found[name] = one
    return found


def _text(label: Label) -> str:
    return str(label).lower() if isinstance(label, bool) else str(label)


def _string(text: str) -> str:
    """A string of C, in UTF-8; what is not plain is escaped byte by byte."""
    return '"' + "".join(chr(byte) if byte in PLAIN else f"\\{byte:03o}" for byte in text.encode("utf-8")) + '"'


def _numbers(array: Float) -> str:
    return _lines(map(repr, array.ravel().tolist()))


def _lines(items: Iterable[str]) -> str:
    """Items of an initialiser, by commas, in lines."""
    lines: list[str] = []
    line = ""
    for item in items:
        if line and len(line) + len(item) + 2 > WIDTH:
            lines.append(line)
            line = ""
        line += f"{' ' if line else ''}{item},"
    return "\n    ".join([*lines, line])
