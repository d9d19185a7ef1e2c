"""Share the price of a blood draw.

Three tests need blood. The draw has no features, costs 10 dollars and is paid once: the first blood test waits until
it is worth the draw, and the next ones cost only their own price. When the draw becomes cheaper, `resequence` changes
the order. It needs no data, because the model stores the moments of its training rows. The data are those of
`models/clinic`: 442 patients whose diabetes was measured again a year later.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import yaml
from sklearn.metrics import r2_score

from anytime import AnytimeRegressor, LoadedModel, Model, load_groups, resequence

CLINIC = Path(__file__).parents[3] / "models" / "clinic"
train, test = pd.read_csv(CLINIC / "train.csv"), pd.read_csv(CLINIC / "test.csv")
prices = yaml.safe_load((CLINIC / "groups.yaml").read_text())


def draw(model: Model, label: str) -> None:
    """Draw the R² of other patients for each budget, and name what each step adds."""
    patients = LoadedModel.of(model).open(rows=len(test))
    for group in model.groups.groups:
        if group.features:
            patients.add(group.name, test[list(group.features)])
    answers = [patients.answer(budget=cost) for cost in model.costs]
    r2 = [r2_score(test["progression"], answer.prediction) for answer in answers]
    plt.step([*model.costs, 42], [*r2, r2[-1]], where="post", marker="o", markevery=range(len(r2)), label=label)
    print(f"{label}:")
    for cost, value, step in zip(model.costs[1:], r2[1:], model.manifest.steps, strict=True):
        print(f"  {cost:>4.0f} dollars  R² {value:.3f}  {' + '.join(step.adds)}")


old = AnytimeRegressor(prices, alpha="cv").fit(train, train["progression"]).model_
draw(old, "the draw costs 10 dollars")
for group in prices["groups"]:
    if group["name"] == "blood-draw":
        group["cost"] = 1
new = resequence(old, load_groups(prices))
draw(new, "the draw costs 1 dollar")

plt.xlabel("cost of the computed groups (dollars)")
plt.ylabel("R² on 92 other patients")
plt.ylim(-0.02, 0.65)
plt.legend(frameon=False, loc="lower right")
plt.savefig("clinic.svg", metadata={"Date": None})
