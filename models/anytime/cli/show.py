"""`anytime show`: what a model file holds."""

from __future__ import annotations

from anytime.cli.arguments import AsJson, ModelFile

__all__ = ["show"]


def show(model: ModelFile, json: AsJson = False) -> None:
    """Show the steps of a model: what each adds, costs and explains."""
    from anytime.artifact import load  # noqa: PLC0415
    from anytime.cli.console import print_json, results  # noqa: PLC0415
    from anytime.cli.reporting import described, steps_table, summary  # noqa: PLC0415

    loaded = load(model)
    if json:
        print_json(described(loaded))
        return
    console = results()
    console.print(steps_table(loaded))
    console.print(summary(loaded), markup=False)
