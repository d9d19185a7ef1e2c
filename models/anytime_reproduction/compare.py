"""`anytime compare`: a comparison of the selection methods on one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

import typer

from anytime._files import check_writable
from anytime.cli import options
from anytime.cli.console import Done, as_json, remark
from anytime.cli.train import open_source, open_test
from anytime.errors import TrainingError
from anytime.evaluation.classes import ClassMeasures, class_measures
from anytime.evaluation.evaluate import table_moments
from anytime.evaluation.plots import FORMATS
from anytime.model.model import affordable
from anytime.tabulated import Series, Tabulated
from anytime.training.train import train
from anytime_reproduction import comparison

SHRUNKEN = "Sparse (shrunken)"
"""The method whose models are those of a path, and not of prefixes."""

Classes: TypeAlias = Mapping[str, ClassMeasures]
"""Measures of classes on the test table, by method."""


@dataclass(frozen=True, kw_only=True)
class ComparePlan(options.FitPlan):
    """The options of `compare`: its penalty is that of CS-G-OMP."""

    fixed: ClassVar[Mapping[str, Any]] = {"method": "omp", "family": "gaussian"}


@options.spread
def compare(
    data: options.DataOrMoments,
    plan: ComparePlan,
    test: options.TestTable = None,
    level: Annotated[
        float | None,
        typer.Option(
            help="Measure timeliness up to this share of the final value, above 0 and at most 1; the default is the "
            "plateau."
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the curves to this file (png, svg or pdf).")] = None,
    json: options.AsJson = False,
) -> None:
    """Compare the selection methods on one table.

    The output has the timeliness up to the plateau and the explained variance of the last prefix; with --json, of every
    prefix. All methods share one penalty; with --alpha cv it is the one chosen for CS-G-OMP. For classes, --test also
    measures accuracy, balanced accuracy, AUC, log loss and Brier score: at half of the cost, with --json at every
    prefix.

    Example: anytime compare train.csv --groups groups.yaml --target target --test test.csv
    """
    if level is not None and not 0 < level <= 1:
        raise TrainingError(f"--level is {level}; expected a share above 0, at most 1")
    check_writable(plot, FORMATS)
    source = open_source(data, plan)
    tested = None if test is None else open_test(source.like(plan.open(test)))
    trained = train(source)
    for each in (*trained.source.warnings, *trained.source.decisions):
        remark(each)
    fitted = trained.fit
    held, expansion = None, fitted.expansion
    if tested is not None:
        rows = replace(tested, groups=expansion.groups)
        held = fitted.gram.held_out_moments(
            table_moments(rows, n_jobs=plan.n_jobs).with_indicator_features(expansion.indicated)
        )
    compared = comparison.compare(fitted.gram, expansion.terms, fitted.alpha, held, level)
    of_classes = tested is not None and tested.target.classes is not None
    classes = {
        name: class_measures(replace(curve.models, expansion=expansion), rows.target, rows)
        for name, curve in compared.test.items()
        if of_classes and curve.models is not None and name != SHRUNKEN
    }
    unit, done = expansion.groups.cost_unit, Done()
    if plot is not None:
        with done.then(plot):
            comparison.plot_comparison(compared, unit, plot)
            remark(f"wrote {plot}")
    if json:
        done.print(as_json(_values(compared, unit, classes)))
    else:
        done.print(
            _table(compared),
            *_classes_tables(compared, classes),
            *_notes(classes),
            f"alpha {compared.alpha:.3g}; timeliness is the mean share explained up to {compared.stop:g} {unit}, where "
            f"CS-G-OMP reaches {100 * compared.level:g} % of its final training value; F in training includes the "
            "penalty (except for shrunken weights), r2 does not",
        )


def _table(compared: comparison.Comparison) -> Tabulated:
    columns = [Series("method", list(compared.train))]
    for side, curves in compared.sides.items():
        named = {
            "timeliness": [each.timeliness for each in curves.values()],
            "step": [each.timeliness_step for each in curves.values()],
            "final F": [each.explained_variance[-1] for each in curves.values()],
            "r2": [None if each.r2 is None else each.r2[-1] for each in curves.values()],
        }
        columns += [Series(f"{side} {name}", values, form=".4f") for name, values in named.items()]
    return Tabulated.of(*columns)


def _classes_tables(compared: comparison.Comparison, classes: Classes) -> list[Tabulated]:
    """Return the measures of classes on the test table, of each method within half of the cost; none without."""
    records = [
        {"method": method, "cost": costs[prefix]}
        | {name.replace("_", " "): values[prefix] for name, values in measures.by_name().items()}
        for method, measures in classes.items()
        for costs in (compared.test[method].costs,)
        for prefix in (affordable(costs, float(costs[-1]) / 2),)
    ]
    note = "test measures of classes at half of the cost"
    return [Tabulated.of_rows(records[0], map(dict.values, records), notes=(note,))] if records else []


def _notes(classes: Classes) -> list[str]:
    methods = {
        found.note: [name for name, measures in classes.items() if measures.note == found.note]
        for found in classes.values()
        if found.note is not None
    }
    return [f"{', '.join(names)}: {note}" for note, names in methods.items()]


def _values(compared: comparison.Comparison, unit: str, classes: Classes) -> dict[str, Any]:
    return {
        "alpha": compared.alpha,
        "level": compared.level,
        "stop": compared.stop,
        "cost_unit": unit,
        "methods": [
            {"name": name}
            | {
                side: _curve_values(curves[name], classes.get(name) if side == "test" else None)
                for side, curves in compared.sides.items()
            }
            for name in compared.train
        ],
    }


def _curve_values(curve: comparison.MethodCurve, classes: ClassMeasures | None) -> dict[str, Any]:
    values = {name: value for name, value in vars(curve).items() if name not in ("costs", "models")}
    measures = {} if classes is None else classes.by_name() | {"majority": classes.majority}
    return {"cost": curve.costs, **values, **measures}
