"""`anytime show`: the content of a model file."""

from __future__ import annotations

from anytime.cli.console import print_json, results
from anytime.cli.options import AsJson, ModelFile
from anytime.cli.report import described, steps_table, summary
from anytime.inference.prediction import load

__all__ = ["show"]


def show(model: ModelFile, json: AsJson = False) -> None:
    """Show the steps of a model: the groups, cost and explained variance of each."""
    loaded = load(model)
    if json:
        print_json(described(loaded))
        return
    console = results()
    console.print(steps_table(loaded))
    console.print(summary(loaded), markup=False)
