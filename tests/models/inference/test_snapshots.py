"""An answer that another thread makes is of one moment, whatever arrives before it is made."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from anytime.estimators import AnytimeRegressor
from anytime.inference.prediction import Answer, Prediction, Settled
from anytime.inference.subsets import arrived_model
from anytime.inference.values import checked_row
from anytime.model.model import Model
from anytime.types import Policy
from models.present import present

ROWS = 40
LEVELS = ["east", "north", "south"]
GROUPS: dict[str, Any] = {
    "groups": [
        {"name": "a", "features": ["a0", "a1"], "cost": 1.0},
        {"name": "port", "features": ["port"], "cost": 2.0},
        {"name": "b", "features": ["b0"], "cost": 3.0},
    ]
}


def table(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        **{name: rng.normal(size=200) for name in ("a0", "a1", "b0")},
        "port": rng.choice(LEVELS, size=200).tolist(),
    }


@cache
def model(*, pairs: bool) -> Model:
    import pandas as pd  # noqa: PLC0415  (takes a second to import)

    frame = pd.DataFrame(table(0))
    options: dict[str, Any] = {"pairs": 2} if pairs else {}
    y = frame["a0"] * frame["b0"] * 3 + frame["a1"] + (frame["port"] == "north") * 2.0
    return AnytimeRegressor(GROUPS, alpha=1e-3, basis="linear", **options).fit(frame, y).model_


def values(group: str, seed: int) -> list[list[Any]]:
    """Values of a group; some are missing, beyond the range, or levels that were never seen."""
    rng = np.random.default_rng(seed)
    if group == "port":
        return [[name] for name in rng.choice([*LEVELS, "mars"] if seed % 2 else LEVELS, size=ROWS).tolist()]
    rows: list[list[Any]] = rng.normal(size=(ROWS, 2 if group == "a" else 1), scale=1 + 50 * (seed % 2)).tolist()
    rows[0][0] = None if seed % 3 else 0.5
    return rows


def settled(prediction: Prediction, policy: Policy, *, explain: bool) -> Settled:
    return prediction.settle(
        *(None, policy),
        ranking=True,
        explain=explain,
        reason="end",
        elapsed_ms=0.0,
        late_groups=(),
        solve=arrived_model,
        at_once=0,
    )


def now(prediction: Prediction, policy: Policy, *, explain: bool) -> Answer:
    return prediction.answer(policy=policy, ranking=True, explain=explain)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("explain", [False, True])
@pytest.mark.parametrize("policy", ["prefix", "arrived"])
@pytest.mark.parametrize("seed", range(4))
def test_numbers_that_are_made_later_are_those_of_the_moment(
    policy: Policy, seed: int, *, explain: bool, pairs: bool
) -> None:
    rng = np.random.default_rng(seed)
    prediction = Prediction(model(pairs=pairs), None)
    waiting: list[tuple[Settled, Answer]] = []
    for step in range(12):
        # The copy of a prediction that nobody else reads answers as the prediction does now.
        waiting.append((settled(prediction, policy, explain=explain), now(prediction, policy, explain=explain)))
        group = str(rng.choice(["a", "b", "port"]))
        prediction.add(group, values(group, 10 * seed + step))
        if rng.random() < 0.3:
            del waiting[rng.integers(len(waiting))]
    assert prediction.replacements > 3
    for later, expected in waiting:
        assert later.make() == expected


def test_a_row_of_numbers_replaces_none_of_a_snapshot() -> None:
    prediction = Prediction(model(pairs=False))
    row, other = (checked_row(prediction.model, {"a": [value, 2.0], "b": [value]}) for value in (0.5, 1.5))
    prediction.add_all(present(row))
    later, expected = settled(prediction, "arrived", explain=True), now(prediction, "arrived", explain=True)
    prediction.add_all(present(other))
    assert later.make() == expected
    assert now(prediction, "arrived", explain=True).prediction != expected.prediction
