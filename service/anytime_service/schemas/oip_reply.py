"""Replies of the Open Inference Protocol v2: an answer as tensors, and what it rests on as parameters.

Outputs are `prediction`; for classes `probabilities`; of calibrated models `interval` (rows, responses, 2) or, for
classes, `prediction_set` (rows, classes), which are in it; and, where it was asked for, `ranking`. Parameters are
scalars in this protocol, so lists are told as JSON in a string; what is not known is left out.

What the Open Inference Protocol v2 tells of the server and of a model, beside its predictions.
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
    "in_json",
    "infer_problem",
    "model_metadata",
    "output_names",
    "server_metadata",
]

Scalar: TypeAlias = str | bool | int | float

_NUMPY = {"FP64": "<f8", "INT64": "<i8", "BOOL": "?"}


class InferProblem(Problem, frozen=True, kw_only=True):
    """Problem details, with `detail` also as the `error` that clients of this protocol look for."""

    error: str


class InferTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """An output: its data row after row, or a `binary_data_size` among the parameters and bytes after the JSON."""

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Scalar] | None = None
    data: Sequence[Scalar] | None = None


class InferReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prediction: its outputs, and as parameters what it rests on; lists there are JSON in a string."""

    model_name: str
    outputs: list[InferTensor]
    parameters: dict[str, Scalar]
    model_version: str = ""
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Inference:
    """A reply as it is sent: JSON, and after `json_bytes` of it tensors as bytes; None if there are none."""

    content: bytes
    json_bytes: int | None


@dataclass(frozen=True, slots=True)
class _Output:
    """An output before it is written."""

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


def in_json(values: Sequence[Any]) -> str:
    """Tell a list as a parameter, which has to be a scalar."""
    return msgspec.json.encode(values).decode()


def infer_problem(problem: Problem) -> InferProblem:
    """Tell a problem so that clients of this protocol understand it too."""
    return InferProblem(**msgspec.structs.asdict(problem), error=problem.detail)


def output_names(model: Model) -> list[str]:
    """Outputs that a model can give."""
    names = ["prediction"]
    if model.manifest.classes is not None:
        names.append("probabilities")
    if model.manifest.calibration is not None:
        names.append("interval" if model.manifest.classes is None else "prediction_set")
    if len(model.prefixes.intercept) == 1:
        names.append("ranking")
    return names


def check_outputs(model: Model, request: InferRequest) -> None:
    """Check that the outputs wanted are there.

    Raises
    ------
    FieldError
        One is not, or is wanted twice; the error's field names the place.
    """
    known, seen = output_names(model), set()
    for number, output in enumerate(request.outputs or ()):
        field, name = f"outputs[{number}].name", output.name
        if name not in known:
            raise FieldError(
                field, f"there is no output {name[:200]!r} of model {model.name!r}; {suggestion(name[:200], known)}"
            )
        if name in seen:
            raise FieldError(field, f"output {name!r} is asked for more than once; ask for it once")
        seen.add(name)


def class_datatype(classes: Sequence[Scalar]) -> str:
    """Datatype that the names of classes have as a tensor; text where no other holds them all."""
    kinds = {type(each) for each in classes}
    if kinds == {bool}:
        return "BOOL"
    if kinds == {int}:
        return "INT64" if all(-(2**63) <= int(each) < 2**63 for each in classes) else "BYTES"
    return "FP64" if kinds <= {int, float} else "BYTES"


def encode_inference(model: Model, answer: Answer, request: InferRequest | None) -> Inference:
    """Write an answer.

    Parameters
    ----------
    model : the model that answered.
    request : what was asked for; None if the deadline struck before that was known.

    Raises
    ------
    FieldError
        The prediction or its interval is not finite: absurd coefficients overflowed.
    """
    outputs = _outputs(model, answer)
    tensors: list[InferTensor] = []
    blobs: list[bytes] = []
    for name, binary in _wanted(outputs, request).items():
        if name not in outputs:  # of a set of groups that is no prefix, what is calibrated is not known
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
    """Names of the outputs to send, and whether as bytes."""
    everything = request is not None and request.parameters is not None and bool(request.parameters.binary_data_output)
    if request is None or not request.outputs:
        return dict.fromkeys(outputs, everything)
    wanted: dict[str, bool] = {}
    for output in request.outputs:
        told = None if output.parameters is None else output.parameters.binary_data
        wanted[output.name] = everything if told is None else told
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
    outputs += _coverings(answer, classes, shape)
    if answer.ranking is not None:
        outputs.append(_Output("ranking", "INT64", [len(answer.ranking)], list(answer.ranking)))
    return {output.name: output for output in outputs}


def _coverings(answer: Answer, classes: Sequence[Scalar] | None, shape: list[int]) -> list[_Output]:
    """The interval, or for each class whether it is in the set, where the prefix that answered is calibrated."""
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
    told: dict[str, Scalar | None] = {
        "prefix": answer.prefix,
        "steps": answer.steps,
        "groups": in_json(answer.groups),
        "cost": answer.cost,
        "budget": answer.budget,
        "complete": answer.complete,
        "missing": in_json(answer.missing),
        "imputed": in_json(answer.imputed),
        "reason": answer.reason,
        "policy": answer.policy,
        "approximate": answer.approximate,
        "expected_r2": expected.r2,
        "expected_explained_variance": expected.explained_variance,
        "expected_cv_error": expected.cv_error,
        "expected_deviance": expected.deviance,
        "elapsed_ms": answer.elapsed_ms,
        "late_groups": in_json(answer.late_groups),
        "note": answer.note,
    }
    return {name: value for name, value in told.items() if value is not None}


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
            "features": in_json(place.features),
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
        covering = InferTensorKind("interval", "FP64", [-1, width, 2], coverage)
    else:
        width, named = len(classes), {"classes": in_json(classes)}
        kinds = [
            InferTensorKind("prediction", class_datatype(classes), [-1, 1]),
            InferTensorKind("probabilities", "FP64", [-1, width], {**named}),
        ]
        covering = InferTensorKind("prediction_set", "BOOL", [-1, width], {**named, **coverage})
    return kinds if calibration is None else [*kinds, covering]
