"""A model of realistic size, trained on synthetic rows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from anytime._linalg import single_blas_thread
from anytime.estimators import AnytimeRegressor
from anytime.model.model import Model


def saved_model(
    path: Path,
    groups: int = 20,
    size: int = 3,
    rows: int = 4000,
    *,
    seed: int = 0,
    basis: str | None = None,
    name: str = "load",
    prefix: str = "group",
) -> Model:
    """Train a regression on `groups` groups of `size` columns, costs 1 to 10 ms, and save it with its moments.

    Parameters
    ----------
    prefix : beginning of the groups' names.
    """
    rng = np.random.default_rng(seed)
    D = groups * size
    X = rng.standard_normal((rows, D))
    X[:, 1:] += 0.5 * X[:, :-1]
    y = X @ rng.standard_normal(D) + 3.0 * rng.standard_normal(rows)
    costed = [
        {
            "name": f"{prefix}-{g}",
            "features": [f"x{g * size + j}" for j in range(size)],
            "cost": round(float(rng.uniform(1, 10)), 3),
        }
        for g in range(groups)
    ]
    with single_blas_thread():
        model = AnytimeRegressor({"cost_unit": "ms", "groups": costed}, basis=basis, n_jobs=1).fit(X, y)
        return model.save(path, name=name)


@contextmanager
def temporary_model(**options: Any) -> Iterator[tuple[Path, Model]]:
    """Yield a saved model, whose folder exists until the end of the block."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "load.safetensors"
        yield path, saved_model(path, **options)


def values_of(model: Model, group: str, rng: np.random.Generator) -> list[float]:
    """Return values of one group for one row, with as many digits as JSON usually has."""
    place = model.places[group]
    return [round(float(number), 6) for number in rng.standard_normal(place.stop - place.start)]
