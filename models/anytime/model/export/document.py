"""A model as a JSON document with everything that predictions from prefixes need.

A prefix has

    scores = intercept + (x - mean) @ coef,

where x is its first `features` values in the order of the document's features. A missing value is replaced by its mean.
The library answers from the longest prefix whose groups have all arrived and whose cost is at most the budget, plus one
part in 1e9, because costs are sums. `link` maps scores to predictions: "identity", "logit", "softmax", or "log", where
scores above 500 count as 500. For classes with the link "identity", scores are least-squares estimates of indicators:
clip them at 0 and scale them to sum to 1 (equal shares if none is positive). A single score, with this link or with
"logit", is that of the second of two classes.
"""

from __future__ import annotations

from typing import Any

from anytime.model.model import Model

__all__ = [
    "EXPORT",
    "document",
]

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
