"""Preparation of a table for the evaluation of a model."""

from __future__ import annotations

from anytime.data.dataset import Dataset
from anytime.data.formats import Table
from anytime.data.survey import survey_target
from anytime.model.model import Model
from anytime.target import Target

__all__ = ["held_out"]


def held_out(
    model: Model, table: Table, *, weights: str | None = None, drop_missing: bool = False
) -> tuple[Dataset, int]:
    """Return a checked dataset of a table with the model's columns, and the number of its rows with a target.

    Parameters
    ----------
    weights : column of row weights, or None.

    Raises
    ------
    TableError, GroupsError
        The table lacks a column of the model, or a target.
    """
    manifest = model.manifest
    query = manifest.query if manifest.query is not None and table.has(manifest.query) else None
    survey = survey_target(table, manifest.target, drop_missing=drop_missing)
    target = Target(manifest.task, manifest.target, manifest.classes)
    dataset = Dataset(table, model.groups, target, query, weights, drop_missing)
    dataset.check()
    return dataset, survey.rows - survey.missing
