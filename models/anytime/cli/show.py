"""`anytime show`: what a model file holds."""

from __future__ import annotations

from anytime.cli.console import print_json, results
from anytime.cli.options import AsJson, ModelFile
from anytime.cli.report import described, steps_table, summary
from anytime.inference.loaded import load

__all__ = ["show"]


def show(model: ModelFile, json: AsJson = False) -> None:
    """Show the steps of a model: what each adds, costs and explains."""
    loaded = load(model)
    if json:
        print_json(described(loaded))
        return
    console = results()
    console.print(steps_table(loaded))
    console.print(summary(loaded), markup=False)
