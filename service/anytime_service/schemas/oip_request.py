"""Requests of the Open Inference Protocol v2: a tensor for each group, in the JSON or as bytes after it.

A tensor has the shape (rows, features), or (features,) for one row. Its datatype defines how its bytes are decoded.
Numbers in JSON are not rounded to the datatype. Integer datatypes and BOOL accept only whole numbers in their range. A
missing value is null in JSON and NaN in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np

from anytime.errors import suggestion
from anytime.model.model import Model
from anytime.types import Overload, Policy
from anytime_service.errors import FieldError, MalformedBodyError
from anytime_service.schemas.codecs import JSON, located, read
from anytime_service.schemas.values import Pauses, Values, is_long, long_array

__all__ = [
    "DATATYPES",
    "InferInput",
    "InferInputParameters",
    "InferOutput",
    "InferOutputParameters",
    "InferParameters",
    "InferRequest",
    "Tensor",
    "overload_of",
    "read_infer",
    "tensors_of",
]

DATATYPES: Mapping[str, np.dtype[Any]] = {
    "FP64": np.dtype("<f8"),
    "FP32": np.dtype("<f4"),
    "FP16": np.dtype("<f2"),
    **{
        f"{sign}{bits}": np.dtype(f"<{sign[0].lower()}{bits // 8}")
        for sign in ("INT", "UINT")
        for bits in (8, 16, 32, 64)
    },
    "BOOL": np.dtype("u1"),
}
"""Datatypes of inputs, and the NumPy types of their bytes."""

_RANGES: Mapping[str, tuple[int, int]] = {
    name: (0, 1) if name == "BOOL" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    for name, dtype in DATATYPES.items()
    if dtype.kind != "f"
}

_Amount = Annotated[float, msgspec.Meta(ge=0)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters; MLServer's `content_type` and `headers` are accepted and ignored: the datatype is sufficient."""

    content_type: str | None = None
    headers: dict[str, Any] | None = None


class InferInputParameters(_Parameters, frozen=True):
    """Parameters of a tensor: its `binary_data_size` bytes follow the JSON."""

    binary_data_size: _Size | None = None


class InferInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values of a group: `data` is flat or nested, row after row; a missing value is null."""

    name: str
    shape: list[_Size]
    datatype: Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(DATATYPES)})]
    parameters: InferInputParameters | None = None
    # Decoded after the rest has been checked; long data is decoded in pieces.
    data: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=msgspec.json.schema(Values))] = msgspec.field(
        default_factory=lambda: msgspec.Raw(b"null")
    )


class InferOutputParameters(_Parameters, frozen=True):
    """Parameters of an output: with `binary_data` the server sends it as bytes after the JSON."""

    binary_data: bool | None = None


class InferOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A requested output."""

    name: str
    parameters: InferOutputParameters | None = None


class InferParameters(_Parameters, frozen=True):
    """Parameters of a prediction; they take precedence over those of the query, but the shortest deadline applies.

    `timeout` is a deadline in microseconds; 0 is no deadline. The shapes of the inputs, if any, define `rows`.
    With `binary_data_output` the server sends all outputs as bytes after the JSON.
    """

    budget: _Amount | None = None
    deadline_ms: _Amount | None = None
    timeout: _Amount | None = None
    policy: Policy | None = None
    ranking: bool | None = None
    overload: Overload | None = None
    rows: Annotated[int, msgspec.Meta(ge=1)] | None = None
    binary_data_output: bool | None = None

    @property
    def deadlines_ms(self) -> list[float]:
        """All deadlines given, in ms."""
        deadlines = [] if self.deadline_ms is None else [self.deadline_ms]
        return [*deadlines, self.timeout / 1000.0] if self.timeout else deadlines


class InferRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The groups computed so far: any subset of the model's groups, or none.

    The path names the model; `model_name` and `model_version` of the body are ignored.
    """

    inputs: list[InferInput]
    id: str | None = None
    model_name: str | None = None
    model_version: str | None = None
    parameters: InferParameters | None = None
    outputs: list[InferOutput] | None = None


class _Overload(msgspec.Struct, frozen=True):
    overload: Any = None


class _Parametrised(msgspec.Struct, frozen=True):
    parameters: _Overload | None = None


_DATA = msgspec.json.Decoder(Values)
_REQUEST = msgspec.json.Decoder(InferRequest)
_PARAMETRISED = msgspec.json.Decoder(_Parametrised)


def read_infer(content: bytes) -> InferRequest:
    """Return the decoded JSON of a request.

    Raises
    ------
    MalformedBodyError
        The content is not JSON, or not an inference request; the error names the place.
    """
    request: InferRequest = read(JSON, _REQUEST, content)
    return request


def overload_of(content: bytes) -> Any:
    """Return the parameter `overload` in the JSON of a request, None without it; ignore the rest.

    Raises
    ------
    MalformedBodyError
        The content is not JSON, or its parameters are not an object; the error names the place.
    """
    request: _Parametrised = read(JSON, _PARAMETRISED, content)
    return None if request.parameters is None else request.parameters.overload


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input, checked against the model.

    Attributes
    ----------
    place : its place in the request, for error messages.
    group, rows, features : its group and shape.
    size : number of its bytes after the JSON; None if its values are in the JSON.
    """

    place: str
    group: str
    datatype: str
    rows: int
    features: int
    size: int | None
    data: msgspec.Raw

    def from_bytes(self, content: bytes) -> np.ndarray[Any, Any]:
        """Return the values of the bytes after the JSON, (rows, features), NaN where missing.

        Raises
        ------
        FieldError
            A BOOL is neither 0 nor 1.
        """
        array = np.frombuffer(content, DATATYPES[self.datatype]).reshape(self.rows, self.features)
        if self.datatype == "BOOL":
            self._check_range(array)
        with np.errstate(invalid="ignore"):
            array = array.astype(np.float64)
        array[np.isnan(array)] = np.nan  # bytes may encode a signalling NaN
        return array

    async def from_json(self, pauses: Pauses) -> np.ndarray[Any, Any]:
        """Return the values of the JSON, (rows, features), NaN where missing; yield to the event loop if they are long.

        Raises
        ------
        MalformedBodyError
            A value is not a number.
        FieldError
            The number of values does not match the shape, or a value is out of the datatype's range.
        """
        shape = (self.rows, self.features)
        try:
            if is_long(JSON, memoryview(self.data)):
                array = await long_array(JSON, bytes(self.data), self.features, pauses)
            else:
                array = np.array(_DATA.decode(self.data), dtype=np.float64)
        except msgspec.ValidationError as error:
            message, place = located(error)
            where = f"{self.place}.data{place}"
            raise MalformedBodyError(f"{where}: {message}", where) from error
        except ValueError as error:
            raise FieldError(
                f"{self.place}.data", f"{self.place}.data is ragged; expected {_numbers(shape)}"
            ) from error
        if array.shape not in (shape, (self.rows * self.features,)):
            got = " x ".join(map(str, array.shape))
            raise FieldError(f"{self.place}.data", f"{self.place}.data is {got}; expected {_numbers(shape)}")
        if self.datatype in _RANGES:
            self._check_range(array[~np.isnan(array)])
        return array.reshape(shape)

    def _check_range(self, array: np.ndarray[Any, Any]) -> None:
        low, high = _RANGES[self.datatype]
        wrong = array[(array < low) | (array > high) | (array != np.trunc(array))]
        if wrong.size:
            raise FieldError(
                f"{self.place}.data",
                f"{self.place}.data has {wrong[0]:g}; expected {self.datatype} values, whole numbers from {low} to "
                f"{high}",
            )


def tensors_of(model: Model, request: InferRequest, max_rows: int) -> tuple[Tensor, ...]:
    """Return the inputs of a request, checked against the model except for their values.

    Raises
    ------
    FieldError
        An input is not a group of the model, is repeated, or has an invalid datatype, shape or size; the error's field
        names the place.
    """
    tensors = tuple(_tensor(model, f"inputs[{number}]", each, max_rows) for number, each in enumerate(request.inputs))
    first: dict[str, Tensor] = {}
    for tensor in tensors:
        if tensor.group in first:
            raise FieldError(f"{tensor.place}.name", f"input {tensor.group!r} is given more than once; send it once")
        first[tensor.group] = tensor
        if tensor.rows != tensors[0].rows:
            raise FieldError(
                f"{tensor.place}.shape",
                f"{tensor.place}.shape has {tensor.rows} rows, inputs[0].shape has {tensors[0].rows}; "
                "expected the same number of rows in every input",
            )
    return tensors


def _tensor(model: Model, place: str, source: InferInput, max_rows: int) -> Tensor:
    _check_name(model, place, source.name)
    if source.datatype not in DATATYPES:
        raise FieldError(
            f"{place}.datatype", f"{place}.datatype is {source.datatype[:50]!r}; expected one of {', '.join(DATATYPES)}"
        )
    features = len(model.places[source.name].features)
    rows = _rows(place, source.shape, features, max_rows)
    size = _size(place, source, rows * features * DATATYPES[source.datatype].itemsize)
    return Tensor(place, source.name, source.datatype, rows, features, size, source.data)


def _size(place: str, source: InferInput, expected: int) -> int | None:
    size = None if source.parameters is None else source.parameters.binary_data_size
    if (size is None) == (memoryview(source.data)[:5].tobytes() == b"null"):
        present = "no data" if size is None else "both data and a binary_data_size"
        raise FieldError(
            f"{place}.data", f"{place} has {present}; expected data, or a binary_data_size and bytes after the JSON"
        )
    if size not in (None, expected):
        raise FieldError(
            f"{place}.parameters.binary_data_size",
            f"{place} has a binary_data_size of {size}; its shape and datatype make it {expected}",
        )
    return size


def _check_name(model: Model, place: str, name: str) -> None:
    if name in model.places:
        return
    if name in model.groups.positions:
        raise FieldError(f"{place}.name", f"group {name!r} has no features and is not an input; do not send it")
    raise FieldError(
        f"{place}.name",
        f"there is no input {name[:200]!r} in model {model.name!r}; {suggestion(name[:200], list(model.places))}",
    )


def _rows(place: str, shape: list[int], features: int, max_rows: int) -> int:
    if shape == [features]:
        return 1
    if len(shape) != 2 or shape[1] != features or shape[0] < 1:
        raise FieldError(
            f"{place}.shape", f"{place}.shape is {str(shape)[:100]}; expected [rows, {features}], rows being 1 or more"
        )
    if shape[0] > max_rows:
        raise FieldError(
            f"{place}.shape",
            f"{place}.shape has {shape[0]} rows; expected at most {max_rows}; send more rows in several predictions",
        )
    return shape[0]


def _numbers(shape: tuple[int, int]) -> str:
    return f"{shape[0]} x {shape[1]} numbers, nested or flat"
