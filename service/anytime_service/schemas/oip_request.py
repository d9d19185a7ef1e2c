"""Requests of the Open Inference Protocol v2: a tensor for each group, in the JSON or as bytes after it.

A tensor has the shape (rows, features), or (features,) for one row. Its datatype tells how its bytes are to be read;
numbers in JSON are taken as they are written, if the datatype can hold them. A value is missing where JSON has null or
the bytes have NaN.
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
"""Datatypes that values may have, and how their bytes are read."""

_RANGES: Mapping[str, tuple[int, int]] = {
    name: (0, 1) if name == "BOOL" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    for name, dtype in DATATYPES.items()
    if dtype.kind != "f"
}

_Amount = Annotated[float, msgspec.Meta(ge=0)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters; MLServer's `content_type` and `headers` are let pass, as the datatype says what is needed."""

    content_type: str | None = None
    headers: dict[str, Any] | None = None


class InferInputParameters(_Parameters, frozen=True):
    """Parameters of a tensor: `binary_data_size` bytes of it follow the JSON."""

    binary_data_size: _Size | None = None


class InferInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values of a group: `data` is flat or nested, row after row, with null where a value is missing."""

    name: str
    shape: list[_Size]
    datatype: Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(DATATYPES)})]
    parameters: InferInputParameters | None = None
    # Decoded when the rest has been checked, and piece by piece where it is long.
    data: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=msgspec.json.schema(Values))] = msgspec.field(
        default_factory=lambda: msgspec.Raw(b"null")
    )


class InferOutputParameters(_Parameters, frozen=True):
    """Parameters of an output: `binary_data` has it sent as bytes after the JSON."""

    binary_data: bool | None = None


class InferOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An output that is wanted."""

    name: str
    parameters: InferOutputParameters | None = None


class InferParameters(_Parameters, frozen=True):
    """Parameters of a prediction; they come before those of the query, and of several deadlines the smallest counts.

    `timeout` is a deadline too, in microseconds, 0 being none; `rows` is counted from the shapes where there are any;
    `binary_data_output` has all outputs sent as bytes after the JSON.
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
        """Every deadline that was told."""
        told = [] if self.deadline_ms is None else [self.deadline_ms]
        return [*told, self.timeout / 1000.0] if self.timeout else told


class InferRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The groups at hand, of which there may be fewer than the model has, or none.

    The path names the model; what the body says of it is not looked at.
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
    """Read the JSON of a request.

    Raises
    ------
    MalformedBodyError
        It is not JSON, or not of this shape; the message names the place.
    """
    request: InferRequest = read(JSON, _REQUEST, content)
    return request


def overload_of(content: bytes) -> Any:
    """What the JSON of a request has for the parameter `overload`, None for nothing; all else is skipped.

    Raises
    ------
    MalformedBodyError
        It is not JSON, or not of this shape; the message names the place.
    """
    told: _Parametrised = read(JSON, _PARAMETRISED, content)
    return None if told.parameters is None else told.parameters.overload


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input that fits the model.

    Attributes
    ----------
    place : where it stands in the request, as errors name it.
    group, rows, features : the group, and its shape.
    size : how many bytes of it follow the JSON; None if its values are in it.
    """

    place: str
    group: str
    datatype: str
    rows: int
    features: int
    size: int | None
    data: msgspec.Raw

    def from_bytes(self, content: bytes) -> np.ndarray[Any, Any]:
        """Values from the bytes after the JSON, (rows, features), NaN where one is missing.

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
        array[np.isnan(array)] = np.nan  # bytes may spell a NaN that complains when it is computed with
        return array

    async def from_json(self, pauses: Pauses) -> np.ndarray[Any, Any]:
        """Return the values from the JSON, (rows, features), NaN where one is missing; waits only if they are long.

        Raises
        ------
        MalformedBodyError
            They are not numbers.
        FieldError
            They are not as many as the shape says, or not of the datatype.
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
                f"{self.place}.data has {wrong[0]:g}, which no {self.datatype} can be",
            )


def tensors_of(model: Model, request: InferRequest, max_rows: int) -> tuple[Tensor, ...]:
    """Inputs of a request, checked against the model; their values are not looked at yet.

    Raises
    ------
    FieldError
        A tensor is no group of the model, comes twice, or has a datatype, a shape or a size that it cannot have; the
        error's field names the place.
    """
    tensors = tuple(_tensor(model, f"inputs[{number}]", told, max_rows) for number, told in enumerate(request.inputs))
    first: dict[str, Tensor] = {}
    for tensor in tensors:
        if tensor.group in first:
            raise FieldError(
                f"{tensor.place}.name", f"input {tensor.group!r} is given more than once; every group has one tensor"
            )
        first[tensor.group] = tensor
        if tensor.rows != tensors[0].rows:
            raise FieldError(
                f"{tensor.place}.shape",
                f"{tensor.place}.shape has {tensor.rows} rows, inputs[0].shape {tensors[0].rows}; expected all in each",
            )
    return tensors


def _tensor(model: Model, place: str, told: InferInput, max_rows: int) -> Tensor:
    _check_name(model, place, told.name)
    if told.datatype not in DATATYPES:
        raise FieldError(
            f"{place}.datatype", f"{place}.datatype is {told.datatype[:50]!r}; expected one of {', '.join(DATATYPES)}"
        )
    features = len(model.places[told.name].features)
    rows = _rows(place, told.shape, features, max_rows)
    size = _size(place, told, rows * features * DATATYPES[told.datatype].itemsize)
    return Tensor(place, told.name, told.datatype, rows, features, size, told.data)


def _size(place: str, told: InferInput, expected: int) -> int | None:
    size = None if told.parameters is None else told.parameters.binary_data_size
    if (size is None) == (memoryview(told.data)[:5].tobytes() == b"null"):
        got = "no data" if size is None else "both data and a binary_data_size"
        raise FieldError(
            f"{place}.data", f"{place} has {got}; expected data, or a binary_data_size and bytes after the JSON"
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
        raise FieldError(f"{place}.name", f"group {name!r} has no features, so it is no input; do not send it")
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
            f"{place}.shape has {shape[0]} rows; expected at most {max_rows}, in several predictions if more",
        )
    return shape[0]


def _numbers(shape: tuple[int, int]) -> str:
    return f"{shape[0]} x {shape[1]} numbers, nested or flat"
