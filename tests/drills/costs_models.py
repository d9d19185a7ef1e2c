"""Models with one large aspect: columns, classes, groups, categories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anytime._linalg import single_blas_thread
from anytime.features.expansion import Expansion
from anytime.groups import load_groups
from anytime.moments.accumulate import moments_of
from anytime.target import Target
from anytime.training.fit import fit, provenance
from anytime.training.options import Options

MODELS: Mapping[str, Mapping[str, Any]] = {
    "load": {"groups": 10, "size": 3},
    "wide": {"groups": 30, "size": 100},
    "many": {"groups": 500, "size": 1},
    "c10": {"groups": 5, "size": 2, "classes": 10},
    "c100": {"groups": 5, "size": 2, "classes": 100},
    "cats": {"groups": 5, "size": 2, "levels": 20},
}
"""`wide` has 3,000 columns, and `many` 500 groups."""


def save_models(folder: Path) -> list[Path]:
    """Train and save the models, with their moments; return their files."""
    for name, shape in MODELS.items():
        _save(folder / f"{name}.safetensors", name, **shape)
    return [folder / f"{name}.safetensors" for name in MODELS]


def _save(path: Path, name: str, groups: int, size: int, classes: int = 0, levels: int = 0) -> None:
    rng = np.random.default_rng(0)
    named = [
        {"name": f"g{g}", "features": [f"x{g}_{j}" for j in range(size)], "cost": 1.0 + g % 7} for g in range(groups)
    ]
    bases = {"x0_0": {"basis": "categories", "levels": [f"level {i}" for i in range(levels)], "other": True}}
    spec = load_groups({"cost_unit": "ms", "groups": named, **({"bases": bases} if levels else {})})
    expansion = Expansion.of(spec)
    rows = 2 * groups * size + 200
    X = rng.standard_normal((rows, groups * size))
    for j in expansion.categories:
        X[:, j] = rng.integers(-1, levels, rows)
    terms = expansion.expand(X)
    scores = terms @ rng.standard_normal((terms.shape[1], max(classes, 1)))
    target = Target("regression", ("y",))
    if classes:
        scores = np.eye(classes)[np.concatenate([np.arange(classes), scores[classes:].argmax(axis=1)])]
        target = Target("multiclass", ("y",), tuple(f"class {i}" for i in range(classes)))
    with single_blas_thread():
        fitted = fit([moments_of(terms, scores)], spec, Options(alpha=0.01))
        fitted.model(name, target, provenance(fitted, "memory")).save(path)
