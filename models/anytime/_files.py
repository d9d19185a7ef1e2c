"""Safetensors files: arrays, and a record as JSON in the metadata. Data, never code.

Writing goes to a file beside the target, which then takes its name, so that there is never half a file. Reading
believes nothing: what is in the record and the arrays is for the caller to check.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize
from safetensors.numpy import load as parse_tensors
from safetensors.numpy import save as serialise

from anytime.errors import ArtifactError, file_error

__all__ = [
    "Arrays",
    "Kind",
    "holds",
    "read",
    "write",
]

LONGEST_HEADER = 100_000_000
"""Bytes of the longest header that safetensors reads."""

Arrays = Mapping[str, NDArray[Any]]


class Kind(NamedTuple):
    """What a file holds.

    Attributes
    ----------
    key : metadata entry of the record.
    what : the thing, in words.  command : what writes such files.  remedy : what to do about one that is damaged.
    """

    key: str
    what: str
    command: str
    remedy: str


def write(path: Path, kind: Kind, record: str, arrays: Arrays) -> None:
    """Write a file.

    Raises
    ------
    ArtifactError
        It cannot be written, or an array has a number that is not finite.
    """
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ArtifactError(f"the {kind.what}'s array {name!r} is not finite everywhere; it was not saved")
    content = serialise({name: np.ascontiguousarray(array) for name, array in arrays.items()}, {kind.key: record})
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        _write(aside, content, path)
    except OSError as error:
        raise file_error(ArtifactError, f"write {str(path)!r}", error) from error


def _write(aside: Path, content: bytes, path: Path) -> None:
    """Write to the file beside, then let it take the name; nothing is left of it when that fails."""
    with aside.open("xb") as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(aside, path)
        except BaseException:
            aside.unlink()
            raise


def read(path: Path, kind: Kind) -> tuple[str, dict[str, NDArray[Any]]]:
    """Record and arrays of a file.

    Raises
    ------
    ArtifactError
        It is not there, not whole, or holds something else.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise file_error(ArtifactError, f"read {str(path)!r}", error) from error
    except ValueError as error:  # a name that no file can have
        raise ArtifactError(f"cannot read {str(path)!r}: {error}") from error
    try:
        deserialize(content)  # type: ignore[no-untyped-call]  # checks the container, whatever its arrays are
        metadata = _metadata(content)
        arrays = parse_tensors(content) if kind.key in metadata else {}
    except (SafetensorError, ValueError, KeyError, RecursionError) as error:
        raise ArtifactError(f"{str(path)!r} is not a whole safetensors file ({error}); {kind.remedy}") from error
    if kind.key not in metadata:
        raise ArtifactError(
            f"{str(path)!r} is a safetensors file of something else; expected one from '{kind.command}'"
        )
    return metadata[kind.key], arrays


def holds(path: Path, kind: Kind) -> bool:
    """Whether a file says that it holds this kind; whether it is whole shows when it is read."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > LONGEST_HEADER:  # what other files begin with, read as a number
                return False
            header = json.loads(file.read(size))
    except (OSError, ValueError, RecursionError):
        return False
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    return isinstance(metadata, dict) and kind.key in metadata


def _metadata(content: bytes) -> dict[str, str]:
    """Metadata of a sound safetensors file: eight bytes of length, then a JSON header."""
    header: dict[str, Any] = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    metadata: dict[str, str] = header.get("__metadata__") or {}
    return metadata
