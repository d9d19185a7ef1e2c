"""Model files: one safetensors file with the arrays, and the manifest as JSON in its metadata. Data, never code.

Writing goes to a file beside the target, which then takes its name, so that there is never half a model. Reading
believes nothing: the container, the format number, the manifest, the shapes and the content hash are checked, in this
order, and the first that is wrong is named. `FORMAT.md` beside this file describes the format and how to change it.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load as parse_tensors
from safetensors.numpy import save as serialise

from anytime.arrays import Float
from anytime.errors import ArtifactError
from anytime.manifest import FORMAT, Manifest
from anytime.model import AnytimeModel
from anytime.moments import Moments
from anytime.prefixes import PrefixModels

__all__ = ["load", "save"]

KEY = "anytime"
"""Metadata entry that holds the manifest."""


def save(model: AnytimeModel, path: str | Path) -> AnytimeModel:
    """Write a model; returns it with the version that its content has.

    Raises
    ------
    ArtifactError
        The file cannot be written, or the model has a number that is not finite.
    """
    path = Path(path)
    arrays = _arrays(model)
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ArtifactError(f"the model's array {name!r} is not finite everywhere; it was not saved")
    manifest = model.manifest.model_copy(update={"version": _version(model.manifest, arrays)})
    content = serialise(arrays, metadata={KEY: manifest.model_dump_json()})
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", suffix=".tmp", delete=False
        ) as aside:
            try:
                aside.write(content)
                aside.flush()
                os.fsync(aside.fileno())
                os.chmod(aside.name, 0o666 & ~_umask())
                os.replace(aside.name, path)
            except BaseException:
                os.unlink(aside.name)
                raise
    except OSError as error:
        raise ArtifactError(f"cannot write {str(path)!r}: {(error.strerror or str(error)).lower()}") from error
    return replace(model, manifest=manifest)


def load(path: str | Path) -> AnytimeModel:
    """Read and check a model file.

    Raises
    ------
    ArtifactError
        The file is not there, not a model of this library, of a newer format, truncated, or not what was written.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"cannot read {str(path)!r}: {(error.strerror or str(error)).lower()}") from error
    try:
        metadata = _metadata(content)
        arrays = parse_tensors(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ArtifactError(
            f"{str(path)!r} is not a whole safetensors file ({error}); train or copy it again"
        ) from error
    if KEY not in metadata:
        raise ArtifactError(f"{str(path)!r} is a safetensors file of something else; expected one from 'anytime train'")
    try:
        return _model(_manifest(metadata[KEY]), arrays)
    except ArtifactError as error:
        raise ArtifactError(f"{str(path)!r} {error}") from None


def _umask() -> int:
    """The process's file mode mask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _metadata(content: bytes) -> dict[str, str]:
    """Metadata of a safetensors file: eight bytes of length, then a JSON header."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 + length:
        raise ValueError(f"{len(content)} bytes, its header says more")
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    found = header.get("__metadata__", {})
    return found if isinstance(found, dict) else {}


def _manifest(text: str) -> Manifest:
    try:
        raw = json.loads(text)
        number = raw["format"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ArtifactError("has a manifest that is not one of this library; train it again") from error
    if not isinstance(number, int) or number > FORMAT:
        raise ArtifactError(f"has format {number}; this library reads up to {FORMAT}: install a newer anytime-linear")
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ArtifactError(
            f"has a damaged manifest ({where}: {first['msg'].lower()}); train or copy it again"
        ) from error


def _arrays(model: AnytimeModel) -> dict[str, np.ndarray[Any, Any]]:
    p, m = model.prefixes, model.moments
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "mean": p.mean,
        "scale": p.scale,
        "intercept": p.intercept,
        "response_scale": p.response_scale,
        "columns": p.columns.astype(np.int64),
        "ends": p.ends.astype(np.int64),
        "coef": p.packed,
    }
    if m is not None:
        arrays |= {
            "moments.rows": np.array([m.rows], dtype=np.int64),
            "moments.weight": np.array([m.weight]),
            "moments.mean": m.mean,
            "moments.scatter": m.scatter,
            "moments.fill": m.fill,
            "moments.missing": np.array(m.missing, dtype=np.int64),
        }
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def _version(manifest: Manifest, arrays: dict[str, np.ndarray[Any, Any]]) -> str:
    """Hash of all content but the version itself and the time of creation, so that equal models have equal versions."""
    digest = hashlib.sha256()
    blank = manifest.provenance.model_copy(update={"created": ""})
    digest.update(manifest.model_copy(update={"version": "", "provenance": blank}).model_dump_json().encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def _model(manifest: Manifest, arrays: dict[str, np.ndarray[Any, Any]]) -> AnytimeModel:
    _check_arrays(manifest, arrays)
    if _version(manifest, arrays) != manifest.version:
        raise ArtifactError("was changed after it was written (its content hash differs); train or copy it again")
    prefixes = PrefixModels(
        mean=arrays["mean"],
        scale=arrays["scale"],
        intercept=arrays["intercept"],
        response_scale=arrays["response_scale"],
        columns=arrays["columns"].astype(np.intp),
        ends=arrays["ends"].astype(np.intp),
        packed=arrays["coef"],
    )
    return AnytimeModel(manifest, prefixes, _moments(manifest, arrays))


def _moments(manifest: Manifest, arrays: dict[str, np.ndarray[Any, Any]]) -> Moments | None:
    if "moments.rows" not in arrays:
        return None
    return Moments(
        features=len(manifest.groups.features),
        responses=len(manifest.responses),
        rows=int(arrays["moments.rows"][0]),
        weight=float(arrays["moments.weight"][0]),
        mean=arrays["moments.mean"],
        scatter=arrays["moments.scatter"],
        fill=arrays["moments.fill"],
        missing=tuple(arrays["moments.missing"].tolist()),
    )


def _check_arrays(manifest: Manifest, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    """Every array there, of the shape that the manifest asks for, and finite; no group unknown."""
    D, P, steps = len(manifest.groups.features), len(manifest.responses), len(manifest.steps)
    known = set(manifest.groups.names)
    added = [name for step in manifest.steps for name in step.adds]
    if sorted(added) != sorted(known):
        raise ArtifactError("has steps that do not add each group once; train or copy it again")
    ends = np.cumsum([0, *(sum(_size(manifest, name) for name in step.adds) for step in manifest.steps)])
    shapes: dict[str, tuple[int, ...]] = {
        "mean": (D,),
        "scale": (D,),
        "intercept": (P,),
        "response_scale": (P,),
        "columns": (D,),
        "ends": (steps + 1,),
        "coef": (int(ends.sum()), P),
    }
    if any(name.startswith("moments.") for name in arrays):
        missing = arrays.get("moments.missing", np.empty(0))
        width = D + P + len(missing)
        shapes |= {"moments.rows": (1,), "moments.weight": (1,), "moments.fill": (D,), "moments.missing": missing.shape}
        shapes |= {"moments.mean": (width,), "moments.scatter": (width, width)}
    for name, shape in shapes.items():
        found = arrays[name].shape if name in arrays else None
        if found != shape:
            raise ArtifactError(f"has array {name!r} of shape {found}, expected {shape}; train or copy it again")
    extra = set(arrays) - set(shapes)
    wrong = [name for name in shapes if not np.isfinite(arrays[name]).all()]
    if extra or wrong:
        what = (
            f"an array {min(extra)!r} it should not have" if extra else f"numbers in {wrong[0]!r} that are not finite"
        )
        raise ArtifactError(f"has {what}; train or copy it again")
    _check_columns(arrays, ends)


def _size(manifest: Manifest, group: str) -> int:
    return len(manifest.groups.groups[manifest.groups.positions[group]].features)


def _check_columns(arrays: dict[str, np.ndarray[Any, Any]], ends: np.ndarray[Any, Any] | Float) -> None:
    columns = arrays["columns"]
    if not np.array_equal(np.sort(columns), np.arange(len(columns))) or not np.array_equal(arrays["ends"], ends):
        raise ArtifactError("has columns or ends that do not fit its steps; train or copy it again")
