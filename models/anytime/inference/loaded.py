"""Models for prediction: a model file becomes a model that opens predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from anytime.inference.prediction import Prediction
from anytime.model.file import read_model
from anytime.model.model import Model

__all__ = ["LoadedModel", "load"]


class LoadedModel(Model):
    """A model that opens predictions; `load` returns it."""

    @classmethod
    def of(cls, model: Model) -> Self:
        """Return a trained model as one that opens predictions; nothing is copied."""
        return cls(model.manifest, model.prefixes, model.moments, model.curvatures)

    def open(self, rows: int | None = 1) -> Prediction:
        """Return a new prediction: add groups as they are computed, and get an answer at any time.

        Parameters
        ----------
        rows : how many rows the prediction is for; None counts the rows of the first values.
        """
        return Prediction(self, rows)


def load(path: str | Path) -> LoadedModel:
    """Read a model file and check everything in it.

    Raises
    ------
    ArtifactError
        The file does not exist, is not a model file, has another format, is truncated or was changed.
    """
    return LoadedModel(*read_model(Path(path)))
