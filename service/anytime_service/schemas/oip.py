"""Messages of the Open Inference Protocol v2: requests, replies and metadata.

A request has a tensor for each group, in the JSON or as bytes after it. A tensor has the shape (rows, features), or
(features,) for one row. Its datatype defines how its bytes are decoded. Numbers in JSON are not rounded to the
datatype. Integer datatypes and BOOL accept only whole numbers in their range. A missing value is null in JSON and NaN
in bytes.

A text column is a tensor of its own, `group:column` of datatype BYTES (a JSON list of the two names where that is the
name of another input, too): strings in JSON, and in bytes each text after
its length (4 bytes, little-endian), where an empty text is a missing value unless it is a level of the column. The
tensor of the group has the other columns in their order, and is absent if all are text. A group is received with the
last of its tensors.

A reply has the answer's lists as outputs and its other fields as parameters. Parameters are scalars, so a
list is JSON in a string, and so are contributions.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np

from anytime._version import __version__
from anytime.errors import suggestion
from anytime.groups import joined_names
from anytime.inference.contributions import Contributions
from anytime.inference.prediction import Answer
from anytime.inference.subsets import SetCache
from anytime.model.model import Model
from anytime_service.errors import FieldError
from anytime_service.schemas.codecs import JSON, check_finite, in_pieces, read
from anytime_service.schemas.messages import DATATYPES, TEXT, VALUES_SCHEMA, ListLimits, Tensor, Values, check_rows
from anytime_service.schemas.options import STREAM_ONLY, Amount, PredictionOptions, StatedOptions, stated_in
from anytime_service.schemas.problem import Problem

_PARAMETERS = (
    *("prefix", "steps", "groups", "cost", "cost_total", "budget", "complete", "missing", "imputed", "clamped"),
    *("reason", "policy", "approximate", "elapsed_ms", "late_groups", "note", "contributions"),
)
"""Fields of an answer that a reply has as parameters."""

Scalar: TypeAlias = str | bool | int | float

_Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters; MLServer's `content_type` and `headers` are accepted and ignored: the datatype is sufficient."""

    content_type: str | None = None
    headers: Any = None


class InferInputParameters(_Parameters, frozen=True):
    """Parameters of a tensor: its `binary_data_size` bytes follow the JSON."""

    binary_data_size: _Size | None = None


class InferInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values of a group, or of a text column `group:column`.

    `data` is flat or nested, row after row; a missing value is null.
    """

    name: str
    shape: list[_Size]
    datatype: Annotated[str, msgspec.Meta(extra_json_schema={"enum": [*DATATYPES, TEXT]})]
    parameters: InferInputParameters | None = None
    # Decoded after the rest has been checked.
    data: Annotated[msgspec.Raw, VALUES_SCHEMA] = msgspec.field(default_factory=partial(msgspec.Raw, b"null"))


class InferOutputParameters(_Parameters, frozen=True):
    """Parameters of an output: with `binary_data` the server sends it as bytes after the JSON."""

    binary_data: bool | None = None


class InferOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A requested output."""

    name: str
    parameters: InferOutputParameters | None = None


class InferParameters(StatedOptions, frozen=True, kw_only=True):
    """Parameters of a prediction: its options, each here or in the query; the shortest deadline applies.

    `timeout` is a deadline in microseconds; 0 is no deadline. The shapes of the inputs, if any, define `rows`.
    With `binary_data_output` the server sends all outputs as bytes after the JSON. `content_type` and `headers` are
    accepted and ignored.
    """

    timeout: Amount | None = None
    binary_data_output: bool | None = None
    content_type: str | None = None
    headers: Any = None


class InferRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The groups computed so far: any subset of the model's groups, or none.

    The path names the model. `model_name` and `model_version` of the body must not name another loaded model; names
    that the server does not know are ignored.
    """

    inputs: list[InferInput]
    id: str | None = None
    model_name: str | None = None
    model_version: str | None = None
    parameters: InferParameters | None = None
    outputs: list[InferOutput] | None = None


_REQUEST = msgspec.json.Decoder(InferRequest)
DATA = msgspec.json.Decoder(Values)


def read_infer(content: bytes, limits: ListLimits) -> InferRequest:
    """Return the decoded JSON of a request; raise MalformedBodyError, which names the place, or BodyTooLargeError."""
    limits.must_be_packed(JSON, content, "the JSON")
    return read(JSON, _REQUEST, content)


def tensors_of(model: Model, inputs: Sequence[InferInput], max_rows: int) -> Iterator[tuple[Tensor, int | None]]:
    """Yield the inputs of a JSON request, and how many bytes of each follow the JSON; None if its values are in it.

    Raise FieldError, which names the place, if an input is not a group of the model, is repeated, or has an invalid
    datatype, shape or size.
    """
    rows, names = None, set[str]()
    for number, each in enumerate(inputs):
        tensor = tensor_of(model, f"inputs[{number}]", each.name, each.datatype, each.shape, max_rows)
        if tensor.name in names:
            raise FieldError(f"{tensor.field}.name", f"input {tensor.name!r} is given more than once; send it once")
        names.add(tensor.name)
        rows = rows or tensor.rows
        if tensor.rows != rows:
            raise FieldError(
                f"{tensor.field}.shape",
                f"{tensor.field}.shape has {tensor.rows} rows, inputs[0].shape has {rows}; "
                "expected the same number of rows in every input",
            )
        size = None if each.parameters is None else each.parameters.binary_data_size
        if (size is None) == (memoryview(each.data)[:5].tobytes() == b"null"):
            present = "no data" if size is None else "both data and a binary_data_size"
            raise FieldError(
                f"{tensor.field}.data",
                f"{tensor.field} has {present}; expected data, or a binary_data_size and bytes after the JSON",
            )
        if size is not None and tensor.nbytes not in (None, size):
            raise FieldError(
                f"{tensor.field}.parameters.binary_data_size",
                f"{tensor.field} has a binary_data_size of {size}; its shape and datatype make it {tensor.nbytes}",
            )
        yield tensor, size


Inputs: TypeAlias = dict[str, tuple[str, Sequence[int]]]
"""Inputs by name, each with its group and the indices of its columns."""

_INPUTS = SetCache[Inputs]()


def inputs_of(model: Model) -> Inputs:
    """Return the inputs of a model: of each group the numbers, then each text."""

    def made() -> Inputs:
        texts = {
            group: [j for j, reader in position.expansion.readers.items() if reader.holds == "text"]
            for group, position in model.places.items()
        }
        columns = [(group, model.places[group].features[j]) for group, of in texts.items() for j in of]
        names = iter(joined_names(columns, ":", model.places))
        found: Inputs = {}
        for group, of in texts.items():
            every = range(len(model.places[group].features))
            if numbers := [j for j in every if j not in of] if of else every:
                found[group] = group, numbers
            found |= {next(names): (group, (j,)) for j in of}
        return found

    return _INPUTS.get(model, (), made)


def tensor_of(model: Model, field: str, name: str, datatype: str, shape: Sequence[int], max_rows: int) -> Tensor:
    """Return an input of a model by name, datatype and shape; raise FieldError, which names the place in `field`."""
    inputs = inputs_of(model)
    if name not in inputs:
        if name in model.groups.positions and name not in model.places:
            raise FieldError(f"{field}.name", f"group {name!r} has no features and is not an input; do not send it")
        raise FieldError(
            f"{field}.name",
            f"there is no input {name[:200]!r} in model {model.name!r}; {suggestion(name[:200], list(inputs))}",
        )
    group, columns = inputs[name]
    width = len(columns)
    if datatype not in (DATATYPES if name == group else (TEXT,)):
        one_of = f"one of {', '.join(DATATYPES)}" if name == group else f"{TEXT}: {name!r} is a text column"
        raise FieldError(f"{field}.datatype", f"{field}.datatype is {datatype[:50]!r}; expected {one_of}")
    rows = 1 if [*shape] == [width] else shape[0] if len(shape) == 2 and shape[1] == width else 0
    if rows < 1:
        raise FieldError(
            f"{field}.shape", f"{field}.shape is {str(shape)[:100]}; expected [rows, {width}], rows being 1 or more"
        )
    check_rows(rows, max_rows, f"{field}.shape")
    return Tensor(field, name, group, model.places[group], columns, datatype, rows)


class InferProblem(Problem, frozen=True, kw_only=True):
    """Problem details with `detail` repeated as `error`, the field that clients of this protocol read."""

    error: str


class InferTensorKind(msgspec.Struct, frozen=True, omit_defaults=True):
    """An input or output of a model; a size of -1 is arbitrary: the number of rows.

    Parameters of an input: `features`, JSON in a string; `cost`, the cost per row of its group in the model's
    `cost_unit`, once for all inputs of the group; `step`, the step that adds it; `prefix_cost`, the cost of all steps
    up to this one. Probabilities and prediction set have `classes`, JSON in a string. Interval and prediction set have
    `coverage`, the calibrated coverage.
    """

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Scalar] | None = None


class InferTensor(InferTensorKind, frozen=True, omit_defaults=True):
    """An output: `data` row after row, or the parameter `binary_data_size` and bytes after the JSON."""

    data: Any = None  # a list of scalars, an array, or the encoded list


class InferReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prediction: its outputs, and the fields of the answer as parameters; lists are JSON in a string."""

    model_name: str
    outputs: list[InferTensor]
    parameters: dict[str, Scalar]
    model_version: str = ""
    id: str | None = None


def json_text(values: Sequence[Any] | Contributions) -> str:
    """Return a list or an object as JSON text, because a parameter has to be a scalar."""
    return msgspec.json.encode(values).decode()


def infer_problem(problem: Problem) -> InferProblem:
    return InferProblem(**msgspec.structs.asdict(problem), error=problem.detail)


def check_names(model: Model, request: InferRequest, loaded: Mapping[str, Sequence[Model]]) -> None:
    """Raise FieldError, which names the place, if a request names another of the loaded models than its path.

    Also if a requested output does not exist or is requested twice.
    """
    versions = [each.version for each in loaded.get(model.name, ())]
    for field, stated, own, others in (
        ("model_name", request.model_name, model.name, loaded),
        ("model_version", request.model_version, model.version, versions),
    ):
        if stated != own and stated in others:
            raise FieldError(field, f"{field} is {stated!r} in the body and {own!r} in the path; send it once")
    ranking = [_RANKING] if len(model.prefixes.intercept) == 1 else []
    known, seen = [kind.name for kind in (*_output_kinds(model), *ranking)], set[str]()
    for number, output in enumerate(request.outputs or ()):
        field, name = f"outputs[{number}].name", output.name
        if name not in known:
            raise FieldError(
                field, f"there is no output {name[:200]!r} of model {model.name!r}; {suggestion(name[:200], known)}"
            )
        if name in seen:
            raise FieldError(field, f"output {name!r} is requested more than once; request it once")
        seen.add(name)


def request_parts(request: InferRequest, head: PredictionOptions, rows: int | None) -> dict[str, dict[str, Any]]:
    """Return the options that the parts of a request state, whose inputs, if there are any, have some rows."""
    parameters = request.parameters or InferParameters()
    ranks = any(output.name == "ranking" for output in request.outputs or ())
    return {
        "body": stated_in(parameters, head, ("model", *STREAM_ONLY), "parameters."),
        "timeout": {"deadline_ms": parameters.timeout / 1000.0} if parameters.timeout else {},
        "inputs": {} if rows is None else {"rows": rows},
        "outputs": {"ranking": True} if ranks else {},
    }


def class_datatype(classes: Sequence[Scalar]) -> str:
    """Return the datatype of a tensor of class names; BYTES (text) unless one other datatype fits all of them."""
    kinds = {type(each) for each in classes}
    if kinds == {int}:
        return "INT64" if all(-(2**63) <= int(each) < 2**63 for each in classes) else TEXT
    return "BOOL" if kinds == {bool} else "FP64" if kinds <= {int, float} else TEXT


def encode_inference(model: Model, answer: Answer, request: InferRequest | None) -> tuple[InferReply, list[bytes]]:
    """Return the reply with an answer, except for its `elapsed_ms`, and the bytes of outputs that follow its JSON.

    The numbers of many rows are encoded already. Raise FieldError if the prediction or its interval is not finite.
    `request` is None if the deadline expired before its JSON was received.
    """
    check_finite(answer, "inputs")
    request = request or InferRequest([])
    everything = bool((request.parameters or InferParameters()).binary_data_output)
    tensors = _outputs(model, answer)
    requested = {each.name: (each.parameters or InferOutputParameters()).binary_data for each in request.outputs or ()}
    binary = {name: everything if own is None else own for name, own in requested.items()}
    # A requested output may be absent: only prefixes are calibrated, not other sets of groups.
    outputs = [tensors[name] for name in binary or tensors if name in tensors]
    contents: list[bytes] = []
    for number, tensor in enumerate(outputs):
        if binary.get(tensor.name, everything):
            contents.append(_binary(tensor))
            changes: dict[str, Any] = {"data": None, "parameters": {"binary_data_size": len(contents[-1])}}
        else:
            changes = {"data": in_pieces(JSON, tensor.data)}
        outputs[number] = msgspec.structs.replace(tensor, **changes)
    expected = {f"expected_{name}": value for name, value in vars(answer.expected).items()}
    fields = {name: getattr(answer, name) for name in _PARAMETERS} | expected
    parameters = {
        name: json_text(value) if isinstance(value, tuple | Contributions) else value
        for name, value in fields.items()
        if value is not None
    }
    return InferReply(answer.model, outputs, parameters, answer.version, request.id), contents


def _binary(tensor: InferTensor) -> bytes:
    """Return the data of a tensor as bytes; each text of BYTES follows its length."""
    if tensor.datatype == TEXT:
        texts = [str(value).encode() for value in tensor.data]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return np.array(tensor.data, DATATYPES[tensor.datatype]).tobytes()


_RANKING = InferTensorKind("ranking", "INT64", [-1])


def _outputs(model: Model, answer: Answer) -> dict[str, InferTensor]:
    """Return the outputs of an answer by name; one that is not calibrated has neither interval nor set."""
    classes, several = model.manifest.classes, isinstance(answer.prediction, list | np.ndarray)
    tensors: dict[str, InferTensor] = {}
    for kind in (*_output_kinds(model), _RANKING):
        values = getattr(answer, kind.name)
        if values is None:
            continue
        if classes is None or kind.name in ("probabilities", "ranking"):
            values = np.asarray(values, None if kind is _RANKING else np.float64).ravel()
        elif not several:
            values = [values]
        if kind.name == "prediction_set":
            values = [label in each for each in values for label in classes or ()]
        elif kind.datatype == TEXT:
            values = [str(label) for label in values]
        shape = [len(values) // math.prod(kind.shape[1:]), *kind.shape[1:]]
        tensors[kind.name] = InferTensor(kind.name, kind.datatype, shape, data=values)
    return tensors


class InferServer(msgspec.Struct, frozen=True):
    """The server and its extensions of the protocol."""

    name: str
    version: str
    extensions: tuple[str, ...]


class InferServerState(msgspec.Struct, frozen=True):
    """Whether the server is alive, and whether it begins predictions: it has a model, and is not about to stop."""

    live: bool
    ready: bool


class InferModelState(msgspec.Struct, frozen=True):
    """Whether a model is ready."""

    name: str
    ready: bool


class InferModel(msgspec.Struct, frozen=True):
    """A model: its inputs, all of them optional, are in the order in which the sequence computes them."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[InferTensorKind]
    outputs: list[InferTensorKind]
    parameters: dict[str, Scalar]


SERVER = InferServer("anytime", __version__, ("anytime_partial_input", "binary_tensor_data", "parameters"))
"""The server's metadata. The extensions are any subset of the inputs, tensors as bytes, parameters of a prediction."""


def model_metadata(model: Model, loaded: Mapping[str, Sequence[Model]]) -> InferModel:
    """Return the metadata of one of the loaded models; a model that was never saved has no version."""
    return InferModel(
        name=model.name,
        versions=[each.version for each in loaded[model.name] if each.version],
        platform="anytime_safetensors",
        inputs=list(_input_kinds(model)),
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


def _input_kinds(model: Model) -> Iterator[InferTensorKind]:
    for name, (group, columns) in inputs_of(model).items():
        place = model.places[group]
        parameters: dict[str, Scalar] = {
            "features": json_text([place.features[j] for j in columns]),
            "cost": float(model.groups.costs[model.groups.positions[group]]),
            "step": place.step,
            "prefix_cost": float(model.costs[place.step]),
        }
        yield InferTensorKind(name, "FP64" if name == group else TEXT, [-1, len(columns)], parameters)


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
