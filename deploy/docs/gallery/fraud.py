"""Buy evidence of fraud only where it is needed.

About four percent of the payments are fraud. The payment itself is free to look at; the history of the account, the
device and a report by a bureau have prices. A logistic model gives the probability of fraud after each step. One
strategy buys the same groups for every payment. The other stops as soon as the probability of fraud is low enough, so
it pays for the expensive report only where there is doubt. Average precision measures how well the last probabilities
find the frauds.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.metrics import average_precision_score

from anytime import AnytimeClassifier

GROUPS = {
    "cost_unit": "cents",
    "groups": [
        {"name": "payment", "features": ["amount", "country"], "cost": 0},
        {"name": "history", "features": ["age", "payments"], "cost": 1},
        {"name": "device", "features": ["known", "distance"], "cost": 4},
        {"name": "bureau", "features": ["report"], "cost": 20},
    ],
}

rng = np.random.default_rng(0)
n = 16_000
fraud = rng.random(n) < 0.04
table = pd.DataFrame(
    {
        "amount": rng.lognormal(3 + 0.8 * fraud, 1),
        "country": np.where(rng.random(n) < np.where(fraud, 0.4, 0.8), "home", rng.choice(["near", "far"], n)),
        "age": rng.exponential(np.where(fraud, 2, 5)),
        "payments": rng.poisson(np.where(fraud, 4, 7)),
        "known": rng.random(n) < np.where(fraud, 0.35, 0.85),
        "distance": rng.lognormal(2 + 1.0 * fraud, 1),
        "report": rng.normal(2.5 * fraud, 1),
    }
)
label = np.where(fraud, "fraud", "genuine")
train, test = slice(0, n // 2), slice(n // 2, n)

model = AnytimeClassifier(GROUPS, basis="hinge", alpha="cv").fit(table[train], label[train])
staged = np.array([p[:, 0] for p in model.staged_predict_proba(table[test])])  # (steps + 1, rows) of "fraud"
print("sequence:", ", ".join(f"{g} ({c:g})" for g, c in zip(model.sequence_, model.costs_[1:], strict=True)))

same = [average_precision_score(fraud[test], probabilities) for probabilities in staged]
plt.plot(model.costs_, same, marker="o", label="the same groups for every payment")
for cost, precision in zip(model.costs_, same, strict=True):
    print(f"every payment: {cost:>5.2f} cents, average precision {precision:.3f}")

paid, precisions = [], []
for threshold in (0.03, 0.02, 0.01, 0.005, 0.002, 0.0):
    low = staged[1:-1] < threshold  # step 0 knows nothing of the payment
    stop = np.where(low.any(axis=0), 1 + low.argmax(axis=0), len(staged) - 1)
    paid.append(model.costs_[stop].mean())
    precisions.append(average_precision_score(fraud[test], staged[stop, np.arange(len(stop))]))
    print(f"stop below {threshold:g}: {paid[-1]:>5.2f} cents on average, average precision {precisions[-1]:.3f}")
plt.plot(paid, precisions, marker="s", label="stop when fraud is improbable")

plt.xlabel("mean cost of a payment (cents)")
plt.ylabel("average precision")
plt.ylim(0, 1)
plt.legend(frameon=False, loc="lower right")
plt.savefig("fraud.svg", metadata={"Date": None})
