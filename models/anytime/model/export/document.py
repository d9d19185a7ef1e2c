"""A model as a JSON document: what answering by prefixes takes, and no more.

    scores = intercept + (x - mean) @ coef

of a prefix, x being its first `features` values in the order of the document's features; a missing value counts as its
mean. The library answers from the longest prefix whose groups have all come and whose cost is at most the budget, and
one part in 1e9 more, as costs are sums. `link` makes predictions of scores: "identity", "logit", "softmax" or "log",
where scores over 500 count as 500. Where classes have the link "identity", their scores are least-squares estimates of
indicators, clipped at 0 and scaled to sum to 1 (even shares where none is positive); a single score, of this link or of
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
"""Number of this form of document."""


def document(model: Model) -> dict[str, Any]:
    """The document of a model; every number is finite.

    Groups are in the order of the sequence, those without features too; a group is ready with prefix `step`. Its
    features are those from `start` to before `stop`.
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
    """One prefix; `coef` has a row for each of its features, and a column for each score."""
    return {
        "cost": float(model.costs[prefix]),
        "cv_error": model.expected(prefix).cv_error,
        "features": int(model.prefixes.ends[prefix]),
        "intercept": model.prefixes.intercept_of(prefix).tolist(),
        "coef": model.prefixes.coef(prefix).tolist(),
    }
