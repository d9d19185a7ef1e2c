"""Learn from a stream whose world changes.

Each day brings 300 rows, and `partial_fit` adds them to the moments; memory does not grow. On day 15 the cheap sensor
breaks and returns noise. A model that weights all days equally keeps relying on it. With `decay=0.7`, the weight of all
earlier rows shrinks to 0.7 times with each day: the model moves the sensor to the end of its sequence and recovers. The
rows of each day first test both models, at a budget that affords one of the two sensors, and then train them.
"""

import matplotlib.pyplot as plt
import numpy as np

from anytime import AnytimeRegressor

GROUPS = {
    "cost_unit": "ms",
    "groups": [
        {"name": "clock", "features": ["hour"], "cost": 0.1},
        {"name": "cheap sensor", "features": ["cheap"], "cost": 2},
        {"name": "good sensor", "features": ["good"], "cost": 5},
    ],
}
DAYS, ROWS, BUDGET, BREAKS = 30, 300, 6, 15

rng = np.random.default_rng(0)
models = {decay: AnytimeRegressor(GROUPS, alpha=1e-3, basis="linear") for decay in (1.0, 0.7)}
r2: dict[float, list[float]] = {decay: [] for decay in models}
for day in range(DAYS):
    truth, hour = rng.normal(size=ROWS), rng.uniform(-1, 1, ROWS)
    cheap = rng.normal(size=ROWS) + (0 if day >= BREAKS else 3 * truth)
    X, y = np.column_stack([hour, cheap, truth + rng.normal(0, 0.3, ROWS)]), truth + 0.5 * hour
    for decay, model in models.items():
        if day:
            r2[decay].append(model.score(X, y, budget=BUDGET))
        model.partial_fit(X, y, decay=decay)
        if day in (BREAKS - 1, DAYS - 1):
            print(f"day {day}, decay {decay}: {', '.join(model.sequence_)}")

for (decay, values), name in zip(r2.items(), ("all days count equally", "old days fade"), strict=True):
    plt.plot(range(1, DAYS), values, marker="o", markersize=3, label=f"decay={decay}: {name}")
plt.axvline(BREAKS, color="0.5", linestyle="--", label="the cheap sensor breaks")
plt.xlabel("day")
plt.ylabel(f"R² of the next day at {BUDGET} ms")
plt.legend(frameon=False, loc="lower left")
plt.savefig("streaming.svg", metadata={"Date": None})
