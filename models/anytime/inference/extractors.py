"""Extractors: for each group with features, a callable that computes them; named on the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

from anytime.errors import ExtractorError, listed, suggestion

__all__ = [
    "check_extractors",
    "imported",
    "imported_extractors",
]


def check_extractors(names: Collection[str], featured: Sequence[str], extractors: Iterable[str]) -> None:
    """Check that every group with features has an extractor, and no other group has one.

    Parameters
    ----------
    names : all groups.  featured : groups with features.  extractors : groups that have an extractor.

    Raises
    ------
    ExtractorError
        A group with features has no extractor, or an extractor belongs to no group with features.
    """
    given = tuple(extractors)
    for name in given:
        if name not in names:
            raise ExtractorError(f"there is no group {name!r} to extract; {suggestion(str(name), featured)}")
        if name not in featured:
            raise ExtractorError(f"group {name!r} has no features to extract; remove its extractor")
    missing = [name for name in featured if name not in given]
    if missing:
        raise ExtractorError(f"no extractor for {listed(missing)}; expected one for each group that has features")


def imported(reference: str) -> Any:
    """Return the object that `MODULE:NAME` names; the module is also searched for in the working directory.

    Raises
    ------
    ExtractorError
        The reference does not have that form, the module fails to import, or it does not define the name.
    """
    module, colon, name = reference.partition(":")
    if not (module and colon and name):
        raise ExtractorError(f"{reference!r} is not a name in a module; expected MODULE:NAME, like vision:EXTRACTORS")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        found = import_module(module)
    except Exception as error:  # the module may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ExtractorError(f"cannot import {module!r} ({reason}); run this where Python finds it") from error
    try:
        return reduce(getattr, name.split("."), found)
    except AttributeError as error:
        known = [public for public in vars(found) if not public.startswith("_")]
        raise ExtractorError(f"module {module!r} has no {name!r}; {suggestion(name, known)}") from error


def imported_extractors(reference: str) -> dict[str, Callable[[Any], Any]]:
    """Return the extractors that `MODULE:NAME` names: a mapping of groups to callables, or a function that returns one.

    Raises
    ------
    ExtractorError
        As `imported`; or the object is not such a mapping.
    """
    found = imported(reference)
    if callable(found) and not isinstance(found, Mapping):
        found = found()
    if not isinstance(found, Mapping) or not found:
        raise ExtractorError(f"{reference} is {type(found).__name__}; expected a dict with a callable for each group")
    for name, extractor in found.items():
        if not callable(extractor):
            raise ExtractorError(f"the extractor of group {name!r} is {type(extractor).__name__}; expected a callable")
    return dict(found)
