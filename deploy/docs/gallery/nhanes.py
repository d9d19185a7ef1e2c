"""Decide which blood tests are worth their price.

Of 9,535 adults of the first National Health and Nutrition Examination Survey (1971 to 1974), 15.8 % died within ten
years. Age, sex, scales, the cuff and a questionnaire are free; the nine blood tests cost what Medicare pays for them.
For its price, the sedimentation rate adds most to the area under the ROC curve (AUC).

One anytime model serves all budgets. LightGBM can charge for a feature when a tree first uses it (its parameters
`cegb_*`), but needs a model for each budget, selected here on persons of its own. The curves are means over five
random splits: `make bench-peers ARGS='--only prices'` measures them, and writes the file that this script draws.

Prices are those of CoAI (Erion et al., Nature Biomedical Engineering 2022); those of iron, TIBC and magnesium, which
CoAI does not state, are assigned by us. CoAI has figures of 13,442 other patients with 27 groups of features. They are
read from its plot and printed last: other patients, so nothing follows from a comparison with ours.
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

measured = json.loads(Path(__file__).with_suffix(".json").read_text())
curves = {name: tuple(map(np.array, curve)) for name, curve in measured["curves"].items()}
COAI = {25: (0.858, 0.853, 0.850), 40: (0.862, 0.855, 0.854), 100: (0.864, 0.856, 0.854)}

for name, (dollars, auc) in curves.items():
    plt.step(dollars, auc, where="post", label=name)
    at = {budget: auc[np.searchsorted(dollars, budget + 1e-6) - 1] for budget in (0, 5, 10, 20, 40)}
    print(f"{name}: " + ", ".join(f"{value:.3f} for {budget}" for budget, value in at.items()), "dollars")

print(f"\n{'test':<20}{'dollars':>8}{'AUC, if the first':>20}{'if the last':>18}{'dollars for .001':>18}")
for test, price, (first, first_error), (last, last_error) in measured["tests"]:
    rate = f"{price / first / 1000:.2f}" if first > 2 * first_error else "-"
    print(f"{test:<20}{price:>8.2f}{first:>+11.4f} ± {first_error:.4f}{last:>+9.4f} ± {last_error:.4f}{rate:>18}")

print("\nCoAI, other patients: AUC of a linear model / of trees / of LightGBM with prices")
for budget, figures in COAI.items():
    print(f"about {budget:>3} dollars: " + " / ".join(f"{value:.3f}" for value in figures))

plt.xlabel("price of the tests (dollars)")
plt.ylabel("area under the ROC curve, other persons")
plt.legend(frameon=False, loc="lower right")
plt.savefig("nhanes.svg", metadata={"Date": None})
