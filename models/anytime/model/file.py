"""Model files: one safetensors file with the arrays, and the manifest as JSON in its metadata. They contain no code.

The reader trusts nothing. It checks the container, the format number, the manifest, the shapes and the content hash, in
this order, and reports the first error. `models/anytime/FORMAT.md` describes the format and how to change it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from anytime._files import FileKind, read, write
from anytime.errors import ArtifactError, TrainingError
from anytime.glm.search import QuadraticModels
from anytime.model.manifest import FORMAT, Manifest
from anytime.model.prefixes import PrefixModels
from anytime.moments.files import packed, packed_shapes, unpacked
from anytime.moments.moments import Moments
from anytime.target import Target, check_family

__all__ = [
    "read_model",
    "write_model",
]

MODEL = FileKind("anytime", "model", "anytime train", "train or copy it again")

INTEGER_ARRAYS = ("columns", "ends", "moments.rows", "moments.missing", "curvature.prefixes")
"""Integer arrays; the others are floats."""


def write_model(
    path: Path, manifest: Manifest, prefixes: PrefixModels, moments: Moments | None, curvatures: QuadraticModels | None
) -> Manifest:
    """Write a model file; return the manifest with the version of its content.

    Raises
    ------
    ArtifactError
        The file is not writable, or a number is not finite.
    """
    arrays = _arrays(prefixes, moments, curvatures)
    versioned = manifest.model_copy(update={"version": _version(manifest, arrays)})
    write(path, MODEL, versioned.model_dump_json(), arrays)
    return versioned


def read_model(path: Path) -> tuple[Manifest, PrefixModels, Moments | None, QuadraticModels | None]:
    """Read a model file and check everything in it.

    Raises
    ------
    ArtifactError
        The file does not exist, is not a model file, has another format, is truncated or was changed.
    """
    text, arrays = read(path, MODEL)
    try:
        manifest = _manifest(text)
        _check(manifest, arrays)
        return manifest, _prefixes(arrays), _moments(manifest, arrays), _curvatures(arrays)
    except ArtifactError as error:
        raise ArtifactError(f"{str(path)!r} {error}") from None


def _manifest(text: str) -> Manifest:
    try:
        raw = json.loads(text)
        number = raw["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError("has a manifest that this library did not write; train it again") from error
    if type(number) is not int or number < 1:
        raise ArtifactError(f"has format {number!r}; expected {FORMAT}: train it again")
    if number > FORMAT:
        raise ArtifactError(f"has format {number}; this library reads format {FORMAT}: install a newer anytime-linear")
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        why = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"].lower()
        raise ArtifactError(f"has a damaged manifest ({where}: {why}); train or copy it again") from error


def _arrays(p: PrefixModels, m: Moments | None, c: QuadraticModels | None) -> dict[str, np.ndarray[Any, Any]]:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "mean": p.mean,
        "scale": p.scale,
        "intercept": p.intercept,
        "response_scale": p.response_scale,
        "columns": p.columns.astype(np.int64),
        "ends": p.ends.astype(np.int64),
        "coef": p.packed,
    }
    if p.own_intercepts is not None:
        arrays["intercepts"] = p.own_intercepts
    if c is not None:
        arrays |= {"curvature.prefixes": c.prefixes.astype(np.int64), "curvature.h": c.packed, "curvature.r": c.r}
    if m is not None:
        arrays |= packed(m, "moments.")
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def _version(manifest: Manifest, arrays: dict[str, np.ndarray[Any, Any]]) -> str:
    """Return the hash of the content except the version and the creation time, so equal models have equal versions."""
    digest = hashlib.sha256()
    blank = manifest.provenance.model_copy(update={"created": ""})
    plain = manifest.model_copy(update={"version": "", "provenance": blank})
    digest.update(plain.model_dump_json().encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def _check(manifest: Manifest, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    _check_calibration(manifest)
    _check_certificate(manifest)
    _check_arrays(manifest, arrays)
    _check_target(manifest)
    if _version(manifest, arrays) != manifest.version:
        raise ArtifactError("was changed after it was written (its content hash differs); train or copy it again")


def _prefixes(arrays: dict[str, np.ndarray[Any, Any]]) -> PrefixModels:
    return PrefixModels(
        mean=arrays["mean"],
        scale=arrays["scale"],
        intercept=arrays["intercept"],
        response_scale=arrays["response_scale"],
        columns=arrays["columns"].astype(np.intp),
        ends=arrays["ends"].astype(np.intp),
        packed=arrays["coef"],
        own_intercepts=arrays.get("intercepts"),
    )


def _curvatures(arrays: dict[str, np.ndarray[Any, Any]]) -> QuadraticModels | None:
    if "curvature.prefixes" not in arrays:
        return None
    prefixes = arrays["curvature.prefixes"].astype(np.intp)
    return QuadraticModels(prefixes, arrays["curvature.h"], arrays["curvature.r"])


def _moments(manifest: Manifest, arrays: dict[str, np.ndarray[Any, Any]]) -> Moments | None:
    if "moments.rows" not in arrays:
        return None
    found = unpacked(arrays, "moments.", len(manifest.groups.features), len(manifest.responses))
    if found is None or found.weight == 0:
        raise ArtifactError("has moments with invalid counts; train or copy it again")
    return found


def _check_calibration(manifest: Manifest) -> None:
    """Raise unless every prefix has a threshold, and a reliability exactly where the model has classes."""
    found, prefixes = manifest.calibration, len(manifest.steps) + 1
    if found is None:
        return
    if len(found.thresholds) != prefixes:
        raise ArtifactError(
            f"is calibrated for {len(found.thresholds)} prefixes and has {prefixes}; train or copy it again"
        )
    if (found.reliability is None) != (manifest.classes is None):
        kind = "regression or counts" if manifest.classes is None else "classes"
        raise ArtifactError(f"has a calibration that does not fit {kind}; train or copy it again")


def _check_certificate(manifest: Manifest) -> None:
    """Raise unless every prefix has a bound and an `exact` flag."""
    found, prefixes = manifest.certificate, len(manifest.steps) + 1
    if found is not None and not len(found.bounds) == len(found.exact) == prefixes:
        raise ArtifactError(
            f"has a certificate of {len(found.bounds)} bounds and {len(found.exact)} flags; expected {prefixes} of "
            "each, one per prefix: train or certify it again"
        )


def _check_target(manifest: Manifest) -> None:
    """Raise unless classes, responses and family fit the task."""
    target = Target(manifest.task, manifest.target, manifest.classes)
    if not target.is_consistent or len(target.responses) != len(manifest.responses):
        raise ArtifactError(
            f"has {len(manifest.responses)} responses and {len(manifest.classes or ())} classes, which do not fit "
            f"task {manifest.task!r}; train or copy it again"
        )
    try:
        check_family(manifest.family, target)
    except TrainingError as error:
        what = f"family {manifest.family!r}, which does not fit task {manifest.task!r}"
        raise ArtifactError(f"has {what}; train or copy it again") from error


def _check_arrays(manifest: Manifest, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    """Raise unless exactly the expected arrays are present, finite and of the shapes that the manifest implies."""
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
        shapes |= packed_shapes(arrays, "moments.", D, P)
    if manifest.family != "gaussian":
        shapes["intercepts"] = (steps + 1, P)
    if any(name.startswith("curvature.") for name in arrays):
        stored = arrays.get("curvature.prefixes", np.empty(0)).size
        shapes |= {"curvature.prefixes": (stored,), "curvature.r": (stored, D + 1)}
        shapes["curvature.h"] = (stored, (D + 1) * (D + 2) // 2)
    for name, shape in shapes.items():
        if name not in arrays:
            raise ArtifactError(f"lacks array {name!r}; train or copy it again")
        found, kind = arrays[name], np.int64 if name in INTEGER_ARRAYS else np.float64
        if found.shape != shape or found.dtype != kind:
            description = f"{found.dtype} of shape {found.shape}, expected {np.dtype(kind)} of shape {shape}"
            raise ArtifactError(f"has array {name!r} as {description}; train or copy it again")
    extra = set(arrays) - set(shapes)
    wrong = [name for name in shapes if not np.isfinite(arrays[name]).all()]
    if extra or wrong:
        what = f"an unexpected array {min(extra)!r}" if extra else f"numbers in {wrong[0]!r} that are not finite"
        raise ArtifactError(f"has {what}; train or copy it again")
    _check_columns(manifest, arrays, ends)


def _size(manifest: Manifest, group: str) -> int:
    return len(manifest.groups.groups[manifest.groups.positions[group]].features)


def _slices(manifest: Manifest) -> list[slice]:
    """Return the columns of the groups in the order in which the steps add them."""
    return [manifest.groups.slices[manifest.groups.positions[name]] for step in manifest.steps for name in step.adds]


def _check_columns(manifest: Manifest, arrays: dict[str, np.ndarray[Any, Any]], ends: np.ndarray[Any, Any]) -> None:
    columns = [np.arange(s.start, s.stop) for s in _slices(manifest)]
    if not np.array_equal(arrays["columns"], np.concatenate(columns)) or not np.array_equal(arrays["ends"], ends):
        raise ArtifactError("has columns or ends that do not fit its steps; train or copy it again")
    stored = arrays.get("curvature.prefixes")
    if stored is not None and not (
        len(stored) and (np.diff(stored) > 0).all() and stored[0] >= 0 and stored[-1] < len(ends)
    ):
        raise ArtifactError("has curvatures for prefixes that do not exist; train or copy it again")
