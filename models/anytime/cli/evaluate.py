"""`anytime evaluate`: every prefix of a model on a table."""

from __future__ import annotations

from anytime.cli.arguments import AsJson, Data, DropMissing, Jobs, ModelFile, workers

__all__ = ["evaluate"]


def evaluate(
    model: ModelFile, data: Data, json: AsJson = False, drop_missing_target: DropMissing = False, n_jobs: Jobs = None
) -> None:
    """Measure every prefix of a model on a table: r2, squared error, accuracy or NDCG@5, coverage, timeliness."""
    from anytime import evaluation  # noqa: PLC0415
    from anytime.artifact import load  # noqa: PLC0415
    from anytime.cli.console import print_json, results  # noqa: PLC0415
    from anytime.cli.reporting import evaluation_table, evaluation_values  # noqa: PLC0415
    from anytime.tables import open_table  # noqa: PLC0415

    loaded = load(model)
    table = open_table(data)
    evaluated = evaluation.evaluate(loaded, table, drop_missing=drop_missing_target, n_jobs=workers(n_jobs))
    if json:
        print_json(evaluation_values(evaluated))
        return
    console = results()
    console.print(evaluation_table(loaded, evaluated))
    console.print(
        f"{evaluated.rows} rows; timeliness up to cost {evaluated.stop:g}: {evaluated.timeliness:.4f} (trapezoid), "
        f"{evaluated.timeliness_step:.4f} (step)",
        markup=False,
    )
