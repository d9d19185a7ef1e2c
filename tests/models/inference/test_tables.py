"""Tables are scored as open predictions are: the same answers whatever the type of the table and its gaps."""

from __future__ import annotations

import errno
import json
import math
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st
from scipy import sparse

from anytime import AnytimeClassifier, AnytimeRegressor, calibrate, load, open_table
from anytime.cli.main import main
from anytime.data.formats import writing
from anytime.errors import AnytimeError, ArtifactError, GroupsError, TableError, ValuesError
from anytime.inference import tables
from anytime.loaded import LoadedModel
from anytime.model.export import document
from anytime.types import Policy
from models.commands import Capture, ran, refusal
from models.exporting import Event, asked, compiled, read
from models.opening import opened, outputs_of
from models.properties import quick
from models.refusals import assert_refused
from models.table_types import TYPES

GROUPS: dict[str, Any] = {
    "groups": [
        {"name": "desk", "features": ["age", "city"], "cost": 1.0},
        {"name": "visit", "features": [], "cost": 0.5},
        {"name": "lab", "features": ["iron", "zinc", "free"], "cost": 2.0, "requires": ["visit"]},
        {"name": "scan", "features": ["dose"], "cost": 4.0},
    ]
}
POLICIES: tuple[Policy, ...] = ("prefix", "best", "arrived")
FAMILIES = ("gaussian", "responses", "poisson", "binomial", "multinomial")


def rows(count: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(count, 4)), columns=["age", "iron", "zinc", "dose"])
    frame["city"] = rng.choice(["Oslo", "Rome", "Lima"], count)
    frame["free"] = rng.random(count) < 0.5
    for name in ("age", "iron", "city"):
        frame.loc[rng.random(count) < 0.1, name] = None
    return frame


@cache
def trained(family: str) -> Any:
    frame = rows(200)
    rng = np.random.default_rng(1)
    signal = frame["age"].fillna(0.3) + frame["dose"] + (frame["city"] == "Oslo") + rng.normal(size=200) / 2
    match family:
        case "responses":
            Y: Any = np.column_stack([signal, frame["zinc"] - signal])
        case "poisson":
            Y = rng.poisson(np.exp(signal / 3))
        case "binomial":
            Y = np.where(signal > 0, "yes", "no")
        case "multinomial":
            Y = np.digitize(signal, [-1, 1])
        case _:
            Y = signal
    made: Any = AnytimeClassifier if family.endswith("nomial") else AnytimeRegressor
    pairs = 2 if family in ("gaussian", "binomial") else None
    options = {} if family == "responses" else {"family": family}
    return made(GROUPS, basis="hinge:2", alpha="cv", cv=3, pairs=pairs, **options).fit(frame, Y)


@pytest.fixture(scope="module", params=FAMILIES)
def estimator(request: pytest.FixtureRequest) -> Any:
    return trained(request.param)


@quick(40)
@given(
    data=st.data(),
    kind=st.sampled_from(sorted(TYPES)),
    budget=st.sampled_from([None, 0.0, 1.0, 2.0, 3.5, 5.0, 7.5, 100.0]),
    lost=st.sets(st.sampled_from(["age", "city", "iron", "zinc", "free", "dose"]), max_size=4),
)
def test_every_door_gives_the_answer_of_an_open_prediction(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: str, budget: float | None, lost: set[str]
) -> None:
    family = data.draw(st.sampled_from(FAMILIES))
    estimator = trained(family)
    folder = tmp_path_factory.mktemp("doors")
    estimator.save(folder / "m.safetensors")
    model = load(folder / "m.safetensors")
    frame = rows(9, seed=data.draw(st.integers(0, 9)))
    given_frame = frame.drop(columns=list(lost))
    gaps = frame.assign(**dict.fromkeys(lost)).astype(object)
    present = {name: place for name, place in model.places.items() if not lost.issuperset(place.features)}
    received = opened(model, {name: gaps[list(place.features)] for name, place in present.items()}, len(frame))
    policy = data.draw(st.sampled_from(POLICIES))
    expected = received.answer(budget, policy)
    table = TYPES[kind](given_frame, folder)
    if lost >= {"age", "city"} and budget != 0 and (policy != "arrived" or not model.supports_arrived):
        assert expected.prefix == 0
        assert_refused(lambda: model.answer(table, budget=budget, policy=policy), "every column of the first step")
        return
    answer = model.answer(table, budget=budget, policy=policy)
    np.testing.assert_allclose(outputs_of(answer), outputs_of(expected), rtol=1e-9, atol=1e-9)
    assert (answer.groups, answer.missing) == (expected.groups, expected.missing)
    assert (answer.prefix, answer.cost, answer.policy) == (expected.prefix, expected.cost, expected.policy)
    assert set(answer.imputed) >= lost & {c for g in answer.groups for c in model.places[g].features}
    assert set(answer.imputed) == set(expected.imputed)
    if policy != "arrived":
        _, ask, exported = _exported(family)
        answered: list[tuple[int, list[float]]] = []
        for cells in frame.astype(object).where(frame.notna(), None).to_dict("records"):
            events = [
                Event(name, tuple(None if column in lost else cells[column] for column in place.features))
                for name, place in present.items()
            ]
            events.append(Event(budget=math.inf if budget is None else budget, policy=policy))
            answered += [*read(exported, events), *asked(model, ask, events)]
        assert {prefix for prefix, _ in answered} == {answer.prefix}
        wanted = np.repeat(outputs_of(answer).reshape(len(frame), -1), 2, axis=0)
        np.testing.assert_allclose([outputs for _, outputs in answered], wanted, rtol=1e-9, atol=1e-9)
    if policy != "arrived" and not lost & {
        c for g in model.computed[model.affordable(budget, policy)] for c in model.places[g].features
    }:
        for each in (estimator, type(estimator).load(folder / "m.safetensors")):
            outputs = each.predict if model.manifest.classes is None else each.predict_proba
            np.testing.assert_allclose(
                outputs(given_frame, budget=budget, policy=policy), outputs_of(answer), rtol=1e-9, atol=1e-9
            )


@cache
def _exported(family: str) -> tuple[tempfile.TemporaryDirectory[str], Path, dict[str, Any]]:
    """A program in C with a model in it, and its document; the folder stays while the program is in use."""
    folder, model = tempfile.TemporaryDirectory(), trained(family).model_
    named = replace(model, manifest=model.manifest.model_copy(update={"name": "m"}))
    return folder, compiled(named, Path(folder.name), "ask.c"), json.loads(json.dumps(document(model), allow_nan=False))


FORMATS = [f"{each}_{of}" for each in ("csr", "csc", "lil", "coo", "dok", "bsr", "dia") for of in ("array", "matrix")]


@pytest.mark.parametrize(
    "matrix", [np.asarray, lambda X: pd.DataFrame(X.tolist()), *(getattr(sparse, each) for each in FORMATS)]
)
def test_arrays_and_sparse_matrices_are_tables(matrix: Callable[[Any], Any]) -> None:
    X = sparse.random_array((60, 8), density=0.4, rng=np.random.default_rng(0)).toarray()
    fitted = AnytimeRegressor(alpha=1e-3).fit(X, X @ np.arange(8.0))
    for budget in (0, 3, 8):
        np.testing.assert_allclose(fitted.model_.predict(matrix(X), budget=budget), fitted.predict(X, budget=budget))


def test_batches_give_the_answer_of_the_whole(estimator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    frame, model = rows(50, seed=3), estimator.model_
    whole = model.answer(frame, explain=True)
    monkeypatch.setattr(tables, "ROWS", 7)
    parts = list(model.answers(frame, explain=True))
    assert [len(part) for part in parts] == [7] * 7 + [1]
    joined = tables.joined(parts)
    np.testing.assert_array_equal(joined.scores, whole.scores)
    assert joined.imputed == whole.imputed
    assert joined.contributions is not None
    assert whole.contributions is not None
    total = joined.contributions.intercept + sum(joined.contributions.groups.values())
    np.testing.assert_allclose(total, whole.scores[:, 0] if whole.scores.shape[1] == 1 else whole.scores)
    for name, values in whole.contributions.features.items():
        np.testing.assert_allclose(joined.contributions.features[name], values)


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_intervals_of_a_table_are_those_of_answers(family: str, tmp_path: Path) -> None:
    frame = rows(120, seed=8).assign(y=trained(family).predict(rows(120, seed=9)))
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "c.parquet")
    sure = LoadedModel.of(calibrate(trained(family).model_, open_table(tmp_path / "c.parquet")))
    cells = frame.astype(object).where(frame.notna(), None)
    answer, expected = sure.answer(frame), opened(sure, dict.fromkeys(sure.places, cells), len(frame)).answer()
    if family == "gaussian":
        np.testing.assert_allclose(np.asarray(answer.interval, float), np.array(expected.interval))
    else:
        classes, members = np.array(sure.manifest.classes), np.asarray(answer.prediction_set)
        assert [classes[row].tolist() for row in members] == expected.prediction_set


REFUSED: list[tuple[Any, dict[str, Any], type[AnytimeError], str]] = [
    (lambda: rows(3), {"budget": -1}, ValuesError, "budget is -1; expected a number of units"),
    (lambda: rows(3), {"prefix": 9}, ValuesError, "prefix is 9; expected a number of steps, 0 to 3"),
    (lambda: rows(3), {"prefix": 1, "budget": 2}, ValuesError, "budget is 2 and prefix is 1; expected one of them"),
    (lambda: rows(3), {"policy": "last"}, ValuesError, "policy is 'last'; expected one of prefix, best, arrived"),
    (lambda: rows(3)[["dose"]], {}, TableError, "the table lacks 'age', 'city', every column of the first step"),
    (lambda: pd.DataFrame({"z": [1]}), {}, TableError, "the table lacks 'age', 'city', every column of the first step"),
    (lambda: rows(3).assign(age=["x", "y", "z"]), {}, TableError, "column 'age' holds text, as 'x' in row 0"),
    (lambda: rows(3).assign(dose=np.inf), {}, TableError, "column 'dose' holds 3 infinite values, the first in row 0"),
    (lambda: 5, {}, TableError, "has shape (); expected (rows, columns)"),
    (lambda: [[1.0], [1.0, 2.0]], {}, TableError, "a list of rows of different lengths"),
    (lambda: np.zeros((2, 3)), {}, GroupsError, "X has 3 columns without names and the groups have 6 features"),
    (lambda: "nowhere.csv", {}, TableError, "there is no file 'nowhere.csv'"),
]


@pytest.mark.parametrize(("table", "options", "kind", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_what_is_not_a_table_or_an_option_is_refused(
    table: Callable[[], Any], options: dict[str, Any], kind: type[AnytimeError], message: str
) -> None:
    assert_refused(lambda: trained("gaussian").model_.predict(table(), **options), message, error=kind)


def test_a_loaded_estimator_is_fitted_and_saves_the_same_model(estimator: Any, tmp_path: Path) -> None:
    estimator.save(tmp_path / "m.safetensors")
    restored = type(estimator).load(tmp_path / "m.safetensors")
    assert restored.sequence_ == estimator.sequence_
    for name in ("coef_", "intercept_", "costs_", "alphas_"):
        np.testing.assert_allclose(getattr(restored, name), getattr(estimator, name))
    np.testing.assert_allclose(restored.curve_.explained_variance, estimator.curve_.explained_variance)
    assert list(restored.get_feature_names_out()) == list(load(tmp_path / "m.safetensors").terms.features)
    assert restored.save(tmp_path / "again.safetensors", name="m").version == load(tmp_path / "m.safetensors").version
    other: Any = AnytimeRegressor if isinstance(estimator, AnytimeClassifier) else AnytimeClassifier
    assert_refused(lambda: other.load(tmp_path / "m.safetensors"), "load it by Anytime", error=ArtifactError)


# The command


@pytest.fixture
def desk(desk: Path) -> Path:
    frame = rows(30, seed=4)
    frame.insert(0, "id", range(100, 130))
    frame["note"] = 'a "b", c'
    frame["day"] = pd.Timestamp("2026-01-02")
    frame.to_csv("t.csv", index=False)
    frame.to_parquet("t.parquet", index=False)
    trained("gaussian").save("m.safetensors")
    trained("multinomial").save("classes.safetensors")
    return desk


@pytest.mark.parametrize("source", ["t.csv", "t.parquet"])
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet", ".arrow"])
def test_predictions_are_written_with_the_kept_columns(desk: Path, source: str, suffix: str) -> None:
    out = f"p{suffix}"
    words = ["predict", "m.safetensors", source, "--budget", "5", "--explain", "--out", out]
    assert main([*words, "--keep", "id", "--keep", "note", "--keep", "day"]) == 0
    frame = {".parquet": pd.read_parquet, ".arrow": pd.read_feather}.get(suffix, pd.read_csv)(out)
    assert frame["id"].tolist() == list(range(100, 130))
    assert set(frame["note"]) == {'a "b", c'}
    assert frame["day"].astype(str).str.startswith("2026-01-02").all()
    expected = load("m.safetensors").predict("t.csv", budget=5)
    np.testing.assert_allclose(frame["prediction"], expected)
    parts = frame.filter(like="contribution_")
    assert list(parts) == ["contribution_desk", "contribution_scan"]
    np.testing.assert_allclose(frame["base"] + parts.sum(axis=1), expected)
    assert sorted(each.name for each in desk.iterdir() if each.name.endswith(".tmp")) == []


def test_probabilities_have_a_column_for_each_class(desk: Path) -> None:
    assert main(["predict", "classes.safetensors", "t.csv", "--proba", "--out", "p.csv"]) == 0
    frame, model = pd.read_csv("p.csv"), load("classes.safetensors")
    names = [f"probability_{label}" for label in model.manifest.classes or ()]
    np.testing.assert_allclose(frame[names], model.predict_proba("t.csv"))
    np.testing.assert_array_equal(frame["prediction"], model.predict("t.csv"))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_frame_of_an_answer_has_the_columns_that_the_command_writes(family: str, desk: Path) -> None:
    trained(family).save("own.safetensors")
    model = load("own.safetensors")
    options = ["--proba"] if model.manifest.classes else []
    assert main(["predict", "own.safetensors", "t.parquet", "--explain", *options, "--out", "p.parquet"]) == 0
    frame = model.answer("t.parquet", explain=True).to_frame()
    pd.testing.assert_frame_equal(pd.read_parquet("p.parquet"), frame, check_dtype=False)
    names = [name for name in frame if name.startswith("probability")]
    assert names == [f"probability_{label}" for label in model.manifest.classes or ()]


@pytest.mark.usefixtures("desk")
def test_contributions_to_one_of_two_classes_say_which(capsys: Capture) -> None:
    trained("binomial").save("own.safetensors")
    said = ran(capsys, "predict", "own.safetensors", "t.csv", "--explain", "--out", "p.csv").err
    assert "contributions add to the score of 'yes'" in said


@pytest.mark.usefixtures("desk")
def test_what_the_table_lacks_is_reported(capsys: Capture) -> None:
    pd.read_csv("t.csv")[["age", "iron"]].to_csv("few.csv", index=False)
    call = ["predict", "m.safetensors", "few.csv", "--out", "p.csv"]
    said = ran(capsys, *call, "--policy", "arrived").err
    assert "missing: 'scan' (the table has none of their columns)" in said
    assert "imputed: 'city', 'zinc', 'free' (the table lacks these columns)" in said
    said = ran(capsys, *call, "--budget", "0.5").err
    assert "every row has the base rate: no group is used; the first step costs 1 unit" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--proba"], "--proba requires a model of classes; the task of 'm' is regression"),
        (["--interval"], "--interval requires a calibrated model; train 'm' with --calibrate TABLE"),
        (["--keep", "idd"], "t.csv has no column 'idd'; did you mean 'id'?"),
        (["--prefix", "4"], "prefix is 4; expected a number of steps, 0 to 3"),
        (["--out", "p.txt"], "cannot write 'p.txt'"),
        (["--out", "t.csv"], "--out is 't.csv', the table itself"),
        (["--policy", "last"], "Invalid value for '--policy': 'last' is not one of 'prefix', 'best', 'arrived'"),
    ],
)
def test_a_wrong_call_writes_nothing(desk: Path, capsys: Capture, words: list[str], message: str) -> None:
    before = sorted(desk.iterdir())
    assert message in refusal(capsys, "predict", "m.safetensors", "t.csv", "--out", "p.csv", *words)
    assert sorted(desk.iterdir()) == before


def test_an_error_in_a_later_batch_leaves_the_old_file(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pd.read_csv("t.csv")
    frame["dose"] = frame["dose"].astype(object)
    frame.loc[25, "dose"] = "many"
    frame.to_csv("bad.csv", index=False)
    Path("p.csv").write_text("old")
    monkeypatch.setattr(tables, "ROWS", 10)
    assert main(["predict", "m.safetensors", "bad.csv", "--out", "p.csv"]) == 2
    assert Path("p.csv").read_text() == "old"
    assert not list(desk.glob(".*.tmp"))


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", pytest.param("SIGHUP", marks=pytest.mark.heavy)])
def test_a_signal_leaves_the_old_file_and_no_part_of_a_new_one(desk: Path, name: str) -> None:
    number = getattr(signal, name)
    Path("p.csv").write_text("old")
    code = f"""
import os, signal, sys
from pathlib import Path
from anytime.cli import main
from anytime.inference.tables import TableScorer
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a shell may have run the tests by nohup
def ended(self, *batch):
    assert len(list(Path().glob(".p.csv.*.tmp"))) == 1
    os.kill(os.getpid(), {int(number)})
TableScorer._answer = ended
sys.exit(main(["predict", "m.safetensors", "t.csv", "--out", "p.csv"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == ((130, "error: stopped\n") if name == "SIGINT" else (-number, ""))
    assert Path("p.csv").read_text() == "old"
    assert not list(desk.glob(".*.tmp"))


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet", ".arrow"])
def test_a_full_disk_and_a_name_that_is_not_writable_are_one_line(
    desk: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    full = OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device")
    with monkeypatch.context() as patched:
        patched.setattr(writing, "_writer", Mock(side_effect=full))
        assert main(["predict", "m.safetensors", "t.csv", "--out", f"p{suffix}"]) == 1
    assert capsys.readouterr().err == f"error: cannot write 'p{suffix}': no space left on device\n"
    assert not list(desk.glob("*p.*"))
    if Path("/proc").is_dir():
        assert main(["predict", "m.safetensors", "t.csv", "--out", f"/proc/p{suffix}"]) != 0
        assert re.fullmatch(rf"error: cannot write '/proc/p{suffix}': [a-z ]+\n", capsys.readouterr().err)


@pytest.mark.usefixtures("desk")
def test_predictions_are_not_written_into_the_folder_that_is_the_table(capsys: Capture) -> None:
    Path("parts").mkdir()
    Path("t.parquet").rename("parts/t.parquet")
    said = refusal(capsys, "predict", "m.safetensors", "parts", "--out", "parts/p.parquet")
    assert "--out is 'parts/p.parquet', in the folder that is the table; name another file" in said
    assert [each.name for each in Path("parts").iterdir()] == ["t.parquet"]


@pytest.mark.usefixtures("desk")
def test_the_same_name_is_not_written_twice(capsys: Capture) -> None:
    pd.read_csv("t.csv").assign(prediction=1).to_csv("own.csv", index=False)
    said = refusal(capsys, "predict", "m.safetensors", "own.csv", "--keep", "prediction", "--out", "p.csv")
    assert "--keep prediction: a column of the predictions has this name" in said


def test_a_model_without_moments_answers_by_prefix_and_says_so() -> None:
    model = LoadedModel.of(replace(trained("gaussian").model_, moments=None))
    answer = model.answer(rows(4), policy="arrived")
    assert answer.policy == "prefix"
    assert "without its moments" in (answer.note or "")
    assert_refused(
        lambda: model.answer(rows(4)[["dose"]], policy="arrived"),
        "every column of the first step of model 'model'; the model was saved without",
    )
