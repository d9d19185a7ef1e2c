"""Certificates: proved bounds on how close forward regression is to the best possible set at each of its costs.

The papers have no certificates. The report compares them with the bound of Theorem 3.2, which ignores the data.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from anytime.evaluation.certificate.certify import certify_prefixes
from anytime.model.model import at_least
from anytime.moments.moments import Gram, Moments
from anytime.selection import sequence
from anytime.training.guarantee import bound, guarantee
from anytime.types import Float
from anytime_reproduction.experiment import Experiment, Figure, Finding, Result, Results, Run, Section, Setting, Table
from anytime_reproduction.report import panels
from anytime_reproduction.sets import SetName, load_set, regrouping

ALPHA = 1e-5


class Case(NamedTuple):
    """A data set in its own groups, or in random groups of a size, and seconds for its certificate."""

    label: str
    name: SetName
    size: int | None
    seconds: float


CASES = (
    Case("mq2008", "mq2008", None, 60.0),
    Case("boston_housing", "boston_housing", None, 60.0),
    Case("kddcup99", "kddcup99", None, 120.0),
    Case("yahoo_sample", "yahoo_sample", None, 300.0),
    Case("yahoo_sample in fives", "yahoo_sample", 5, 200.0),
)

QUICK_SECONDS = 5.0  # seconds for the certificate of each of the first two cases in a quick run


def certified(setting: Setting, name: SetName, size: int | None, seconds: float) -> Result:
    """Return the certificate of the sequence of forward regression on all training rows."""
    data = load_set(name, setting)
    trained = data.splits[0][0] if name == "yahoo_sample" else range(int(data.part.max()) + 1)
    groups, order = regrouping(setting, data.groups, size)
    gram = Gram.of(Moments.merged([data.moments[part] for part in trained])).restricted(order)
    learned = sequence(gram, groups, "fr", ALPHA)
    costs, explained = learned.costs[1:], learned.explained_variance[1:]
    found = certify_prefixes(gram, groups, costs, explained, ALPHA, seconds=seconds, nodes=100_000, n_jobs=1)
    gamma = guarantee(gram, groups, "fr", ALPHA).gamma
    return {
        "groups": len(groups),
        "unit": groups.cost_unit,
        "costs": costs.tolist(),
        "F": explained.tolist(),
        "bound": [prefix.bound for prefix in found],
        "exact": [prefix.exact for prefix in found],
        "best": [prefix.reached for prefix in found],
        "nodes": sum(prefix.nodes for prefix in found),
        "promised": None if gamma is None else bound(gamma, 1.0, 1.0),
    }


def _runs(setting: Setting) -> list[Run]:
    return [
        Run(
            case.label.replace(" ", "-"),
            certified,
            {"name": case.name, "size": case.size, "seconds": QUICK_SECONDS if setting.quick else case.seconds},
        )
        for case in (CASES[:2] if setting.quick else CASES)
    ]


def _section(setting: Setting, results: Results) -> Section:
    found = {
        case._replace(label=setting.labelled(case.label, case.name)): results[name]
        for case in CASES
        if (name := case.label.replace(" ", "-")) in results
    }
    records = [_record(case, result) for case, result in found.items()]
    table = Table.titled(
        "certificates",
        "The certified share of every prefix of CS-G-FR of the best possible F at its cost.",
        records[0],
        map(dict.values, records),
    )
    figure = Figure(
        "certificates",
        "The widest gaps: F of CS-G-FR (solid) and the certified bound on the F of any set of groups of that cost "
        "(dashed).",
        partial(_draw, found),
    )
    return Section([_finding(case, result) for case, result in found.items()], _text(found), (table,), (figure,))


def _record(case: Case, result: Result) -> dict[str, Any]:
    shares, exact, promised = _shares(result), result["exact"], result["promised"]
    return {
        "set": case.label,
        "groups": result["groups"],
        "prefixes": len(exact),
        "best known exactly": sum(exact),
        "least certified": at_least(float(shares.min())),
        "median": at_least(float(np.median(shares))),
        "Theorem 3.2 at B = K": "" if promised is None else f"{promised:.1%}",
        "nodes": result["nodes"],
    }


def _text(found: dict[Case, Result]) -> tuple[str, ...]:
    least = min(float(_shares(result).min()) for result in found.values())
    promised = [result["promised"] for result in found.values() if result["promised"] is not None]
    guaranteed = f"at most {max(promised):.1%} at equal cost" if promised else "nothing"
    return (
        "For every prefix, branch and bound searches the best set of groups that costs no more, and maintains a bound "
        "that no such set exceeds. If the search completes, the best set is known; if its time expires first, the "
        "bound is still valid, and a faster machine finds a tighter one. anytime certify does the same for your "
        "model.",
        f"Conclusion: Theorem 3.2, which is valid for any data, guarantees {guaranteed} on these sets; the "
        f"certificates, which are specific to the data, prove {at_least(least)} or more for every prefix of each.",
    )


def _shares(result: Result) -> Float:
    return np.asarray(np.divide(result["F"], result["bound"]))


def _finding(case: Case, result: Result) -> Finding:
    exact = np.array(result["exact"])
    optimal = int((exact & (np.array(result["best"]) * (1 - 1e-9) <= result["F"])).sum())
    return Finding(
        f"{case.label}: the best set is known at {exact.sum()} of {len(exact)} costs, and the greedy prefix is it "
        f"{optimal} times; every prefix has at least {at_least(float(_shares(result).min()))} of the best possible"
    )


def _draw(found: dict[Case, Result]) -> Any:
    """Draw the widest gaps between the value reached and the bound, at most three."""
    widest = sorted(found, key=lambda case: float(_shares(found[case]).min()))[:3]
    shown = [case for case in found if case in widest]
    figure, axes = panels(len(shown), width=4.0, ylabel="explained variance F (training)")
    for axis, case in zip(axes, shown, strict=True):
        costs = np.array(found[case]["costs"])
        axis.step(costs, found[case]["F"], where="post", color="black", linewidth=1.5, label="CS-G-FR")
        # The bound at a cost is valid for smaller costs: a budget between two prefixes has that of the second.
        look = {"color": "0.5", "linestyle": "--", "linewidth": 1.5}
        axis.step(costs, found[case]["bound"], where="pre", label="no set is better", **look)
        axis.set(title=case.label, xlabel=f"cost ({found[case]['unit']})", ylim=(0, None))
        if costs[0] > 0 and costs[-1] > 20 * costs[0]:
            axis.set(xscale="log", xlim=(costs[0], costs[-1]))
    axes[-1].legend(fontsize=9, loc="lower right", frameon=False)
    return figure


CERTIFICATES = Experiment(
    "certificates",
    "Certified shares of the best possible F",
    "",
    _runs,
    _section,
    ("mq2008", "boston_housing", "kddcup99", "yahoo_sample"),
)
