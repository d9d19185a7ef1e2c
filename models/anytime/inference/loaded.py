"""Loaded models: models that open predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from anytime.inference.prediction import Prediction
from anytime.model.file import read_model
from anytime.model.model import Model

__all__ = ["LoadedModel", "load"]


class LoadedModel(Model):
    """A model that opens predictions; `load` returns one."""

    @classmethod
    def of(cls, model: Model) -> Self:
        """Return a trained model as one that opens predictions, without copying."""
        return cls(model.manifest, model.prefixes, model.moments, model.curvatures)

    def open(self, rows: int | None = 1) -> Prediction:
        """Return a new prediction: add groups as they are computed, and request an answer at any time.

        Parameters
        ----------
        rows : number of rows of the prediction; None takes the number of rows of the first values.
        """
        return Prediction(self, rows)


def load(path: str | Path) -> LoadedModel:
    """Read a model file and validate all of its content.

    Raises
    ------
    ArtifactError
        The file does not exist, is not a model file, has a different format, is truncated or was modified.
    """
    return LoadedModel(*read_model(Path(path)))
