"""What the Open Inference Protocol v2 tells of the server and of a model, beside its predictions."""

from __future__ import annotations

import msgspec

from anytime.model.model import Model
from anytime_service.release import release
from anytime_service.wire.inferences import Scalar, class_datatype, in_json

__all__ = [
    "EXTENSIONS",
    "PLATFORM",
    "InferModel",
    "InferModelState",
    "InferServer",
    "InferServerState",
    "InferTensorKind",
    "model_metadata",
    "server_metadata",
]

EXTENSIONS = ("anytime_partial_input", "binary_tensor_data", "parameters")
"""What this server adds to the protocol: any subset of the inputs, tensors as bytes, parameters of a prediction."""

PLATFORM = "anytime_safetensors"


class InferServer(msgspec.Struct, frozen=True):
    """The server, and what it adds to the protocol."""

    name: str
    version: str
    extensions: tuple[str, ...]


class InferServerState(msgspec.Struct, frozen=True):
    """Whether the server answers, and whether it has models to answer from."""

    live: bool
    ready: bool


class InferModelState(msgspec.Struct, frozen=True):
    """Whether a model answers."""

    name: str
    ready: bool


class InferTensorKind(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tensor that a model takes or gives; a size of -1 is any, here the rows.

    Parameters of an input: `features`, JSON in a string; the `cost` of its group, in the model's `cost_unit`; the
    `step` that adds it, and the `prefix_cost` of all steps up to that. Of probabilities and prediction set: `classes`,
    JSON in a string. Of interval and prediction set: the `coverage` that they are calibrated for.
    """

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Scalar] | None = None


class InferModel(msgspec.Struct, frozen=True):
    """A model: its inputs, none of which is required, are in the order in which the sequence computes them."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[InferTensorKind]
    outputs: list[InferTensorKind]
    parameters: dict[str, Scalar]


def server_metadata() -> InferServer:
    """Tell of the server."""
    return InferServer("anytime", release(), EXTENSIONS)


def model_metadata(model: Model, versions: list[str]) -> InferModel:
    """Tell of a model that is here in some versions; one that was never saved has none."""
    return InferModel(
        name=model.name,
        versions=versions,
        platform=PLATFORM,
        inputs=_inputs(model),
        outputs=_outputs(model),
        parameters={
            "task": model.manifest.task,
            "family": model.manifest.family,
            "link": model.manifest.link,
            "steps": model.steps,
            "cost_unit": model.groups.cost_unit,
            "total_cost": float(model.costs[-1]),
        },
    )


def _inputs(model: Model) -> list[InferTensorKind]:
    kinds: list[InferTensorKind] = []
    for name, place in model.places.items():
        group = model.groups.groups[model.groups.positions[name]]
        parameters: dict[str, Scalar] = {
            "features": in_json(place.features),
            "cost": float(group.cost),
            "step": place.step,
            "prefix_cost": float(model.costs[place.step]),
        }
        kinds.append(InferTensorKind(name, "FP64", [-1, len(place.features)], parameters))
    return kinds


def _outputs(model: Model) -> list[InferTensorKind]:
    classes, calibration = model.manifest.classes, model.manifest.calibration
    coverage: dict[str, Scalar] = {} if calibration is None else {"coverage": calibration.coverage}
    if classes is None:
        width = len(model.manifest.responses)
        kinds = [InferTensorKind("prediction", "FP64", [-1, width])]
        covering = InferTensorKind("interval", "FP64", [-1, width, 2], coverage)
    else:
        width, named = len(classes), {"classes": in_json(classes)}
        kinds = [
            InferTensorKind("prediction", class_datatype(classes), [-1, 1]),
            InferTensorKind("probabilities", "FP64", [-1, width], {**named}),
        ]
        covering = InferTensorKind("prediction_set", "BOOL", [-1, width], {**named, **coverage})
    return kinds if calibration is None else [*kinds, covering]
