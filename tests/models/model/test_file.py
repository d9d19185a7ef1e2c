"""Model files: what is read is what was written, every damage is one line, and there is never half a file."""

from __future__ import annotations

import json
import os
import stat
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load as parse_tensors, save as serialise

from anytime.errors import ArtifactError, EnvironmentFailure
from anytime.estimators import AnytimeClassifier, AnytimeRegressor
from anytime.glm.search import QuadraticModels
from anytime.groups import load_groups
from anytime.inference.prediction import Prediction
from anytime.loaded import load
from anytime.model.manifest import FORMAT, Calibration, Certificate, Manifest, Provenance, StepRecord, Stopped
from anytime.model.model import Model
from anytime.model.prefixes import PrefixModels
from anytime.moments.moments import Moments
from models.opening import opened
from models.refusals import assert_refused

GOLDEN = Path(__file__).parents[1] / "golden"
Arrays = dict[str, NDArray[Any]]
Fields = dict[str, Any]


def handmade(created: str = "2024-02-29T12:00:00+00:00") -> Model:
    """Two steps on three features, one of them missing somewhere; every number is exact in binary."""
    groups = {
        "cost_unit": "ms",
        "groups": [
            {"name": "a", "features": ["a0", "a1"], "cost": 1.5},
            {"name": "visit", "features": [], "cost": 0.25},
            {"name": "b", "features": ["b0"], "cost": 0.5, "requires": ["visit"]},
        ],
    }
    steps = (("b", ("visit", "b"), 0.75, 0.75, 0.125), ("a", ("a",), 1.5, 2.25, 0.375))
    manifest = Manifest(
        name="handmade",
        task="regression",
        target=("y",),
        responses=("y",),
        groups=load_groups(groups),
        method="fr",
        alpha=0.5,
        prior_error=2.5,
        steps=tuple(
            StepRecord(
                group=group,
                adds=adds,
                cost=cost,
                cumulative_cost=total,
                explained_variance=F,
                r2=2 * F,
                cv_error=2.0,
                alpha=0.5,
            )
            for group, adds, cost, total, F in steps
        ),
        provenance=Provenance(created=created, library="0.1.0", data="by hand", rows=4, weight=4.0, imputed=("b0",)),
    )
    prefixes = PrefixModels(
        mean=np.array([1.0, 0.0, 2.0]),
        scale=np.array([0.5, 2.0, 1.0]),
        intercept=np.array([3.0]),
        response_scale=np.array([1.5]),
        columns=np.array([2, 0, 1]),
        ends=np.array([0, 1, 3]),
        packed=np.array([[0.5], [0.25], [1.0], [2.0]]),
    )
    # Columns a0, a1, b0, y and the indicator of b0, centred.
    Z = np.array([[1.0, 0, 2, 1, -0.25], [-1, 0, -2, -1, -0.25], [0, 1, 0, 2, 0.75], [0, -1, 0, -2, -0.25]])
    moments = Moments(
        features=3,
        responses=1,
        rows=4,
        weight=4.0,
        mean=np.array([1.0, 0.0, 2.0, 3.0, 0.25]),
        scatter=Z.T @ Z,
        fill=np.array([1.0, 0.0, 2.0]),
        missing=((2, 3),),
    )
    return Model(manifest, prefixes, moments)


def stating(model: Model, **changes: Any) -> Model:
    """A model whose manifest states something else."""
    return replace(model, manifest=model.manifest.model_copy(update=changes))


def with_moments(**changes: Any) -> Model:
    """As `handmade`, with other moments."""
    model = handmade()
    assert model.moments is not None
    return replace(model, moments=replace(model.moments, **changes))


def bytes_of(model: Model, folder: Path) -> bytes:
    """What a model is saved as."""
    model.save(folder / "saved.safetensors")
    return (folder / "saved.safetensors").read_bytes()


def arrays_of(model: Model) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Every array of a model, to the bit."""
    p, m, c = model.prefixes, model.moments, model.curvatures
    names = [name for name in p.__dataclass_fields__ if name != "expansion" and getattr(p, name) is not None]
    arrays: Arrays = {name: getattr(p, name) for name in names}
    if c is not None:
        arrays |= {f"curvature.{name}": np.asarray(getattr(c, name)) for name in c.__dataclass_fields__}
    if m is not None:
        arrays |= {f"moments.{name}": np.asarray(getattr(m, name)) for name in m.__dataclass_fields__}
    return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()}


def same(one: Model, other: Model) -> bool:
    """Whether two models are equal in all but the time of their creation."""
    manifests = []
    for manifest in (one.manifest, other.manifest):
        origin = manifest.provenance.model_copy(update={"created": ""})
        manifests.append(manifest.model_copy(update={"provenance": origin}))
    return manifests[0] == manifests[1] and arrays_of(one) == arrays_of(other)


def handmade_counts() -> Model:
    """Counts by the first step of `handmade`, and by both; with the second-order model of one prefix."""
    model = handmade()
    changes: Fields = {"task": "count", "family": "poisson", "link": "log", "prior_deviance": 3.0, "classes": None}
    steps = [step.model_copy(update={"deviance": d}) for step, d in zip(model.manifest.steps, (2.5, 1.0), strict=True)]
    prefixes = replace(
        model.prefixes,
        intercept=np.array([1.0]),
        response_scale=np.array([1.0]),
        own_intercepts=np.array([[1.0], [0.5], [-0.25]]),
    )
    packed = np.array([[1.0, 0.5, 2.0, 0.0, 0.25, 1.5, 0.125, 0.0, 0.5, 4.0]])
    curvatures = QuadraticModels(np.array([2]), packed, np.array([[0.5, 1.0, -2.0, 0.25]]))
    return Model(model.manifest.model_copy(update={**changes, "steps": tuple(steps)}), prefixes, None, curvatures)


def handmade_calibrated() -> Model:
    """As `handmade`, with intervals."""
    found = Calibration(
        coverage=0.75, level=0.8, rows=4, data="held.csv", thresholds=(1.5, 0.5, 0.25), sizes=(3.0, 1.0, 0.5)
    )
    return stating(handmade(), calibration=found)


def handmade_certified() -> Model:
    """As `handmade`, stopped before one more group, and certified."""
    stopped = Stopped(
        rule="validation", steps=2, epsilon=0.25, validation="held.csv", errors=(2.0, 1.5, 1.0, None), left_out=("c",)
    )
    found = Certificate(bounds=(0.0, 0.25, 0.375), exact=(True, False, True), nodes=20, seconds=1.5)
    return stating(handmade(), stopped=stopped, certificate=found)


def likely(family: str) -> Model:
    """A model of a likelihood, trained with folds on a table with a gap."""
    rng = np.random.default_rng(6)
    X = rng.normal(size=(80, 4))
    X[7, 2] = np.nan
    groups = {
        "groups": [
            {"name": "g", "features": ["x0", "x3"], "cost": 0.1},
            {"name": "visit", "features": [], "cost": 1.0},
            {"name": "h", "features": ["x2", "x1"], "cost": 0.2, "requires": ["visit"]},
        ]
    }
    if family == "poisson":
        counts = rng.poisson(np.exp(0.5 * X[:, 0])).astype(np.float64)
        return AnytimeRegressor(groups, family="poisson", alpha="cv", cv=3).fit(X, counts).model_
    names = ["red", "grün"] if family == "binomial" else ["red", "grün", "blue"]
    return AnytimeClassifier(groups, alpha=1e-3, cv=3).fit(X, rng.choice(names, size=80)).model_


def trained(*, multiclass: bool = False) -> Model:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(60, 4))
    X[7, 2] = np.nan
    groups = {
        "groups": [
            {"name": "g", "features": ["x0", "x3"], "cost": 0.1},
            {"name": "h", "features": ["x2", "x1"], "cost": 0.2},
        ]
    }
    if multiclass:
        return (
            AnytimeClassifier(groups, family="gaussian", cv=3)
            .fit(X, rng.choice(["red", "grün", "blue"], size=60))
            .model_
        )
    return AnytimeRegressor(groups, alpha="cv").fit(X, np.nan_to_num(X) @ rng.normal(size=(4, 2))).model_


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return bytes_of(handmade(), tmp_path_factory.mktemp("models"))


@pytest.fixture
def refused(tmp_path: Path) -> Callable[[bytes], str]:
    """Loads some bytes, which must fail in one line that names the file; returns the line."""
    path = tmp_path / "damaged.safetensors"

    def load_damaged(damaged: bytes) -> str:
        path.write_bytes(damaged)
        return assert_refused(partial(load, path), str(path), error=ArtifactError)

    return load_damaged


# Writing and reading


MODELS: dict[str, Callable[[], Model]] = {
    "hand": handmade,
    "hand, counts": handmade_counts,
    "vector": trained,
    "classes": lambda: trained(multiclass=True),
    "binomial": lambda: likely("binomial"),
    "multinomial": lambda: likely("multinomial"),
    "poisson": lambda: likely("poisson"),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_loaded_is_what_was_saved_to_the_bit_and_saved_again_has_its_version_and_bytes(
    name: str, tmp_path: Path
) -> None:
    model = MODELS[name]()
    saved = model.save(tmp_path / "m.safetensors")
    loaded = load(str(tmp_path / "m.safetensors"))
    assert len(saved.version) == 16
    assert loaded.manifest == saved.manifest
    assert saved.manifest == model.manifest.model_copy(update={"version": saved.version})
    assert arrays_of(loaded) == arrays_of(model)
    X = np.random.default_rng(0).normal(size=(5, len(model.groups.features)))
    assert np.array_equal(loaded.prefixes.predict_all(X), model.prefixes.predict_all(X))
    assert loaded.save(tmp_path / "again.safetensors").version == saved.version
    assert (tmp_path / "m.safetensors").read_bytes() == (tmp_path / "again.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("name", "part"), [("vector", "moments"), ("binomial", "curvatures"), ("poisson", "curvatures")]
)
def test_a_model_without_a_part_is_smaller_and_stays_without(name: str, part: str, tmp_path: Path) -> None:
    whole, bare = tmp_path / "whole.safetensors", tmp_path / "bare.safetensors"
    model = MODELS[name]()
    model.save(whole)
    nothing: dict[str, Any] = {part: None}
    saved = replace(model, **nothing).save(bare)
    assert bare.stat().st_size < whole.stat().st_size
    assert getattr(load(bare), part) is None
    assert same(load(bare), saved)
    assert load(bare).version != load(whole).version


def test_equal_models_have_equal_versions_whenever_they_were_made(tmp_path: Path) -> None:
    early = handmade("1999-01-01T00:00:00+00:00").save(tmp_path / "a.safetensors")
    assert early.version == handmade("2031-01-01T00:00:00+00:00").save(tmp_path / "b.safetensors").version


def test_other_content_has_another_version(tmp_path: Path) -> None:
    model = handmade()
    renamed = stating(model, name="other")
    nudged = replace(model, prefixes=replace(model.prefixes, intercept=np.nextafter(model.prefixes.intercept, 9)))
    bare = replace(model, moments=None)
    assert len({m.save(tmp_path / "m.safetensors").version for m in (model, renamed, nudged, bare)}) == 4


def test_source_date_epoch_makes_files_equal_to_the_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    for name in "ab":
        trained().save(tmp_path / f"{name}.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert load(tmp_path / "a.safetensors").manifest.provenance.created == "2023-11-14T22:13:20+00:00"


def test_the_file_has_the_mode_that_any_new_file_has(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    handmade().save(tmp_path / "m.safetensors")
    assert len({stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "m.safetensors")}) == 1


# Golden files


GOLDENS: dict[str, Callable[[], Model]] = {
    "model": handmade,
    "likelihood": handmade_counts,
    "certified": handmade_certified,
    "calibrated": handmade_calibrated,
}


def golden(kind: str) -> Path:
    return GOLDEN / f"{kind}-format-{FORMAT}.safetensors"


@pytest.mark.parametrize("kind", GOLDENS)
def test_the_golden_file_of_todays_format_is_what_is_written_today_and_keeps_its_version(
    kind: str, regenerate: bool, tmp_path: Path
) -> None:
    path = golden(kind)
    if regenerate:
        GOLDEN.mkdir(exist_ok=True)
        GOLDENS[kind]().save(path)
    assert path.is_file(), "no golden file of this kind in this format; write it with --regenerate and commit it"
    assert same(load(path), GOLDENS[kind]().save(tmp_path / path.name))
    assert load(path).save(tmp_path / "again.safetensors").version == load(path).version
    assert path.stat().st_size < 20 * 1024


def test_a_golden_calibrated_model_loads() -> None:
    assert Prediction(load(golden("calibrated"))).answer().interval == pytest.approx([0.75, 5.25])


def test_a_golden_likelihood_loads_and_predicts() -> None:
    model = load(golden("likelihood"))
    assert model.prefixes.predict_all(np.array([[2.0, 3.0, 4.0]])).ravel().tolist() == [1.0, 1.5, 7.25]
    assert Prediction(model).answer().prediction == pytest.approx(np.exp(1.0))
    answer = opened(model, {"b": [4.0]}).answer()
    assert answer.prediction == pytest.approx(np.exp(1.5))
    assert answer.expected.deviance == 2.5


def test_a_golden_file_loads_and_predicts() -> None:
    model = load(golden("model"))
    assert model.prefixes.predict_all(np.array([[2.0, 3.0, 4.0]])).ravel().tolist() == [3.0, 4.0, 10.5]
    answer = opened(model, {"b": [4.0]}).answer()
    assert (answer.prediction, answer.cost) == (4.0, 0.75)
    assert opened(model, {"b": [4.0], "a": [2.0, 3.0]}).answer().prediction == 10.5
    assert [step.adds for step in model.manifest.steps] == [("visit", "b"), ("a",)]


def test_there_is_a_golden_file_for_every_format_and_no_other() -> None:
    files = sorted(path.name for path in GOLDEN.glob("model-format-*.safetensors"))
    assert files == [f"model-format-{n}.safetensors" for n in range(1, FORMAT + 1)]


# Damage


def test_a_truncated_file_is_refused_at_every_length(content: bytes, refused: Callable[[bytes], str]) -> None:
    for length in {*range(0, len(content), 7), *range(40), *range(len(content) - 40, len(content))}:
        assert "not a complete safetensors file" in refused(content[:length])


@pytest.mark.parametrize("mask", [0x01, 0x02, 0x20, 0xFF])
def test_a_flipped_byte_is_refused_unless_it_says_nothing(content: bytes, mask: int, tmp_path: Path) -> None:
    path = tmp_path / "flipped.safetensors"
    path.write_bytes(content)
    written = load(path)
    with path.open("r+b", buffering=0) as file:
        for place in range(mask % 3, len(content), 3):
            os.pwrite(file.fileno(), bytes([content[place] ^ mask]), place)
            try:
                read = load(path)
            except ArtifactError as error:
                assert "\n" not in str(error)  # noqa: PT017  (a load may also succeed)
            else:
                assert same(read, written), f"byte {place} was changed unnoticed"
            os.pwrite(file.fileno(), content[place : place + 1], place)


def with_manifest(change: Callable[[Fields], object]) -> Callable[[bytes], bytes]:
    """Damage to the manifest."""

    def damage(content: bytes) -> bytes:
        fields = json.loads(header_of(content)["__metadata__"]["anytime"])
        change(fields)
        return serialise(parse_tensors(content), metadata={"anytime": json.dumps(fields)})

    return damage


def with_arrays(change: Callable[[Arrays], object]) -> Callable[[bytes], bytes]:
    """Damage to the arrays."""

    def damage(content: bytes) -> bytes:
        arrays = parse_tensors(content)
        change(arrays)
        whole = {name: np.array(array, order="C") for name, array in arrays.items()}
        return serialise(whole, metadata=header_of(content)["__metadata__"])

    return damage


def best_of(*best: int | None) -> Callable[[Fields], object]:
    def change(manifest: Fields) -> None:
        for step, prefix in zip(manifest["steps"], best, strict=True):
            step["best"] = prefix

    return change


def share_a_capital(manifest: Fields) -> None:
    for group in manifest["groups"]["groups"]:
        group["features"] = ["Hog"]


def certified(bounds: list[float], exact: list[bool]) -> Callable[[Fields], object]:
    return lambda manifest: manifest.update(certificate={"bounds": bounds, "exact": exact, "nodes": 1})


def header_of(content: bytes) -> Fields:
    (length,) = struct.unpack("<Q", content[:8])
    header: Fields = json.loads(content[8 : 8 + length])
    return header


def container(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def set_nan(name: str) -> Callable[[Arrays], object]:
    return lambda arrays: arrays.update({name: np.full_like(arrays[name], np.nan)})


BF16 = container(b'{"t":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}', b"\0\0")
ENDLESS = f'{{"format": 1{"0" * 5_000}}}'


DAMAGES: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("an empty file", lambda _: b"", "not a complete safetensors file"),
    ("a longer file", lambda content: content + b"\0", "not a complete safetensors file"),
    ("a picture", lambda _: b"\x89PNG\r\n\x1a\n" + bytes(100), "not a complete safetensors file"),
    ("a pickle", lambda _: b"\x80\x04\x95" + bytes(60), "not a complete safetensors file"),
    ("zeros", lambda _: bytes(1000), "not a complete safetensors file"),
    ("words", lambda _: b"cost,features\n1,2\n" * 20, "not a complete safetensors file"),
    ("a header that is a list", lambda _: container(b"[]      "), "not a complete safetensors file"),
    ("a header that is a number", lambda _: container(b"7       "), "not a complete safetensors file"),
    ("a header of brackets", lambda _: container(b"[" * 100_000), "not a complete safetensors file"),
    ("a header in no encoding", lambda _: container(b'{"\xff\xfe":1}'), "not a complete safetensors file"),
    ("a foreign file", lambda _: serialise({"w": np.zeros(3)}), "another kind"),
    ("a foreign file with metadata", lambda _: serialise({"w": np.zeros(3)}, {"format": "pt"}), "another kind"),
    ("a foreign file of half floats", lambda _: BF16, "another kind"),
    ("no arrays", lambda _: serialise({}, {"anytime": "{}"}), "manifest"),
    ("a manifest that is no JSON", lambda c: serialise(parse_tensors(c), {"anytime": "{"}), "manifest"),
    ("a manifest that is a list", lambda c: serialise(parse_tensors(c), {"anytime": "[1]"}), "manifest"),
    ("a manifest of brackets", lambda c: serialise(parse_tensors(c), {"anytime": "[" * 100_000}), "manifest"),
    ("a manifest of a number without end", lambda c: serialise(parse_tensors(c), {"anytime": ENDLESS}), "manifest"),
    ("a newer format", with_manifest(lambda m: m.update(format=FORMAT + 1)), "install a newer anytime-linear"),
    ("a format that is text", with_manifest(lambda m: m.update(format="1")), "format '1'"),
    ("a format that never was", with_manifest(lambda m: m.update(format=0)), "format 0"),
    ("no format", with_manifest(lambda m: m.pop("format")), "manifest"),
    ("an unknown field", with_manifest(lambda m: m.update(lnik="identity")), "lnik"),
    ("an unknown field of a step", with_manifest(lambda m: m["steps"][0].update(gain=1.0)), "gain"),
    ("a lost field", with_manifest(lambda m: m.pop("task")), "task"),
    ("no steps", with_manifest(lambda m: m.update(steps=[])), "steps"),
    ("a cost that is not a number", with_manifest(lambda m: m["steps"][0].update(cost=float("nan"))), "cost"),
    ("steps that leave out a group", with_manifest(lambda m: m["steps"].pop()), "each group once"),
    ("steps that add a group twice", with_manifest(lambda m: m["steps"][1].update(adds=["a", "b"])), "each group once"),
    ("steps that add an unknown group", with_manifest(lambda m: m["steps"][1].update(adds=["A"])), "each group once"),
    ("groups that share a feature with a capital", with_manifest(share_a_capital), "'Hog'"),
    ("groups that share a feature", with_manifest(lambda m: m["groups"]["groups"][2].update(features=["a0"])), "'a0'"),
    ("another name", with_manifest(lambda m: m.update(name="other")), "changed after it was written"),
    ("another version", with_manifest(lambda m: m.update(version="0" * 16)), "changed after it was written"),
    ("another cost", with_manifest(lambda m: m["steps"][0].update(cost=0.5)), "changed after it was written"),
    ("a missing array", with_arrays(lambda a: a.pop("coef")), "'coef'"),
    ("a missing array of the moments", with_arrays(lambda a: a.pop("moments.rows")), "'moments.rows'"),
    ("an array too many", with_arrays(lambda a: a.update(extra=np.zeros(2))), "'extra'"),
    ("a wrong shape", with_arrays(lambda a: a.update(coef=np.zeros((3, 1)))), "'coef'"),
    ("a transposed shape", with_arrays(lambda a: a.update(coef=a["coef"].T)), "'coef'"),
    ("a flat shape", with_arrays(lambda a: a.update({"moments.scatter": np.zeros(25)})), "'moments.scatter'"),
    ("a list that is a scalar", with_arrays(lambda a: a.update({"moments.missing": np.array(2)})), "'moments.missing'"),
    ("NaN in the coefficients", with_arrays(set_nan("coef")), "'coef'"),
    ("NaN in the moments", with_arrays(set_nan("moments.scatter")), "'moments.scatter'"),
    ("infinity", with_arrays(lambda a: a.update(intercept=np.array([np.inf]))), "'intercept'"),
    ("columns twice", with_arrays(lambda a: a.update(columns=np.array([0, 0, 1]))), "columns"),
    ("ends that do not fit", with_arrays(lambda a: a.update(ends=np.array([0, 2, 3]))), "columns or ends"),
    ("another coefficient", with_arrays(lambda a: a.update(coef=a["coef"] + 1e-12)), "changed after it was written"),
    ("a certificate of too few prefixes", with_manifest(certified([0.0], [True])), "certificate of 1 bounds"),
    (
        "a certificate that lacks what is exact",
        with_manifest(certified([0.0, 0.2, 0.4], [True, True])),
        "certificate of 3 bounds and 2 flags",
    ),
    ("a rule that is none", with_manifest(lambda m: m.update(stopped={"rule": "boredom", "steps": 1})), "stopped"),
    *(
        (f"prefixes {best} that answer", with_manifest(best_of(*best)), "prefix of least error")
        for best in ((2, 2), (0, 1), (None, 2))
    ),
    ("single precision", with_arrays(lambda a: a.update(mean=a["mean"].astype("f4"))), ""),
]


LIKELIHOOD_DAMAGES: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("no intercepts", with_arrays(lambda a: a.pop("intercepts")), "lacks array 'intercepts'"),
    ("intercepts of too few prefixes", with_arrays(lambda a: a.update(intercepts=np.zeros((2, 1)))), "'intercepts'"),
    ("intercepts in a row", with_arrays(lambda a: a.update(intercepts=a["intercepts"].ravel())), "'intercepts'"),
    ("whole intercepts", with_arrays(lambda a: a.update(intercepts=np.zeros((3, 1), "i8"))), "'intercepts'"),
    ("NaN in the intercepts", with_arrays(set_nan("intercepts")), "'intercepts'"),
    ("another intercept", with_arrays(lambda a: a.update(intercepts=a["intercepts"] * 1.5)), "changed after it was"),
    ("no second derivatives", with_arrays(lambda a: a.pop("curvature.h")), "lacks array 'curvature.h'"),
    ("no prefixes of curvatures", with_arrays(lambda a: a.pop("curvature.prefixes")), "'curvature.prefixes'"),
    ("second derivatives unpacked", with_arrays(lambda a: a.update({"curvature.h": np.eye(4)[None]})), "'curvature.h'"),
    ("NaN in the second derivatives", with_arrays(set_nan("curvature.h")), "'curvature.h'"),
    ("infinity on the right", with_arrays(lambda a: a.update({"curvature.r": a["curvature.r"] / 0})), "'curvature.r'"),
    ("another curvature", with_arrays(lambda a: a.update({"curvature.r": a["curvature.r"] + 1e-9})), "changed after"),
    (
        "a curvature of no prefix",
        with_arrays(lambda a: a.update({"curvature.prefixes": np.array([3])})),
        "curvatures for prefixes that do not exist",
    ),
    (
        "a curvature of a negative prefix",
        with_arrays(lambda a: a.update({"curvature.prefixes": np.array([-1])})),
        "curvatures for prefixes that do not exist",
    ),
    (
        "curvatures of the same prefix",
        with_arrays(
            lambda a: a.update(
                {name: np.concatenate([a[name]] * 2) for name in ("curvature.prefixes", "curvature.h", "curvature.r")}
            )
        ),
        "curvatures for prefixes that do not exist",
    ),
    ("another family", with_manifest(lambda m: m.update(family="gaussian")), "unexpected array 'intercepts'"),
    ("a family that is none", with_manifest(lambda m: m.update(family="gamma")), "family"),
    ("a link of another family", with_manifest(lambda m: m.update(link="logit")), ""),
    ("a deviance that is text", with_manifest(lambda m: m["steps"][0].update(deviance="low")), "deviance"),
]


CASES = [
    *((f"least squares: {name}", handmade, damage, words) for name, damage, words in DAMAGES),
    *((f"counts: {name}", handmade_counts, damage, words) for name, damage, words in LIKELIHOOD_DAMAGES),
]


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(("make", "damage", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_damage_is_one_line_that_says_what_is_wrong(
    make: Callable[[], Model],
    damage: Callable[[bytes], bytes],
    words: str,
    refused: Callable[[bytes], str],
    tmp_path: Path,
) -> None:
    content = bytes_of(make(), tmp_path)
    damaged = damage(content)
    assert damaged != content
    assert words in refused(damaged)


INVALID: list[tuple[str, Callable[[], Model], str]] = [
    ("an indicator of a feature that does not exist", partial(with_moments, missing=((3, 4),)), "invalid counts"),
    ("an indicator of a feature counted from the end", partial(with_moments, missing=((-1, 0),)), "invalid counts"),
    ("no weight", partial(with_moments, weight=0.0), "invalid counts"),
    ("a negative weight", partial(with_moments, weight=-4.0), "invalid counts"),
    ("negative rows", partial(with_moments, rows=-1), "invalid counts"),
    ("one class of two", partial(stating, handmade(), task="binary", classes=("a",)), "1 responses and 1 classes"),
    (
        "two classes of many",
        partial(stating, handmade(), task="multiclass", classes=("a", "b")),
        "1 responses and 2 classes",
    ),
    ("no classes", partial(stating, handmade(), task="binary"), "1 responses and 0 classes"),
    ("classes of a number", partial(stating, handmade(), classes=("a", "b")), "1 responses and 2 classes"),
    (
        "a response for three",
        partial(stating, handmade(), task="multiclass", classes=tuple("abc")),
        "1 responses and 3 classes",
    ),
    ("a response for two targets", partial(stating, handmade(), target=("y", "z")), "1 responses and 0 classes"),
    (
        "counts by least squares",
        partial(stating, handmade(), task="count"),
        "family 'gaussian', which does not fit task 'count'",
    ),
    (
        "no counts",
        partial(stating, handmade_counts(), task="regression"),
        "family 'poisson', which does not fit task 'regression'",
    ),
]


@pytest.mark.parametrize(("model", "words"), [case[1:] for case in INVALID], ids=[case[0] for case in INVALID])
def test_counts_that_cannot_be_and_a_target_that_is_not_of_its_task_are_not_believed(
    model: Callable[[], Model], words: str, refused: Callable[[bytes], str], tmp_path: Path
) -> None:
    assert words in refused(bytes_of(model(), tmp_path))


def test_a_missing_file_and_a_directory_are_said_to_be_that(tmp_path: Path) -> None:
    assert_refused(lambda: load(tmp_path / "none.safetensors"), "no such file", error=ArtifactError)
    assert_refused(lambda: load(tmp_path), "is a directory", error=ArtifactError)


# Writing that fails


def test_a_number_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    model = handmade()
    spoilt = model.prefixes.packed.copy()
    spoilt[1] = np.nan
    assert_refused(
        lambda: replace(model, prefixes=replace(model.prefixes, packed=spoilt)).save(tmp_path / "m.safetensors"),
        "'coef' contains numbers that are not finite",
        error=ArtifactError,
    )
    assert_refused(
        lambda: with_moments(fill=np.full(3, np.inf)).save(tmp_path / "m.safetensors"),
        "'moments.fill' contains numbers that are not finite",
        error=ArtifactError,
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["replace", "fsync"])
def test_a_disk_that_fails_leaves_the_old_model_and_no_other_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.safetensors"
    handmade().save(path)
    before = path.read_bytes()
    monkeypatch.setattr(os, name, Mock(side_effect=OSError(28, "No space left on device")))
    assert_refused(
        lambda: trained().save(path), "cannot write ", "m.safetensors", "no space left", error=EnvironmentFailure
    )
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]
    assert path.read_bytes() == before


def test_an_interrupted_save_leaves_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        handmade().save(tmp_path / "m.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_said_to_be_that(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.safetensors").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for place in ("none/m.safetensors", "file/m.safetensors", "folder.safetensors"):
        assert_refused(partial(handmade().save, tmp_path / place), "cannot write", error=ArtifactError)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission_is_said_to_be_that(tmp_path: Path) -> None:
    (closed := tmp_path / "closed").mkdir(mode=0o500)
    assert_refused(lambda: handmade().save(closed / "m.safetensors"), "permission denied", error=ArtifactError)
    assert list(closed.iterdir()) == []


def test_saving_never_opens_up_what_other_threads_create(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    umask = Mock(wraps=os.umask)
    monkeypatch.setattr(os, "umask", umask)
    handmade().save(tmp_path / "m.safetensors")
    assert call(0) not in umask.mock_calls
