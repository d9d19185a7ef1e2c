"""Estimate an obstacle's distance at whatever moment the deadline is.

A vehicle computes four groups of features from each picture. Their times vary from picture to picture, and so does the
time until the vehicle must decide. The anytime model answers from the groups that are complete by then. Two other
models each use a fixed set of groups: if one is not complete at the deadline, only the mean distance is left. The times
here are drawn from distributions, so the picture is the same on every machine; `Runner` does the same with real
extractors and a real clock.
"""

import matplotlib.pyplot as plt
import numpy as np

from anytime import AnytimeRegressor

GROUPS = {
    "cost_unit": "ms",
    "groups": [
        {"name": "speed", "features": ["speed"], "cost": 0.2},
        {"name": "edges", "features": ["width", "height"], "cost": 2},
        {"name": "flow", "features": ["expansion"], "cost": 5},
        {"name": "stereo", "features": ["disparity"], "cost": 11},
    ],
}

rng = np.random.default_rng(1)
n = 4000
distance = rng.uniform(5, 60, n)
speed = 2 + 0.2 * distance + rng.normal(0, 3, n)
X = np.column_stack(
    [
        speed,
        60 - distance + rng.normal(0, 12, n),
        60 - distance + rng.normal(0, 14, n),
        speed - 0.3 * distance + rng.normal(0, 2, n),
        60 - distance + rng.normal(0, 4, n),
    ]
)
train, test = slice(0, 2000), slice(2000, n)

model = AnytimeRegressor(GROUPS, alpha="cv").fit(X[train], distance[train])
errors = np.array(
    [(distance[test] - predicted) ** 2 for predicted in model.staged_predict(X[test])]
)  # (steps + 1, rows)
costs = np.diff(model.costs_)
ready = np.cumsum(rng.gamma(4, costs / 4, (errors.shape[1], len(costs))), axis=1).T  # when each prefix is complete

deadlines = np.linspace(0, 40, 201)
rmse: dict[str, list[float]] = {}
rows = np.arange(errors.shape[1])
for deadline in deadlines:
    done = (ready <= deadline).sum(axis=0)
    rmse.setdefault("anytime: the complete prefix", []).append(errors[done, rows].mean())
    for step in (2, 4):
        used = np.where(done >= step, step, 0)
        rmse.setdefault(f"fixed: the first {step} groups, or nothing", []).append(errors[used, rows].mean())

print("sequence:", ", ".join(model.sequence_))
for name, values in rmse.items():
    root = np.sqrt(values)
    plt.plot(deadlines, root, label=name)
    print(f"{name}: " + ", ".join(f"{root[5 * at]:.1f} m at {at} ms" for at in (1, 5, 10, 20, 40)))

plt.xlabel("deadline (ms)")
plt.ylabel("root mean squared error (m)")
plt.ylim(0)
plt.legend(frameon=False)
plt.savefig("vehicle.svg", metadata={"Date": None})
