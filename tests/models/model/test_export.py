"""`anytime export`: the C and the JSON of a model answer as the model does, for any groups in any order."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anytime import AnytimeClassifier, AnytimeRegressor, Model
from anytime.errors import ArtifactError
from anytime.features.bases import BASES
from anytime.features.expansion import Expansion
from anytime.features.learning import Sample, learned_groups
from anytime.groups import FeatureGroups, Pair, PairSide, load_groups
from anytime.inference.prediction import Answer, Prediction
from anytime.model.export import c_source, document
from anytime.moments.accumulate import fold_moments_of
from anytime.target import Target
from anytime.training.fit import fit, provenance
from anytime.training.options import Options
from anytime.training.resequencing import Changes, resequence
from anytime.types import Float, Policy
from models.commands import Capture, output, ran, refusal
from models.exporting import SOURCES, STRICT, Event, asked, compiled, printed, read
from models.opening import opened, outputs_of
from system import program

pytestmark = pytest.mark.usefixtures("linear_by_default")

POLICIES: tuple[Policy, ...] = ("prefix", "best")
WIDTHS = {"hog": 3, "lidar": 2, "speed": 1, "map": 4}
GROUPS: dict[str, Any] = {
    "cost_unit": "ms",
    "groups": [
        {"name": "hog", "features": ["h0", "h1", "h2"], "cost": 4.0},
        {"name": "visit", "features": [], "cost": 1.0},
        {"name": "lidar", "features": ["l0", "l1"], "cost": 0.5, "requires": ["visit"]},
        {"name": "speed", "features": ["s0"], "cost": 2.0},
        {"name": "map", "features": ["m0", "m1", "m2", "m3"], "cost": 3.0},
    ],
}
TASKS = ("regression", "hinges", "levels", "responses", "binary", "multiclass", "logit", "softmax", "log")


def table(rows: int = 150) -> Float:
    """Features far from 0, so that means and deviations matter."""
    return np.random.default_rng(0).normal(size=(rows, 10)) * np.geomspace(0.1, 100, 10) + 5.0


def trained(task: str, groups: dict[str, Any] | None = None, name: str = "m") -> Model:
    """A model for each rule that maps scores to outputs."""
    X = table()
    rng = np.random.default_rng(1)
    signal = (X - X.mean(axis=0)) / X.std(axis=0) @ rng.normal(size=(10, 3)) + rng.normal(size=(len(X), 3))
    whole = np.where(np.arange(10) == 3, rng.integers(0, 12, (len(X), 1)), X)  # a column of codes
    classes = np.digitize(signal[:, 0], [-2.0, 2.0])
    up, counts = signal[:, 0] > 0, rng.poisson(np.exp(signal[:, 0] / 4))
    made: Any = (
        AnytimeRegressor if task in ("regression", "hinges", "levels", "responses", "log") else AnytimeClassifier
    )
    family, Y = {
        "regression": ("gaussian", signal[:, 0]),
        "hinges": ("gaussian", signal[:, 0]),
        "levels": ("gaussian", signal[:, 0] + 3.0 * np.isin(whole[:, 3], [2.0, 5.0, 9.0]) + X[:, 5] * X[:, 7]),
        "responses": ("gaussian", signal),
        "binary": ("gaussian", up),
        "multiclass": ("gaussian", classes),
        "logit": ("binomial", up),
        "softmax": ("multinomial", classes),
        "log": ("poisson", counts),
    }[task]
    shape = {"hinges": {"basis": "hinge", "pairs": 3}, "levels": {"basis": "auto", "pairs": 1, "cv": 3}}.get(task, {})
    X = whole if task == "levels" else X
    model: Model = (
        made(groups=load_groups(groups or GROUPS), family=family, alpha=1e-3, **shape)
        .fit(X if groups is None else pd.DataFrame(X, columns=[*load_groups(groups).features]), Y)
        .model_
    )
    best = [min(k, 1) if k < model.steps else k for k in range(1, model.steps + 1)]
    steps = tuple(s.model_copy(update={"best": k}) for s, k in zip(model.manifest.steps, best, strict=True))
    return replace(model, manifest=model.manifest.model_copy(update={"name": name, "steps": steps}))


@pytest.fixture(params=TASKS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Model:
    return trained(request.param).save(tmp_path / "m.safetensors")


@pytest.fixture
def regression(tmp_path: Path) -> Model:
    return trained("regression").save(tmp_path / "m.safetensors")


def lives(seed: int) -> Iterator[list[Event]]:
    """Predictions from begin to end: groups in any order, some twice, some values missing, requests between them."""
    rng = np.random.default_rng(seed)
    for _ in range(20):
        events = [Event()]
        names = [str(name) for name in rng.permutation(list(WIDTHS))]
        for name in [*names, *rng.choice(names, 1)]:
            values = 5.0 + rng.normal(size=WIDTHS[name]) * rng.choice([0.1, 1.0, 100.0])
            values[rng.random(len(values)) < 0.15] = math.nan
            budgets = rng.choice([0.0, 0.7, 1.5, 3.5, 6.5, 10.5, math.inf], 2)
            events += [
                Event(name, tuple(values.tolist())),
                *(Event(budget=float(b), policy=p) for b in budgets for p in POLICIES),
            ]
        yield events


def answered(model: Model, events: Iterable[Event]) -> list[Answer]:
    """Answers of the library to the requests among some events."""
    now, answers = Prediction(model), []
    for event in events:
        if event.group:
            now.add(event.group, event.values)
        else:
            answers.append(now.answer(event.budget, event.policy))
    return answers


def check_alike(found: Iterable[tuple[int, list[float]]], expected: Iterable[Answer], close: float = 1e-9) -> None:
    """Check that answers of a program have the prefixes and outputs of the library's."""
    for (prefix, outputs), answer in zip(found, expected, strict=True):
        assert prefix == answer.prefix
        np.testing.assert_allclose(outputs, outputs_of(answer), rtol=close, atol=close)


@pytest.mark.parametrize(("real", "close"), [("double", 1e-12), ("float", 2e-4)])
def test_the_c_of_a_model_answers_as_the_model_does(model: Model, tmp_path: Path, real: str, close: float) -> None:
    ask = compiled(model, tmp_path, "ask.c", f"-DANYTIME_REAL={real}")
    for events in lives(3):
        check_alike(asked(model, ask, events), answered(model, events), close)


def test_the_document_of_a_model_says_all_that_answers_take(model: Model) -> None:
    exported = json.loads(json.dumps(document(model), allow_nan=False))
    for events in lives(4):
        check_alike(read(exported, events), answered(model, events))


def test_the_document_tells_groups_in_the_order_of_the_sequence_and_of_lines_one_mean_per_feature(
    regression: Model,
) -> None:
    model, exported = regression, document(regression)
    assert [group["name"] for group in exported["groups"]] == [n for s in model.manifest.steps for n in s.adds]
    assert exported["version"] == model.version
    for group in exported["groups"]:
        names = [feature["name"] for feature in exported["features"][group["start"] : group["stop"]]]
        assert names == list(model.groups.groups[model.groups.position(group["name"])].features)
    means = dict(zip(model.groups.features, model.prefixes.mean.tolist(), strict=True))
    assert {feature["name"]: feature["mean"] for feature in exported["features"]} == means
    assert {tuple(feature) for feature in exported["features"]} == {("name", "mean")}


def random_pairs(groups: FeatureGroups, rng: np.random.Generator) -> list[Pair]:
    """Pairs of columns in one group and in several, with random factors."""

    def side(column: str) -> PairSide:
        levels = groups.bases[column].levels if groups.bases[column].basis == "categories" else None
        if levels is None:
            return PairSide(column=column, knots=tuple(np.sort(rng.normal(0.0, 3.0, rng.integers(2, 5))).tolist()))
        return PairSide(column=column, levels=levels[: rng.integers(1, len(levels) + 1)])

    pairs = [rng.choice(groups.features, 2, replace=False).tolist() for _ in range(6)]
    return [(side(a), side(b)) for a, b in pairs]


def mixed(seed: int) -> tuple[Model, dict[str, list[Any]]]:
    """A model whose columns have every basis, in random groups, and values of each column, some of them wild."""
    rng = np.random.default_rng(seed)
    rows = 300
    cities = np.array(["Oslo", "São Paulo", 'a "b" \\', "rare", "rarer"], dtype=object)
    raw: dict[str, Any] = {
        "plain": rng.normal(5.0, 2.0, rows),
        "bounded": rng.normal(size=rows),
        "fare": rng.lognormal(size=rows) * (rng.random(rows) < 0.6),
        "bent": rng.uniform(-3.0, 3.0, rows),
        "powers": rng.normal(50.0, 9.0, rows),
        "port": rng.choice(cities, rows, p=[0.5, 0.3, 0.16, 0.02, 0.02]),
        "deck": rng.choice(cities[:3], rows),
        "floor": rng.integers(1, 4, rows),
        "sunny": rng.random(rows) < 0.3,
        "angle": rng.uniform(-400.0, 400.0, rows),
        "when": rng.uniform(-6e10, 2.5e11, rows),
        "day": 86_400.0 * rng.integers(0, 20_000, rows),
    }
    bases: dict[str, Any] = {
        "bounded": {"basis": "linear", "range": [-1.0, 1.5]},
        "fare": {"basis": f"hinge:{rng.integers(5)}", "range": [0.0, 4.0]},
        "bent": {"basis": "hinge", "knots": [-1.0, 0.5, 2.0], "levels": [0.0, 7.0], "range": None},
        "powers": {"basis": f"poly:{rng.integers(1, 5)}"},
        "deck": {"basis": "categories", "levels": ["Oslo", 'a "b" \\'], "other": False},
        "floor": {"basis": "categories"},
        "sunny": {"basis": str(rng.choice(["categories", "linear"]))},
        "angle": {"basis": "cyclic:360"},
    }
    for name, values in raw.items():
        if name not in ("floor", "sunny") and rng.random() < 0.7:
            values[rng.random(rows) < 0.1] = None if values.dtype == object else math.nan
        bases.setdefault(name, {})["missing"] = bool(rng.random() < 0.5)
    names = rng.permutation(list(raw)).tolist()
    cuts = [0, *sorted(rng.choice(np.arange(1, len(names)), 3, replace=False).tolist()), len(names)]
    parts = [{"name": f"g{i}", "features": names[a:b], "cost": 1.0 + i} for i, (a, b) in enumerate(pairwise(cuts))]
    parts[2]["requires"] = ["visit"]
    types = {"when": "date", "day": "date"}
    given = {"groups": [*parts, {"name": "visit", "features": [], "cost": 0.5}], "bases": bases, "types": types}
    groups = learned_groups(load_groups(given), Sample(raw))
    if seed % 2:
        groups = groups.with_pairs(random_pairs(groups, rng))
    expansion = Expansion.of(groups)
    assert {column.basis.name for column in expansion.columns} == set(BASES) - {"auto"}
    columns = dict(zip(groups.features, expansion.columns, strict=True))
    X = np.column_stack([raw[name] if c.levels is None else c.levels.coded(raw[name]) for name, c in columns.items()])
    Y = rng.normal(size=(rows, 2)) + np.nan_to_num(X)[:, :2] + np.nan_to_num(X[:, 2:4] * X[:, 4:5])
    fitted = fit(fold_moments_of(X, Y, expansion=expansion.plain), groups, Options(alpha=1e-3))
    model = fitted.model("m", Target("regression", ("a", "b")), provenance(fitted, "memory"))
    wild = [-1e6, 1e6, -1.0, 0.0, 0.5, 7.0, math.nan]
    extra: dict[str, list[Any]] = {
        "port": ["Atlantis", None],
        "deck": ["Atlantis", None],
        "floor": [9, -1, None],
        "sunny": [None],
    }
    return model, {n: [*raw[n].tolist()[:20], *extra.get(n, wild)] for n in raw}


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.heavy) for seed in range(5, 10))])
def test_every_basis_answers_alike_in_c_and_from_the_document(tmp_path: Path, seed: int) -> None:
    model, choices = mixed(seed)
    model = model.save(tmp_path / "m.safetensors")
    exported = json.loads(json.dumps(document(model), allow_nan=False))
    ask, rng = compiled(model, tmp_path, "ask.c"), np.random.default_rng(seed)
    names = list(model.places)

    for _ in range(5):
        events = []
        for group in [*rng.permutation(names).tolist(), *rng.choice(names, 2).tolist()]:
            values = tuple(choices[n][rng.integers(len(choices[n]))] for n in model.places[group].features)
            events += [Event(group, values), *(Event(budget=budget) for budget in [*model.costs.tolist(), math.inf])]
        expected = answered(model, events)
        assert {answer.prefix for answer in expected} == set(range(model.steps + 1))
        for found in (asked(model, ask, events), read(exported, events)):
            check_alike(found, expected)


def test_c_refuses_an_index_that_no_level_has(tmp_path: Path) -> None:
    model, _ = mixed(0)
    ask = compiled(model.save(tmp_path / "m.safetensors"), tmp_path, "ask.c", "-DANYTIME_REAL=float")
    ((group, j, levels),) = [
        (number, place.features.index("deck"), place.expansion.categories[place.features.index("deck")].labels)
        for number, place in enumerate(model.places.values())
        if "deck" in place.features
    ]
    start = f"add {group} {'nan ' * j}"
    assert printed(ask, [f"{start}{code}" for code in ("-1", "0", "1", "nan", "2", "-2", "0.5")])[:7] == (
        ["0"] * 4 + ["-1"] * 3
    )
    assert printed(ask, [f"level {group} {j} {level}" for level in (*levels, "oslo")]) == ["0", "1", "-1"]
    assert printed(ask, [f"level {group} 99 Oslo", "level 99 0 Oslo"]) == ["-1", "-1"]


def test_what_c_cannot_use_is_refused_and_changes_nothing(regression: Model, tmp_path: Path) -> None:
    ask = compiled(regression, tmp_path, "ask.c")
    base = printed(ask, ["answer inf"])[0]
    assert printed(ask, ["add 0 inf inf inf inf", "answer inf", "add 99 1", "answer inf"]) == ["-1", base, "-1", base]
    for budget in ("-1", "nan"):
        assert (
            printed(ask, [f"add {group} 1 1 1 1" for group in range(4)] + [f"answer {budget}"])[4] == f"-1 {base[2:]}"
        )


@pytest.mark.parametrize(("task", "factor"), [("regression", 1.0), ("binary", 1e38), ("multiclass", 1e38)])
def test_scores_that_are_not_finite_tell_the_base_rate(task: str, factor: float, tmp_path: Path) -> None:
    whole = trained(task)
    model = replace(whole, prefixes=replace(whole.prefixes, packed=whole.prefixes.packed * factor))
    ask = compiled(model.save(tmp_path / "m.safetensors"), tmp_path, "ask.c", "-DANYTIME_REAL=float", "-Wno-overflow")
    base = printed(ask, ["answer inf"])[0]
    huge = [f"add {group} 3e38 -3e38 3e38 -3e38" for group in range(4)]
    assert printed(ask, [*huge, "answer inf"]) == ["0"] * 4 + [f"-1 {base[2:]}"]


def test_counts_end_where_those_of_the_model_do(tmp_path: Path) -> None:
    model = trained("log").save(tmp_path / "m.safetensors")
    ask = compiled(model, tmp_path, "ask.c")
    signs = {name: np.sign(model.prefixes.coef(model.steps)[p.start : p.stop, 0]) for name, p in model.places.items()}
    events = [*(Event(name, tuple((1e9 * sign).tolist())) for name, sign in signs.items()), Event()]
    check_alike(asked(model, ask, events), answered(model, events), 1e-12)


def named(names: list[str]) -> list[dict[str, Any]]:
    """Groups of these names, as wide as the others."""
    return [
        {"name": name, "features": [f"{name} {i}" for i in range(width)], "cost": 1.0}
        for name, width in zip(names, WIDTHS.values(), strict=True)
    ]


def test_names_of_any_kind_are_told_and_leave_the_code_alone(tmp_path: Path) -> None:
    groups = named(['*/ "quoted" \\', "naïve ??/", "a-b", "a b"])
    model = trained("regression", {"cost_unit": "$ ${name}", "groups": groups}).save(tmp_path / "m.safetensors")
    outputs = printed(compiled(model, tmp_path, "ask.c"), ["names"])
    assert outputs[:3] == ["m", model.version, "$ ${name}"]
    assert outputs[3:] == [*model.places, *model.manifest.responses]


def test_groups_of_one_name_in_c_keep_their_constants_when_resequenced() -> None:
    names = ["a-b", "a b", "速度", "a b 2"]
    model = trained("regression", {"groups": named(names)})
    for first in names:
        other = resequence(model, name="m", changes=Changes(first=(first,)))
        words = dict(zip(other.places, re.findall(r"ANYTIME_M_GROUP_(\w+),", c_source(other)), strict=True))
        assert words == {"a-b": "A_B", "a b": "A_B_2", "速度": "UNNAMED", "a b 2": "A_B_2_1"}
        assert next(iter(words)) == first


def test_a_model_without_a_letter_for_c_is_refused() -> None:
    with pytest.raises(ArtifactError, match="expected at least one letter"):
        c_source(trained("regression", name="模型"))


def built(folder: Path, compiler: str, *options: str) -> tuple[bool, str]:
    """Compile in a folder; return whether that succeeded, and the messages."""
    words = [program(compiler), *options, f"-I{folder}"]
    done = subprocess.run(words, cwd=folder, check=False, timeout=120, capture_output=True, text=True)
    return done.returncode == 0, done.stderr


PLUS = (str(SOURCES / "plus.cpp"), "m.o", "-o", "plus", "-lm")
WARNED = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")


@pytest.mark.parametrize(("other", "works"), [("n", True), ("m!", False)])
def test_two_models_in_one_program(tmp_path: Path, other: str, works: bool) -> None:
    for name, task in (("m", "regression"), (other, "softmax")):
        model = trained(task, name=name).save(tmp_path / f"{name}.safetensors")
        (tmp_path / f"{name}.h").write_text(c_source(model), encoding="utf-8")
    lines = ["#define ANYTIME_M_IMPLEMENTATION", "#define ANYTIME_N_IMPLEMENTATION", '#include "m.h"', '#include "m.h"']
    (tmp_path / "both.c").write_text("\n".join([*lines, f'#include "{other}.h"']) + "\n", encoding="utf-8")
    found, said = built(tmp_path, "cc", *STRICT, "-c", "both.c")
    assert found == works, said
    assert works or "two models with the same name in C" in said


def test_finite_math_is_refused(regression: Model, tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        compiled(regression, tmp_path, "ask.c", "-ffast-math")


def test_a_first_step_without_features_is_complete_from_the_start(regression: Model, tmp_path: Path) -> None:
    model = resequence(regression, name="m", changes=Changes(first=("visit",))).save(tmp_path / "m.safetensors")
    answers = [Prediction(model).answer(budget) for budget in (0.5, 1.0)]
    assert [(answer.prefix, answer.complete) for answer in answers] == [(0, True), (1, True)]
    outputs = printed(compiled(model, tmp_path, "ask.c"), ["answer 0.5", "answer 1.0"])
    assert [int(line.split()[0]) for line in outputs] == [0, 1]


def test_answers_are_whole_while_another_thread_adds(tmp_path: Path) -> None:
    model = trained("multiclass").save(tmp_path / "m.safetensors")
    answers = [int(line) for line in printed(compiled(model, tmp_path, "threads.c", "-pthread"), [])]
    assert len(answers) == model.steps + 1
    assert all(answers[1:])


def test_the_header_has_the_errors_of_the_prefixes_and_marks_unknown_ones(tmp_path: Path) -> None:
    assert set(printed(compiled(trained("regression"), tmp_path, "ask.c"), ["errors"])) == {"nan"}
    rng = np.random.default_rng(0)
    model = AnytimeRegressor(groups=load_groups(GROUPS), alpha="cv").fit(table(), rng.normal(size=150)).model_
    known = [model.expected(prefix).cv_error for prefix in range(model.steps + 1)]
    named = replace(model, manifest=model.manifest.model_copy(update={"name": "m"}))
    assert list(map(float, printed(compiled(named, tmp_path, "ask.c"), ["errors"]))) == known


def write_sources(model: Model, folder: Path, suffix: str = "c") -> None:
    """Write the header of a model, and a file with its definitions."""
    (folder / "m.h").write_text(c_source(model), encoding="utf-8")
    (folder / f"m.{suffix}").write_text('#define ANYTIME_M_IMPLEMENTATION\n#include "m.h"\n', encoding="utf-8")


def test_files_that_disagree_about_the_type_of_values_do_not_link(tmp_path: Path) -> None:
    write_sources(trained("regression"), tmp_path)
    for real in ("double", "float"):
        assert built(tmp_path, "cc", *STRICT, f"-DANYTIME_REAL={real}", "-c", "m.c") == (True, "")
        linked, said = built(tmp_path, "c++", *PLUS)
        assert linked == (real == "double"), said
    assert "undefined reference to `anytime_m_begin_double'" in said


def test_definitions_in_a_file_of_c_plus_plus_are_refused_with_a_reason(tmp_path: Path) -> None:
    write_sources(trained("regression"), tmp_path, "cpp")
    found, said = built(tmp_path, "c++", "-fsyntax-only", "m.cpp")
    assert not found
    assert "ANYTIME_M_IMPLEMENTATION needs a C11 file, not C++" in said


def test_programs_of_c_plus_plus_read_the_header(regression: Model, tmp_path: Path) -> None:
    write_sources(regression, tmp_path)
    assert built(tmp_path, "cc", "-std=c11", *WARNED, "-c", "m.c") == (True, "")
    assert built(tmp_path, "c++", *WARNED, *PLUS) == (True, "")
    prefix, score = printed(tmp_path / "plus", [])[0].split()
    values = {name: [1.0, 2.0, 3.0, 4.0][: len(place.features)] for name, place in regression.places.items()}
    assert int(prefix) == regression.steps
    assert float(score) == pytest.approx(opened(regression, values).answer().prediction, rel=1e-12)


def test_the_header_of_a_model_with_bases_is_also_c_plus_plus(tmp_path: Path) -> None:
    (tmp_path / "m.h").write_text(c_source(mixed(0)[0]), encoding="utf-8")
    assert built(tmp_path, "c++", *WARNED, "-fsyntax-only", PLUS[0]) == (True, "")


@pytest.mark.parametrize("to", ["json", "c"])
@pytest.mark.usefixtures("regression")
def test_the_command_prints_or_writes(tmp_path: Path, capsys: Capture, to: str) -> None:
    call, out = (
        ["export", str(tmp_path / "m.safetensors"), "--to", to],
        tmp_path / ("m.json" if to == "json" else "m.h"),
    )
    shown = output(capsys, *call)
    assert ran(capsys, *call, "--out", str(out)).err == f"wrote {out}\n"
    assert out.read_text(encoding="utf-8") == shown
    assert to != "json" or json.loads(shown)["model"] == "m"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--to", "c", "--out", "m.json"], "expected a name that ends in .h"),
        (["--to", "json", "--out", "nowhere/m.json"], "there is no directory"),
        (["--to", "rust"], "'rust'"),
        ([], "--to"),
    ],
)
@pytest.mark.usefixtures("regression", "desk")
def test_a_wrong_call_is_one_line(capsys: Capture, words: list[str], complaint: str) -> None:
    assert complaint in refusal(capsys, "export", "m.safetensors", *words)
