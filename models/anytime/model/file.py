"""Model files: one safetensors file with the arrays, and the manifest as JSON in its metadata. They contain no code.

The reader trusts nothing. It checks the container, the format number, the manifest, the shapes and the content hash, in
this order, and reports the first error. `models/FORMAT.md` describes the format and how to change it.
"""

from __future__ import annotations

import hashlib
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anytime._files import FileKind, check_arrays, dtype_of, read, write
from anytime.errors import ArtifactError, GroupsError, TrainingError, refuse
from anytime.families import family_of
from anytime.features.expansion import Expansion
from anytime.model.manifest import Manifest, best_prefixes, steps_with_products
from anytime.model.prefixes import PrefixModels
from anytime.moments.moments import Moments
from anytime.target import check_family

PICKLES = (".pkl", ".pickle", ".joblib")
"""Suffixes of pickles, which a model file must not have: readers would load it as one."""

MODEL = FileKind("anytime", "model", "anytime train", "train or copy it again", "manifest")

if TYPE_CHECKING:
    from anytime.glm.search import QuadraticModels

Arrays = dict[str, NDArray[Any]]

SHARED_ARRAYS = ("mean", "scale", "intercept", "response_scale", "columns", "ends")
"""Arrays named after the attributes of `PrefixModels`."""


def write_model(
    path: Path, manifest: Manifest, prefixes: PrefixModels, moments: Moments | None, curvatures: QuadraticModels | None
) -> Manifest:
    """Write a model file; return the manifest with the version of its content.

    Raise ArtifactError if the file is not writable, or a number is not finite.
    """
    arrays: Arrays = {name: getattr(prefixes, name) for name in SHARED_ARRAYS} | {"coef": prefixes.packed}
    if prefixes.own_intercepts is not None:
        arrays["intercepts"] = prefixes.own_intercepts
    if curvatures is not None:
        arrays |= {
            "curvature.prefixes": curvatures.prefixes,
            "curvature.h": curvatures.packed,
            "curvature.r": curvatures.r,
        }
    if moments is not None:
        arrays |= moments.packed("moments.")
    arrays = {name: np.ascontiguousarray(array, dtype_of(name)) for name, array in arrays.items()}
    if path.suffix.lower() in PICKLES:
        raise ArtifactError(f"cannot write {str(path)!r}: a model file is no pickle; expected a .safetensors name")
    versioned = manifest.model_copy(update={"version": _version(manifest, arrays)})
    write(path, MODEL, versioned.model_dump_json(), arrays)
    return versioned


def read_model(path: Path) -> tuple[Manifest, PrefixModels, Moments | None, QuadraticModels | None]:
    """Read a model file and check everything in it.

    Raise ArtifactError if it does not exist, is not a model file, has another format, is truncated or was changed.
    """
    manifest, arrays = read(path, MODEL, Manifest)
    try:
        _check_arrays(manifest, arrays)
        _check_manifest(manifest)
        if _version(manifest, arrays) != manifest.version:
            raise _damaged("was changed after it was written (its content hash differs)")
        moments = None
        if "moments.rows" in arrays:
            moments = Moments.unpacked(arrays, "moments.", len(arrays["mean"]), len(manifest.responses))
            if moments is None or moments.weight == 0:
                raise _damaged("has moments with invalid counts")
    except ArtifactError as error:
        raise ArtifactError(f"{str(path)!r} {error}") from None
    except GroupsError as error:
        raise ArtifactError(f"{str(path)!r} has a damaged manifest (groups: {error}); {MODEL.remedy}") from None
    prefixes = PrefixModels(
        **{name: arrays[name] for name in SHARED_ARRAYS},
        packed=arrays["coef"],
        own_intercepts=arrays.get("intercepts"),
        expansion=Expansion.of(manifest.groups),
    )
    curvatures = None
    if "curvature.prefixes" in arrays:
        from anytime.glm.search import QuadraticModels  # noqa: PLC0415  (most models need no search)

        curvatures = QuadraticModels(*(arrays[f"curvature.{name}"] for name in ("prefixes", "h", "r")))
    return manifest, prefixes, moments, curvatures


def _damaged(what: str) -> ArtifactError:
    return ArtifactError(f"{what}; {MODEL.remedy}")


def _version(manifest: Manifest, arrays: Arrays) -> str:
    """Return the hash of the content except the version and the creation time, so equal models have equal versions."""
    digest = hashlib.sha256()
    blank = manifest.provenance.model_copy(update={"created": ""})
    digest.update(manifest.model_copy(update={"version": "", "provenance": blank}).model_dump_json().encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def _check_arrays(manifest: Manifest, arrays: Arrays) -> None:
    """Raise unless exactly the expected arrays are present, finite and of the shapes that the manifest implies."""
    groups = Expansion.of(manifest.groups).terms
    D, P, steps = len(groups.features), len(manifest.responses), len(manifest.steps)
    steps_of = [step.adds for step in manifest.steps]
    if sorted(chain.from_iterable(steps_of)) != sorted(manifest.groups.names):
        raise _damaged("has steps that do not add each group once")
    if manifest.groups.joined_pairs(steps_of) != [step.pairs for step in manifest.steps]:
        raise _damaged("has steps that do not join each pair when both columns are there")
    slices = [[groups.slices[g] for g in step] for step in steps_with_products(manifest, groups)]
    ends = np.cumsum([0, *(sum(each.stop - each.start for each in step) for step in slices)])
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
        shapes |= Moments.packed_shapes(arrays, "moments.", D, P)
    if not family_of(manifest.family).least_squares:
        shapes["intercepts"] = (steps + 1, P)
    if any(name.startswith("curvature.") for name in arrays):
        stored = arrays.get("curvature.prefixes", np.empty(0)).size
        shapes |= {
            "curvature.prefixes": (stored,),
            "curvature.h": (stored, (D + 1) * (D + 2) // 2),
            "curvature.r": (stored, D + 1),
        }
    check_arrays(arrays, shapes, MODEL)
    if extra := set(arrays) - set(shapes):
        raise _damaged(f"has an unexpected array {min(extra)!r}")
    columns = np.concatenate([np.arange(each.start, each.stop) for step in slices for each in step])
    prefixes = arrays.get("curvature.prefixes")
    refuse(
        {
            "has columns or ends that do not fit its steps": (
                not np.array_equal(arrays["columns"], columns) or not np.array_equal(arrays["ends"], ends)
            ),
            "has curvatures for prefixes that do not exist": prefixes is not None
            and not (len(prefixes) and (np.diff(prefixes) > 0).all() and prefixes[0] >= 0 and prefixes[-1] <= steps),
        },
        _damaged,
    )


def _check_manifest(manifest: Manifest) -> None:
    """Raise unless calibration and certificate cover every prefix, and the target fits task and family."""
    prefixes, calibration, certificate = len(manifest.steps) + 1, manifest.calibration, manifest.certificate
    if calibration is not None:
        known, kind = len(calibration.thresholds), "regression or counts" if manifest.classes is None else "classes"
        refuse(
            {
                f"is calibrated for {known} prefixes and has {prefixes}": known != prefixes,
                f"has a calibration that does not fit {kind}": (
                    (calibration.reliability is None) != (manifest.classes is None)
                ),
            },
            _damaged,
        )
    if certificate is not None and not len(certificate.bounds) == len(certificate.exact) == prefixes:
        raise ArtifactError(
            f"has a certificate of {len(certificate.bounds)} bounds and {len(certificate.exact)} flags; expected "
            f"{prefixes} of each, one per prefix: train or certify it again"
        )
    best, target = best_prefixes(manifest.steps), manifest.learned
    responses, classes = len(manifest.responses), len(manifest.classes or ())
    refuse(
        {
            "has a prefix of least error that is longer than the prefix that it stands for": (
                any(step.best is not None for step in manifest.steps)
                and not (best and all(j <= k and best[j] == j for k, j in enumerate(best)))
            ),
            f"has {responses} responses and {classes} classes, which do not fit task {manifest.task!r}": (
                not target.is_consistent or len(target.responses) != responses
            ),
        },
        _damaged,
    )
    try:
        check_family(manifest.family, target)
    except TrainingError as error:
        raise _damaged(f"has family {manifest.family!r}, which does not fit task {manifest.task!r}") from error
    link = family_of(manifest.family).link.name
    if manifest.link != link:
        raise _damaged(f"has link {manifest.link!r}; family {manifest.family!r} has {link!r}")
