"""Export of a model as text, for programs and devices without this library: a JSON document or a C header."""

from __future__ import annotations

from typing import Any

from anytime.model.export.c import c_source
from anytime.model.model import Model

__all__ = ["EXPORT", "c_source", "document"]

EXPORT = 1
"""Version of the document's form."""


def document(model: Model) -> dict[str, Any]:
    """Return the document of a model; every number is finite.

    Groups are in the order of the sequence and include those without features. A group is complete with prefix `step`.
    Its features are those from `start` to before `stop`.
    """
    manifest, prefixes = model.manifest, model.prefixes
    names = model.groups.features
    return {
        "export": EXPORT,
        "model": model.name,
        "version": model.version,
        "task": manifest.task,
        "family": manifest.family,
        "link": manifest.link,
        "responses": list(manifest.responses),
        "classes": None if manifest.classes is None else list(manifest.classes),
        "cost_unit": model.groups.cost_unit,
        "features": [{"name": names[column], "mean": float(prefixes.mean[column])} for column in prefixes.columns],
        "groups": _groups(model),
        "prefixes": [_prefix(model, prefix) for prefix in range(model.steps + 1)],
    }


def _groups(model: Model) -> list[dict[str, Any]]:
    groups, found = model.groups, []
    start = 0
    for step, record in enumerate(model.manifest.steps, start=1):
        for name in record.adds:
            group = groups.groups[groups.positions[name]]
            stop = start + len(group.features)
            found.append(
                {
                    "name": name,
                    "cost": group.cost,
                    "requires": list(group.requires),
                    "step": step,
                    "start": start,
                    "stop": stop,
                }
            )
            start = stop
    return found


def _prefix(model: Model, prefix: int) -> dict[str, Any]:
    """Return one prefix; `coef` has a row for each of its features, and a column for each score."""
    return {
        "cost": float(model.costs[prefix]),
        "cv_error": model.expected(prefix).cv_error,
        "features": int(model.prefixes.ends[prefix]),
        "intercept": model.prefixes.intercept_of(prefix).tolist(),
        "coef": model.prefixes.coef(prefix).tolist(),
    }
