"""Replies of the Open Inference Protocol v2: an answer as tensors and parameters; metadata of the server and of models.

The outputs are `prediction`; for classes `probabilities`; for calibrated models `interval` (rows, responses, 2) or, for
classes, `prediction_set` (rows, classes), which is true for each class in the set; and, on request, `ranking`.
Parameters are scalars in this protocol, so a list is sent as JSON in a string. Unknown values are omitted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np

from anytime.errors import suggestion
from anytime.inference.answer import Answer
from anytime.model.model import Model
from anytime_service.errors import FieldError
from anytime_service.schemas.oip_request import InferRequest
from anytime_service.schemas.problem import Problem
from anytime_service.version import release

__all__ = [
    "EXTENSIONS",
    "PLATFORM",
    "InferModel",
    "InferModelState",
    "InferProblem",
    "InferReply",
    "InferServer",
    "InferServerState",
    "InferTensor",
    "InferTensorKind",
    "Inference",
    "Scalar",
    "check_outputs",
    "class_datatype",
    "encode_inference",
    "infer_problem",
    "json_text",
    "model_metadata",
    "output_names",
    "server_metadata",
]

Scalar: TypeAlias = str | bool | int | float

_NUMPY = {"FP64": "<f8", "INT64": "<i8", "BOOL": "?"}


class InferProblem(Problem, frozen=True, kw_only=True):
    """Problem details with `detail` repeated as `error`, the field that clients of this protocol read."""

    error: str


class InferTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """An output: `data` row after row, or the parameter `binary_data_size` and bytes after the JSON."""

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Scalar] | None = None
    data: Sequence[Scalar] | None = None


class InferReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prediction: its outputs, and the fields of the answer as parameters; lists are JSON in a string."""

    model_name: str
    outputs: list[InferTensor]
    parameters: dict[str, Scalar]
    model_version: str = ""
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Inference:
    """An encoded reply: `json_bytes` bytes of JSON followed by tensors as bytes; None if no tensors follow."""

    content: bytes
    json_bytes: int | None


@dataclass(frozen=True, slots=True)
class _Output:
    """An output before its encoding."""

    name: str
    datatype: str
    shape: list[int]
    values: Sequence[Scalar]

    def as_json(self) -> InferTensor:
        return InferTensor(self.name, self.datatype, self.shape, data=self.values)

    def as_bytes(self) -> tuple[InferTensor, bytes]:
        if self.datatype == "BYTES":
            texts = [str(value).encode() for value in self.values]
            content = b"".join(struct.pack("<I", len(text)) + text for text in texts)
        else:
            content = np.array(self.values, _NUMPY[self.datatype]).tobytes()
        return InferTensor(self.name, self.datatype, self.shape, {"binary_data_size": len(content)}), content


def json_text(values: Sequence[Any]) -> str:
    """Return a list as JSON text, because a parameter has to be a scalar."""
    return msgspec.json.encode(values).decode()


def infer_problem(problem: Problem) -> InferProblem:
    """Return a problem with the field `error` that clients of this protocol read."""
    return InferProblem(**msgspec.structs.asdict(problem), error=problem.detail)


def output_names(model: Model) -> list[str]:
    """Return the names of the outputs that a model provides."""
    names = ["prediction"]
    if model.manifest.classes is not None:
        names.append("probabilities")
    if model.manifest.calibration is not None:
        names.append("interval" if model.manifest.classes is None else "prediction_set")
    if len(model.prefixes.intercept) == 1:
        names.append("ranking")
    return names


def check_outputs(model: Model, request: InferRequest) -> None:
    """Check that the model provides the requested outputs.

    Raises
    ------
    FieldError
        A requested output does not exist, or is requested twice; the error's field names the place.
    """
    known, seen = output_names(model), set()
    for number, output in enumerate(request.outputs or ()):
        field, name = f"outputs[{number}].name", output.name
        if name not in known:
            raise FieldError(
                field, f"there is no output {name[:200]!r} of model {model.name!r}; {suggestion(name[:200], known)}"
            )
        if name in seen:
            raise FieldError(field, f"output {name!r} is requested more than once; request it once")
        seen.add(name)


def class_datatype(classes: Sequence[Scalar]) -> str:
    """Return the datatype of a tensor of class names; BYTES (text) unless one other datatype fits all of them."""
    kinds = {type(each) for each in classes}
    if kinds == {bool}:
        return "BOOL"
    if kinds == {int}:
        return "INT64" if all(-(2**63) <= int(each) < 2**63 for each in classes) else "BYTES"
    return "FP64" if kinds <= {int, float} else "BYTES"


def encode_inference(model: Model, answer: Answer, request: InferRequest | None) -> Inference:
    """Return an encoded answer.

    Parameters
    ----------
    model : the model that answered.
    request : the request; None if the deadline expired before its JSON was received.

    Raises
    ------
    FieldError
        The prediction or its interval overflowed and is not finite.
    """
    outputs = _outputs(model, answer)
    tensors: list[InferTensor] = []
    blobs: list[bytes] = []
    for name, binary in _wanted(outputs, request).items():
        if name not in outputs:  # only prefixes are calibrated, not other sets of groups
            continue
        if binary:
            tensor, blob = outputs[name].as_bytes()
            blobs.append(blob)
        else:
            tensor = outputs[name].as_json()
        tensors.append(tensor)
    reply = InferReply(
        answer.model, tensors, _parameters(answer), answer.version, None if request is None else request.id
    )
    head = msgspec.json.encode(reply)
    return Inference(b"".join((head, *blobs)), len(head) if blobs else None)


def _wanted(outputs: Iterable[str], request: InferRequest | None) -> dict[str, bool]:
    """Return the names of the outputs to send, and whether to send each as bytes."""
    everything = request is not None and request.parameters is not None and bool(request.parameters.binary_data_output)
    if request is None or not request.outputs:
        return dict.fromkeys(outputs, everything)
    wanted: dict[str, bool] = {}
    for output in request.outputs:
        encode_as_bytes = None if output.parameters is None else output.parameters.binary_data
        wanted[output.name] = everything if encode_as_bytes is None else encode_as_bytes
    return wanted


def _outputs(model: Model, answer: Answer) -> dict[str, _Output]:
    classes = model.manifest.classes
    numbers = np.asarray(answer.prediction if classes is None else answer.probabilities, dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise FieldError("inputs", "the values are too large: the prediction is not a finite number")
    width = len(model.manifest.responses if classes is None else classes)
    shape, flat = [numbers.size // width, width], numbers.ravel().tolist()
    if classes is None:
        outputs = [_Output("prediction", "FP64", shape, flat)]
    else:
        datatype = class_datatype(classes)
        labels = answer.prediction if isinstance(answer.prediction, list) else [answer.prediction]
        chosen = [str(label) for label in labels] if datatype == "BYTES" else labels
        outputs = [
            _Output("prediction", datatype, [len(chosen), 1], chosen),
            _Output("probabilities", "FP64", shape, flat),
        ]
    outputs += _calibrated_outputs(answer, classes, shape)
    if answer.ranking is not None:
        outputs.append(_Output("ranking", "INT64", [len(answer.ranking)], list(answer.ranking)))
    return {output.name: output for output in outputs}


def _calibrated_outputs(answer: Answer, classes: Sequence[Scalar] | None, shape: list[int]) -> list[_Output]:
    """Return the interval, or the indicators of the prediction set, if the prefix that answered is calibrated."""
    if answer.interval is not None:
        ends = np.asarray(answer.interval, dtype=np.float64)
        if not np.isfinite(ends).all():
            raise FieldError("inputs", "the values are too large: the interval is not a finite number")
        return [_Output("interval", "FP64", [*shape, 2], ends.ravel().tolist())]
    if answer.prediction_set is None or classes is None:
        return []
    sets = answer.prediction_set if isinstance(answer.prediction, list) else [answer.prediction_set]
    members = [label in each for each in sets for label in classes]
    return [_Output("prediction_set", "BOOL", shape, members)]


def _parameters(answer: Answer) -> dict[str, Scalar]:
    expected = answer.expected
    parameters: dict[str, Scalar | None] = {
        "prefix": answer.prefix,
        "steps": answer.steps,
        "groups": json_text(answer.groups),
        "cost": answer.cost,
        "budget": answer.budget,
        "complete": answer.complete,
        "missing": json_text(answer.missing),
        "imputed": json_text(answer.imputed),
        "reason": answer.reason,
        "policy": answer.policy,
        "approximate": answer.approximate,
        "expected_r2": expected.r2,
        "expected_explained_variance": expected.explained_variance,
        "expected_cv_error": expected.cv_error,
        "expected_deviance": expected.deviance,
        "elapsed_ms": answer.elapsed_ms,
        "late_groups": json_text(answer.late_groups),
        "note": answer.note,
    }
    return {name: value for name, value in parameters.items() if value is not None}


EXTENSIONS = ("anytime_partial_input", "binary_tensor_data", "parameters")
"""Extensions of the protocol: any subset of the inputs, tensors as bytes, parameters of a prediction."""

PLATFORM = "anytime_safetensors"


class InferServer(msgspec.Struct, frozen=True):
    """The server and its extensions of the protocol."""

    name: str
    version: str
    extensions: tuple[str, ...]


class InferServerState(msgspec.Struct, frozen=True):
    """Whether the server is alive, and whether any model is loaded."""

    live: bool
    ready: bool


class InferModelState(msgspec.Struct, frozen=True):
    """Whether a model is ready."""

    name: str
    ready: bool


class InferTensorKind(msgspec.Struct, frozen=True, omit_defaults=True):
    """An input or output of a model; a size of -1 is arbitrary: the number of rows.

    Parameters of an input: `features`, JSON in a string; `cost`, the cost of its group in the model's `cost_unit`;
    `step`, the step that adds it; `prefix_cost`, the cost of all steps up to this one. Probabilities and prediction set
    have `classes`, JSON in a string. Interval and prediction set have `coverage`, the calibrated coverage.
    """

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Scalar] | None = None


class InferModel(msgspec.Struct, frozen=True):
    """A model: its inputs, all of them optional, are in the order in which the sequence computes them."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[InferTensorKind]
    outputs: list[InferTensorKind]
    parameters: dict[str, Scalar]


def server_metadata() -> InferServer:
    """Return the server metadata."""
    return InferServer("anytime", release(), EXTENSIONS)


def model_metadata(model: Model, versions: list[str]) -> InferModel:
    """Return the metadata of a model; `versions` are the loaded ones, none for a model that was never saved."""
    return InferModel(
        name=model.name,
        versions=versions,
        platform=PLATFORM,
        inputs=_inputs(model),
        outputs=_output_kinds(model),
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
            "features": json_text(place.features),
            "cost": float(group.cost),
            "step": place.step,
            "prefix_cost": float(model.costs[place.step]),
        }
        kinds.append(InferTensorKind(name, "FP64", [-1, len(place.features)], parameters))
    return kinds


def _output_kinds(model: Model) -> list[InferTensorKind]:
    classes, calibration = model.manifest.classes, model.manifest.calibration
    coverage: dict[str, Scalar] = {} if calibration is None else {"coverage": calibration.coverage}
    if classes is None:
        width = len(model.manifest.responses)
        kinds = [InferTensorKind("prediction", "FP64", [-1, width])]
        calibrated = InferTensorKind("interval", "FP64", [-1, width, 2], coverage)
    else:
        width, named = len(classes), {"classes": json_text(classes)}
        kinds = [
            InferTensorKind("prediction", class_datatype(classes), [-1, 1]),
            InferTensorKind("probabilities", "FP64", [-1, width], {**named}),
        ]
        calibrated = InferTensorKind("prediction_set", "BOOL", [-1, width], {**named, **coverage})
    return kinds if calibration is None else [*kinds, calibrated]
