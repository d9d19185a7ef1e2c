"""Rank documents before all features are computed.

A search engine scores 20 documents for each query. What is stored with a document is free, counting the words of the
query takes 0.4 ms, and a neural network takes 6 ms. `staged_predict` scores the documents after each step of the
sequence, and NDCG@5 measures each order. With the basis `hinge`, a column has a curve: here, clicks help up to a point,
and the most relevant documents are neither new nor old.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import ndcg_score

from anytime import AnytimeRegressor

GROUPS = {
    "cost_unit": "ms",
    "groups": [
        {"name": "stored", "features": ["clicks", "age"], "cost": 0.05},
        {"name": "words", "features": ["title", "body"], "cost": 0.4},
        {"name": "links", "features": ["authority"], "cost": 1.5},
        {"name": "network", "features": ["similarity"], "cost": 6},
    ],
}
QUERIES, DOCUMENTS = 400, 20

rng = np.random.default_rng(0)
n = QUERIES * DOCUMENTS
match, clicks, age, authority = rng.normal(size=n), rng.exponential(1, n), rng.uniform(0, 10, n), rng.normal(size=n)
X = np.column_stack(
    [
        clicks,
        age,
        match + rng.normal(0, 1.5, n),
        match + rng.normal(0, 1.0, n),
        authority,
        match + rng.normal(0, 0.3, n),
    ]
)
score = match + np.minimum(clicks, 1) - 0.25 * np.abs(age - 3) + 0.5 * authority + rng.normal(0, 0.3, n)
relevance = np.clip(np.round(score + 1), 0, 4)
query = np.repeat(np.arange(QUERIES), DOCUMENTS)
train = query < QUERIES // 2
truth = relevance[~train].reshape(-1, DOCUMENTS)

curves = {}
for basis in ("linear", "hinge"):
    model = AnytimeRegressor(GROUPS, basis=basis, alpha="cv").fit(X[train], relevance[train], query=query[train])
    ndcg = [ndcg_score(truth, scores.reshape(-1, DOCUMENTS), k=5) for scores in model.staged_predict(X[~train])]
    curves[basis] = ndcg
    print(f"{basis}: " + ", ".join(f"{g} {v:.3f}" for g, v in zip(model.sequence_, ndcg[1:], strict=True)))
    plt.step([*model.costs_, 10], [*ndcg, ndcg[-1]], where="post", marker="o", markevery=range(len(ndcg)), label=basis)

plt.xlabel("cost of the computed groups (ms for each document)")
plt.ylabel("NDCG@5 on other queries")
plt.legend(title="basis", frameon=False, loc="lower right")
plt.savefig("ranking.svg", metadata={"Date": None})
