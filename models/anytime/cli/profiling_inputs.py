"""From the arguments of `anytime profile` to groups, inputs and numbers of rows."""

from __future__ import annotations

from pathlib import Path

from anytime.artifact import load
from anytime.errors import ExtractorError
from anytime.extractors import imported
from anytime.groups import FeatureGroups, load_groups
from anytime.inputs import Inputs, ModuleInputs, TableInputs
from anytime.tables import open_table

__all__ = ["groups_of", "inputs_of", "row_counts"]


def groups_of(path: Path) -> FeatureGroups:
    """The groups of a groups file, or of a model."""
    return load(path).groups if path.suffix == ".safetensors" else load_groups(path)


def inputs_of(data: Path | None, inputs: str | None, limit: int) -> Inputs:
    """Rows of a table, or what a module has.

    Raises
    ------
    ExtractorError
        Both are given, or neither; or the module has no inputs.
    """
    if (data is None) == (inputs is None):
        what = "no inputs are given" if data is None else "a table and --inputs are given"
        raise ExtractorError(f"{what}; give a table, or --inputs MODULE:INPUTS")
    if data is not None:
        return TableInputs.of(open_table(data), limit)
    assert inputs is not None  # noqa: S101
    return ModuleInputs.of(imported(inputs), limit, inputs)


def row_counts(text: str | None) -> tuple[int, ...]:
    """The value of --rows: whole numbers from 1 on, each once; none for extractors of one row."""
    if text is None:
        return ()
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1 or len(set(counts)) < len(counts):
        raise ExtractorError(f"--rows is {text!r}; expected whole numbers from 1 on, each once, like 1,8,64")
    return counts
