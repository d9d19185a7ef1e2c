"""An answer that another thread makes is of one moment, whatever arrives before it is made."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from anytime.estimators import AnytimeRegressor
from anytime.inference.prediction import Answer, Prediction, Settled
from anytime.inference.subsets import arrived_model
from anytime.model.model import Model
from anytime.types import Policy

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
    from anytime.inference.values import checked_row  # noqa: PLC0415
    from service.serving import VALUES, trained_model  # noqa: PLC0415

    prediction = Prediction(trained_model())
    row, other = (
        checked_row(prediction.model, {name: [v + d for v in VALUES[name]] for name in VALUES}) for d in (0, 1)
    )
    assert row is not None
    assert other is not None
    prediction.add_all(row)
    later, expected = settled(prediction, "prefix", explain=True), now(prediction, "prefix", explain=True)
    prediction.add_all(other)
    assert later.make() == expected


def test_values_are_copied_only_while_a_snapshot_reads_them() -> None:
    prediction = Prediction(model(pairs=False), ROWS)
    prediction.add("a", values("a", 2))
    first = prediction._X
    later = settled(prediction, "prefix", explain=False)
    prediction.add("b", values("b", 2))
    assert prediction._X is first, "a new group writes where no snapshot reads"
    prediction.add("a", values("a", 4))
    second = prediction._X
    assert second is not first
    prediction.add("a", values("a", 6))
    assert prediction._X is second, "the snapshot reads the first array"
    settled(prediction, "prefix", explain=False)  # and forgotten
    prediction.add("a", values("a", 8))
    assert prediction._X is second
    assert later.numbers == ROWS
