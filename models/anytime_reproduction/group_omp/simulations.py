"""Table 1 of the Group-OMP paper, its four simulations, reproduced and compared with the published figures."""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import partial

from anytime_reproduction.experiment import (
    Cell,
    Estimate,
    Experiment,
    Figure,
    Finding,
    Results,
    Run,
    Section,
    Setting,
    Table,
)
from anytime_reproduction.group_omp.claims import (
    ROWS,
    Scores,
    advice,
    cells,
    claim,
    explained,
    explanation_table,
    paired,
)
from anytime_reproduction.group_omp.designs import DESIGNS, METHODS
from anytime_reproduction.group_omp.published import MIN_RUNS, TABLE_1, Compared, batched, by_name, experiments, verdict
from anytime_reproduction.group_omp.trials import MEASURES, SCORINGS, VARIATIONS, row_names, trials

__all__ = [
    "GROUP_OMP",
]

QUICK_BATCH = 4
"""Number of runs in a quick run's single batch."""

NUMBERS = tuple(design.number for design in DESIGNS)


def _runs(setting: Setting) -> list[Run]:
    return batched(setting, trials, "variation", VARIATIONS, quick=QUICK_BATCH)


def _gathered(results: Results) -> Scores:
    """Return the scores of all runs of a variation in one list."""
    return {
        variation: {
            scoring: {
                row: {m: [x for batch in batches for x in batch[scoring][row][m]] for m in MEASURES}
                for row in batches[0][scoring]
            }
            for scoring in SCORINGS
        }
        for variation, batches in by_name(results, VARIATIONS).items()
    }


def _section(_: Setting, results: Results) -> Section:
    scores = _gathered(results)
    compared = {number: cells(scores, f"printed-{number}", "printed", ROWS) for number in NUMBERS}
    findings = [_reproduced(number, compared[number]) for number in NUMBERS]
    findings += [_ols_finding(compared), *explained(scores)]
    findings += [claim(scores, kind) for kind in ("Oracle", "Holdout")]
    tables = [_table(measure, scores) for measure in MEASURES]
    tables += [_outside(compared), explanation_table(scores), _ols(scores), _paired(scores)]
    return Section(tuple(findings), _text(scores), tuple(tables), tuple(_figures(scores)))


def _reproduced(number: int, compared: Many[Compared]) -> Finding:
    strict, agree = (sum(flags) for flags in zip(*((c.strict, c.agrees) for c in compared), strict=True))
    outside = sorted({c.row for c in compared if not c.agrees}, key=ROWS.index)
    runs = compared[0].ours.runs
    text = (
        f"Experiment {number} as printed: {strict} of {len(compared)} published means lie within three of our standard "
        f"errors, {agree} if the published errors are included"
    )
    text += f"; outside: {', '.join(outside)}" if outside else ""
    return Finding(f"{text}{_proviso(runs)}.", agrees=verdict(not outside, runs))


def _proviso(runs: int) -> str:
    return f" ({runs} runs are too few for a verdict)" if runs < MIN_RUNS else ""


def _ols_finding(compared: dict[int, list[Compared]]) -> Finding:
    """Return a finding on OLS, which has no tuning: its model error shows whether the design matches the authors'."""
    found = [next(c for c in compared[number] if c.row == "OLS" and c.where.endswith("ME")) for number in NUMBERS]
    listed_errors = ", ".join(f"{c.ours.mean:.2f} ({c.published.mean:.2f})" for c in found)
    wrong = [str(number) for number, c in zip(NUMBERS, found, strict=True) if not c.agrees]
    runs = found[0].ours.runs
    text = (
        f"is more than three standard errors away in experiment {' and '.join(wrong)}"
        if wrong
        else "is within three standard errors"
    )
    where = "there " if len(wrong) < len(found) else ""
    if wrong and runs >= MIN_RUNS:
        text += f": the published figures {where}do not come from the design as we read it"
    return Finding(
        f"The model error of OLS, which has no tuning, {text}{_proviso(runs)}. Ours (published), experiments 1 "
        f"to 4: {listed_errors}.",
        agrees=verdict(not wrong, runs),
    )


def _table(measure: str, scores: Scores) -> Table:
    words = {"F1 (Var)": "F1 of variables", "F1 (Group)": "F1 of groups", "ME": "model error"}
    rows: list[tuple[Cell, ...]] = []
    for row in ROWS:
        ours = [Estimate.of(scores[f"printed-{n}"]["printed"][row][measure]) for n in NUMBERS]
        rows += [(f"{row}, published", *TABLE_1[measure][row]), (f"{row}, ours", *ours)]
    name = f"group-omp-{words[measure].replace(' ', '-').lower()}"
    runs = len(scores["printed-1"]["printed"]["OLS"]["ME"])
    caption = f"Table 1, {words[measure]}, experiments 1 to 4: mean and standard error of {runs} runs of ours."
    return Table(name, caption, ("method", *(f"experiment {n}" for n in NUMBERS)), tuple(rows), digits=3)


def _outside(compared: dict[int, list[Compared]]) -> Table:
    rows = [
        (c.where, c.row, c.published, c.ours, c.verdict) for number in NUMBERS for c in compared[number] if not c.strict
    ]
    return Table(
        "group-omp-outside",
        "Published means that are not within three of our standard errors, and whether the difference is within three "
        "of its own, which include the published error. With as many runs as in the paper about one in thirty falls "
        "outside ours by chance.",
        ("where", "method", "published", "ours", "agrees"),
        tuple(rows),
        digits=3,
    )


def _ols(scores: Scores) -> Table:
    kinds = [
        ("no intercept, E(x x') (as printed)", "printed", "printed"),
        ("no intercept, covariance", "printed", "covariance"),
        ("intercept, E(x x')", "intercept", "printed"),
        ("intercept, covariance", "intercept", "covariance"),
    ]
    rows: list[tuple[Cell, ...]] = [("published", *TABLE_1["ME"]["OLS"])]
    for what, family, scoring in kinds:
        found = [scores.get(f"{family}-{n}") for n in NUMBERS]
        rows.append((what, *(Estimate.of(s[scoring]["OLS"]["ME"]) if s else None for s in found)))
    return Table(
        "group-omp-ols",
        "The model error of OLS under the readings that the paper permits. Only experiments 1 and 2 have columns "
        "with nonzero means.",
        ("how", *(f"experiment {n}" for n in NUMBERS)),
        tuple(rows),
        digits=3,
    )


def _paired(scores: Scores) -> Table:
    rows = [
        (n, kind, rival, *(paired(scores, n, kind, rival, measure) for measure in MEASURES))
        for n in NUMBERS
        for kind in ("Oracle", "Holdout")
        for rival in METHODS
        if rival != "Group-OMP"
    ]
    return Table(
        "group-omp-paired",
        "Group-OMP minus each rival over the same runs: common effects cancel. Above 0 in F1 and "
        "below 0 in the model error is better.",
        ("experiment", "chosen by", "rival", *MEASURES),
        tuple(rows),
        digits=3,
    )


def _text(scores: Scores) -> tuple[str, ...]:
    runs = len(scores["printed-1"]["printed"]["OLS"]["ME"])
    designs = "; ".join(f"({design.number}) {design.what}" for design in DESIGNS)
    return (
        f"Table 1 of the Group-OMP paper, {runs} runs of each of its four simulations: {designs}. All rows are drawn "
        "here; no data set is needed.",
        "Lasso and OMP choose single variables, the Group Lasso and Group-OMP whole groups. *Oracle* is the point of a "
        "method's path with the smallest model error, which only a simulation knows; *Holdout* is the point with the "
        "smallest error on the validation rows, which is available in practice.",
        "When to use which: Group-OMP if groups matter as a whole and the question is which; the Lasso and the Group "
        "Lasso shrink the selected coefficients, which may reduce the error if groups explain little compared with "
        f"the noise. {advice(scores)} The paired table shows by how much.",
        "Readings of the paper. In experiment 3 the printed hidden index floor((i-1)/3)+1 would need five hidden "
        "variables where there are three: floor((i-1)/5)+1 is meant, and its noise has variance 0.1 (0.1^(1/2) is "
        "printed as 0.11/2). The model error is (w - b)' E(x x') (w - b), uncentred as printed, with E(x x') derived "
        "exactly; no method has an intercept. Columns are scaled to the same length for Lasso and OMP, groups are "
        "orthonormalised for the Group Lasso and Group-OMP, and the Group Lasso's weights are 1, as printed. "
        "Paths include every iteration of the greedy methods, and 100 penalties of the others, the last a "
        "ten-thousandth of the first.",
    )


def _figures(scores: Scores) -> list[Figure]:
    rows = {method: row_names(method).get("Holdout", method) for method in METHODS}
    figures = []
    for measure, name, words in (("F1 (Group)", "f1", "F1 of groups"), ("ME", "error", "model error")):
        ours = [
            {m: Estimate.of(scores[f"printed-{n}"]["printed"][row][measure]) for m, row in rows.items()}
            for n in NUMBERS
        ]
        published = [{m: TABLE_1[measure][row][n - 1] for m, row in rows.items()} for n in NUMBERS]
        caption = f"Table 1 by hold-out, {words}: ours (filled) and published (hollow), with standard errors."
        draw = partial(experiments, words, ours, published, log=measure == "ME")
        figures.append(Figure(f"group-omp-{name}", caption, draw))
    return figures


GROUP_OMP = Experiment(
    "group-omp",
    "Simulations of the Group-OMP paper",
    "Lozano, Swirszcz and Abe (2009), Table 1",
    _runs,
    _section,
)
"""Four designs, five methods, and explanations of what differs."""
