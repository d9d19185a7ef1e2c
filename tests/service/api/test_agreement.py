"""Every way to a prediction gives the same numbers: estimators, tables of each type, command, values in process, server
(JSON), and the exports in C and JSON."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from anytime import AnytimeClassifier, AnytimeRegressor, LoadedModel
from anytime.cli.main import main
from anytime.loaded import load
from anytime.model.export import document
from anytime.model.model import Model
from anytime.types import Float
from anytime_service.core.open_prediction import OpenPrediction
from anytime_service.errors import FieldError
from anytime_service.settings import Settings
from models.exporting import Event, added, compiled, printed, read
from service.inferring import JSON_BYTES, assert_refused, assert_reported, half_sent, infer, post, tensor
from service.serving import Running, columns_model, expected, run_service

SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.heavy) for seed in (4, 6, 7)), 5]
"""Those that are not heavy have every task, family and basis."""

CLOSE = 1e-9


def table(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    """Columns of every type with gaps, some common values and rare levels, and values far out."""
    frame = pd.DataFrame({
        "wide": rng.normal(0.0, 1e4, rows), "fare": rng.lognormal(size=rows) * (rng.random(rows) < 0.6),
        "count": rng.integers(0, 9, rows).astype(float), "city": rng.choice(["Oslo", "Lima", 'a "b",', "NA"], rows),
        "rainy": rng.random(rows) < 0.3,
        "day": pd.Timestamp("2023-05-01") + pd.to_timedelta(rng.integers(0, 900, rows), "D"),
        "flat": rng.normal(size=rows),
    })  # fmt: skip
    for name in ("wide", "fare", "city", "day"):
        frame.loc[rng.random(rows) < 0.1, name] = None
    return frame


def learned(seed: int) -> tuple[Any, pd.DataFrame]:
    """A fitted estimator of a random task, basis and grouping, and rows that it has not seen."""
    rng = np.random.default_rng(seed)
    frame = table(rng, 260)
    names = rng.permutation(frame.columns).tolist()
    cuts = [0, *sorted(rng.choice(np.arange(1, len(names)), 3, replace=False).tolist()), len(names)]
    groups = {f"g{i}": {"features": names[a:b], "cost": 1.0 + i} for i, (a, b) in enumerate(pairwise(cuts))}
    signal = np.nan_to_num(frame["wide"]) / 1e4 + frame["flat"] + 2.0 * (frame["city"] == "Oslo") + frame["rainy"]
    options: dict[str, Any] = {"basis": str(rng.choice(["linear", "hinge:3"])), "alpha": 1e-3}
    kind = seed % 4
    if kind == 0:
        return AnytimeRegressor(groups, **options).fit(frame[:200], signal[:200]), frame[200:]
    if kind == 1:
        family = str(rng.choice(["gaussian", "binomial"]))
        y = np.where(signal + rng.logistic(size=260) > 1, "yes", "no")
        return AnytimeClassifier(groups, family=family, **options).fit(frame[:200], y[:200]), frame[200:]
    if kind == 2:
        y = rng.poisson(np.exp(np.clip(signal, -2.0, 2.0) / 2.0))
        return AnytimeRegressor(groups, family="poisson", **options).fit(frame[:200], y[:200]), frame[200:]
    targets = pd.DataFrame({"a": signal, "b": -signal + rng.normal(size=260)})
    return AnytimeRegressor(groups, **options).fit(frame[:200], targets[:200]), frame[200:]


def outputs(answer: Any) -> Float:
    found = answer["probabilities"] if isinstance(answer, dict) else answer.probabilities
    if found is None:
        found = answer["prediction"] if isinstance(answer, dict) else answer.prediction
    return np.asarray(found, dtype=np.float64)


def wire(value: Any) -> Any:
    """A cell as JSON has it."""
    if value is None or value is pd.NaT or (isinstance(value, float) and np.isnan(value)):
        return None
    return value.isoformat() if isinstance(value, pd.Timestamp) else value


def raw(value: Any) -> Any:
    """A cell as the exports accept it: dates are seconds."""
    return None if wire(value) is None else value.timestamp() if isinstance(value, pd.Timestamp) else value


@pytest.mark.parametrize("seed", SEEDS)
def test_every_way_gives_the_same_predictions(seed: int, tmp_path: Path) -> None:
    estimator, whole = learned(seed)
    path = tmp_path / "m.safetensors"
    estimator.save(path)
    loaded = load(path)
    with run_service([loaded], Settings(port=0)) as server:
        compare(estimator, whole, path, loaded, server, np.random.default_rng(100 + seed))


def compare(
    estimator: Any, whole: pd.DataFrame, path: Path, loaded: LoadedModel, server: Running, rng: np.random.Generator
) -> None:
    """Compare the answers within each budget, to rows with missing columns."""
    model, folder, classes = estimator.model_, path.parent, loaded.manifest.classes is not None
    ask, exported = compiled(loaded, folder, "ask.c"), json.loads(json.dumps(document(loaded), allow_nan=False))
    for budget in [*model.costs[1:].tolist(), 1e9]:
        used = model.computed[model.affordable(budget)]
        frame = whole.drop(
            columns=[c for c in whole.columns if rng.random() < 0.3 and c not in model.places[used[0]].features]
        )
        first = [name for name in used if set(model.places[name].features) & set(frame.columns)]
        expected = outputs(loaded.answer(frame, budget=budget))
        same = partial(np.testing.assert_allclose, desired=expected, rtol=CLOSE, atol=CLOSE)
        frame.to_csv(folder / "t.csv", index=False)
        frame.to_parquet(folder / "t.parquet")
        tables: dict[str, Any] = {
            "polars": pl.from_pandas(frame), "lazy": pl.from_pandas(frame).lazy(), "arrow": pa.Table.from_pandas(frame),
            "csv": folder / "t.csv", "parquet": folder / "t.parquet",
        }  # fmt: skip
        for name, each in tables.items():
            same(outputs(loaded.answer(each, budget=budget)), err_msg=name)

        needed = [column for name in used for column in model.places[name].features]
        if set(needed) <= set(frame.columns):
            for each in (estimator, type(estimator).load(path)):
                predict = each.predict_proba if classes else each.predict
                same(predict(frame[needed] if each is estimator else whole, budget=budget), err_msg="estimator")

        words = ["predict", str(path), str(folder / "t.parquet"), "--budget", repr(budget)]
        out = ["--out", str(folder / "p.csv"), *(["--proba"] if classes else [])]
        assert main([*words, *out]) == 0
        numbers = pd.read_csv(folder / "p.csv").iloc[:, -expected[0].size :].to_numpy().reshape(expected.shape)
        np.testing.assert_allclose(numbers, expected, rtol=CLOSE, atol=CLOSE, err_msg="command")

        opened = loaded.open(len(frame))
        sent: dict[str, list[list[Any]]] = {}
        events: list[list[Event]] = [[] for _ in range(len(frame))]
        for name in first:
            rows = frame.reindex(columns=list(model.places[name].features))
            opened.add(name, rows)
            cells = rows.astype(object).to_numpy().tolist()
            sent[name] = [[wire(cell) for cell in row] for row in cells]
            for at, row in zip(events, cells, strict=True):
                at.append(Event(name, tuple(map(raw, row))))
        same(outputs(opened.answer(budget)), err_msg="open")

        reply = server.post({"groups": sent, "rows": len(frame)}, budget=budget)
        assert reply.status_code == 200, reply.text
        same(outputs(reply.json()), err_msg="server")

        lines, of_json = list[str](), list[list[float]]()
        for row in events:
            lines += ["begin", *[added(model, ask, each.group, each.values) for each in row], f"answer {budget!r}"]
            of_json += [numbers for _, numbers in read(exported, [*row, Event(budget=budget)])]
        answered = (line.split() for line in printed(ask, lines) if " " in line)
        of_c = [[float(number) for number in numbers] for _, *numbers in answered]
        for name, numbers in (("C", of_c), ("JSON", of_json)):
            np.testing.assert_allclose(numbers, expected.reshape(len(frame), -1), rtol=CLOSE, atol=CLOSE, err_msg=name)


# Text, booleans, whole numbers and gaps: the service reads them as the library does, or names the wrong column.


SETTINGS = Settings(port=0, max_rows=50, max_body_bytes=100_000)
Groups = dict[str, Any]

CASES: dict[str, Groups] = {
    "every type": {"person": [[30.0, "male"]], "ticket": [[7.5, True, "Århus", 3]], "home": [["Köln"]]},
    "null": {"person": [[None, None]], "ticket": [[None, None, None, None]], "home": [[None]]},
    "unknown level": {"person": [[30.0, "x"]], "ticket": [[7.5, 0, "Bonn", 99]], "home": [["bonn"]], "speed": [[True]]},
    "clamped": {"person": [[1e6, "female"]], "ticket": [[-1.0, 1, "Rome", 17.0]], "home": [["Bonn"]]},
    "rows": {
        "home": [["Bonn"], [None], ["x], [y"]],
        "person": [[0.5, "male"], [20, "female"], [None, "male"]],
        "speed": [[1.0], [None], [3]],
        "ticket": [[1, False, "Oslo", 17], [2.5, None, "Rome", None], [3, True, "Lima", -4]],
    },
}
IMPUTED = {
    "every type": [],
    "null": ["age", "sex", "fare", "paid", "port", "cabin"],
    "unknown level": ["sex", "port", "cabin", "town"],
    "clamped": [],
    "rows": ["age", "paid", "port", "cabin", "v", "town"],
}


@pytest.fixture(scope="module")
def model() -> Model:
    return columns_model()


def inputs(groups: Groups, names: list[str] | None = None) -> list[dict[str, Any]]:
    """The inputs of groups: the numbers, then each text column."""
    found = []
    for group, values in groups.items():
        features = columns_model().places[group].features
        texts = [feature for feature in features if feature in ("sex", "port", "town")]
        numbers = [
            [each for each, feature in zip(row, features, strict=True) if feature not in texts] for row in values
        ]
        found += [tensor(group, numbers)] if numbers[0] else []
        for feature in texts:
            found.append(tensor(f"{group}:{feature}", [[row[features.index(feature)]] for row in values], "BYTES"))
    return [each for each in found if names is None or each["name"] in names]


def as_bytes(those: list[dict[str, Any]]) -> tuple[bytes, dict[str, str]]:
    """A body with its tensors after the JSON, and its headers; null text is empty."""
    heads, blobs = [], []
    for each in those:
        if each["datatype"] == "BYTES":
            texts = [(row[0] or "").encode() for row in each["data"]]
            blobs.append(b"".join(struct.pack("<I", len(text)) + text for text in texts))
        else:
            blobs.append(np.array(each["data"], dtype="<f8").tobytes())
        heads.append(
            {k: v for k, v in each.items() if k != "data"} | {"parameters": {"binary_data_size": len(blobs[-1])}}
        )
    head = json.dumps({"inputs": heads}).encode()
    return head + b"".join(blobs), {JSON_BYTES: str(len(head)), "Content-Type": "application/octet-stream"}


WRONG: list[tuple[str, Any, str]] = [
    ("person", [30.0, 1.0], "column 'sex' has 1.0; expected text, or null"),
    ("person", [30.0, True], "column 'sex' has True; expected text, or null"),
    ("person", ["old", "male"], "column 'age' has 'old'; expected a number, or null"),
    ("person", [-1e200, "male"], "infinite or beyond 1e+100 in 'age'; expected numbers, or null"),
    ("ticket", [1.0, "yes", "Rome", 3.0], "column 'paid' has 'yes'; expected true or false, or null"),
    ("ticket", [1.0, 2.0, "Rome", 3.0], "column 'paid' has 2.0; expected true or false, or null"),
    ("ticket", [1.0, True, "Rome", 3.5], "column 'cabin' has 3.5; expected a whole number, or null"),
    ("ticket", [1.0, True, "Rome", "3"], "column 'cabin' has '3'; expected a whole number, or null"),
    ("speed", ["fast"], "column 'v' has 'fast'; expected a number, or null"),
    ("home", ["Bonn", "Bonn"], "are 1 x 2; expected 1 x 1 values (rows x features)"),
    ("home", np.array([5.0]), "column 'town' has 5; expected the index of a level, 0 to 1, or -1"),
]


@pytest.mark.parametrize(("group", "values", "words"), WRONG, ids=[words for *_, words in WRONG])
def test_a_wrong_value_names_its_group_and_changes_nothing(group: str, values: Any, words: str) -> None:
    """Every binding passes groups on to an open prediction, and its errors back."""
    opened = OpenPrediction(columns_model())
    opened.begin(0.0)
    with pytest.raises(FieldError, match=re.escape(words)) as refused:
        opened.groups(1.0, {"home": ["Bonn"], group: values})
    assert str(refused.value.field).partition("[")[0] == f"groups.{group}"
    assert opened.prediction.received == ()


# Open Inference Protocol


@pytest.mark.parametrize("case", CASES)
def test_inputs_are_answered_as_the_library_answers(service: Running, case: str) -> None:
    answer = expected(columns_model(), CASES[case], rows=None)
    assert {*answer["imputed"]} == {*IMPUTED[case]}
    assert answer["clamped"] == (["age"] if case in ("clamped", "rows") else [])
    those = inputs(CASES[case])
    flat = [each | {"data": [value for row in each["data"] for value in row]} for each in those]
    for content, headers in (
        *((json.dumps({"inputs": each}).encode(), None) for each in (those, flat)),
        as_bytes(those),
    ):
        assert_reported(post(service, content, headers, "liner").json(), answer)


def test_a_model_lists_a_text_column_as_an_input_and_none_without_numbers(service: Running) -> None:
    described = service.get("/v2/models/liner").json()["inputs"]
    assert [(each["name"], each["datatype"], each["shape"], each["parameters"]["features"]) for each in described] == [
        ("person", "FP64", [-1, 1], '["age"]'),
        ("person:sex", "BYTES", [-1, 1], '["sex"]'),
        ("ticket", "FP64", [-1, 3], '["fare","paid","cabin"]'),
        ("ticket:port", "BYTES", [-1, 1], '["port"]'),
        ("speed", "FP64", [-1, 1], '["v"]'),
        ("home:town", "BYTES", [-1, 1], '["town"]'),
    ]
    assert {each["parameters"]["cost"] for each in described if each["name"].startswith("ticket")} == {2.0}


def test_a_group_is_received_with_the_last_of_its_inputs(service: Running) -> None:
    groups = CASES["every type"]
    for names in (["person", "person:sex", "ticket"], ["person", "person:sex", "ticket:port"]):
        reply = infer(service, inputs(groups, names), "liner")
        assert_reported(reply, expected(columns_model(), {"person": groups["person"]}))


def test_inputs_that_arrive_before_the_deadline_count_group_by_group(service: Running) -> None:
    groups = {name: CASES["every type"][name] for name in ("person", "ticket")}
    content, headers = as_bytes(inputs(groups))
    for left_out, received in ((0, ("person", "ticket")), (1, ("person",)), (10 + 24 + 1, ())):
        sent = len(content) - left_out
        with half_sent(service, content, sent, "liner", "deadline_ms=100", **{JSON_BYTES: headers[JSON_BYTES]}) as half:
            status, _, reply = half.response()
        assert status == 200, reply
        assert_reported(reply, expected(columns_model(), {name: groups[name] for name in received}))


def test_an_invalid_text_in_json_names_its_place(service: Running) -> None:
    wrong = tensor("home:town", [["Bonn"], ["Köln"], [{}]], "BYTES")
    assert_refused(post(service, json.dumps({"inputs": [wrong]}).encode(), model="liner"), 400, "inputs[0].data[2][0]")


def test_an_empty_text_in_bytes_is_a_level_where_the_column_has_it() -> None:
    model, groups = columns_model(), columns_model().groups
    bases = groups.bases | {"town": groups.bases["town"].model_copy(update={"levels": ("", "Köln")})}
    manifest = model.manifest.model_copy(update={"groups": groups.model_copy(update={"bases": bases})})
    model = replace(model, manifest=manifest)
    with run_service([model], SETTINGS) as other:
        content, headers = as_bytes(inputs({"home": [[""]]}))
        reply = post(other, content, headers, "liner", policy="arrived").json()
        assert_reported(reply, expected(model, {"home": [""]}, policy="arrived") | {"imputed": []})


SEX = tensor("person:sex", [["male"]], "BYTES")


@pytest.mark.parametrize(
    ("those", "field", "words"),
    [
        (
            [tensor("person:sex", [[1]], "BYTES")],
            "inputs[0].data[0][0]",
            "group 'person': column 'sex' has 1.0; expected text",
        ),
        ([SEX, tensor("person", [["old"]])], "inputs[1].data[0][0]", "column 'age' has 'old'; expected a number"),
        ([tensor("ticket", [[1, 2, 3]])], "inputs[0].data[0][1]", "column 'paid' has 2.0; expected true or false"),
        (
            [tensor("ticket", [1, 0, 3.5], shape=[1, 3])],
            "inputs[0].data[2]",
            "column 'cabin' has 3.5; expected a whole number",
        ),
        (
            [tensor("person:sex", [[1]])],
            "inputs[0].datatype",
            "is 'FP64'; expected BYTES: 'person:sex' is a text column",
        ),
        ([tensor("person", [["1"]], "BYTES")], "inputs[0].datatype", "is 'BYTES'; expected one of FP64"),
        ([SEX, tensor("person", [[1e300]])], "inputs[1].data", "beyond 1e+100 in 'age'"),
        ([tensor("person", [[30, 1]])], "inputs[0].shape", "expected [rows, 1]"),
        ([SEX, SEX], "inputs[1].name", "input 'person:sex' is given more than once"),
        ([tensor("home", [["Bonn"]], "BYTES")], "inputs[0].name", "there is no input 'home'"),
        ([tensor("person:age", [["1"]], "BYTES")], "inputs[0].name", "there is no input 'person:age'"),
        (
            [tensor("home:town", ["a", "b"], "BYTES", shape=[1, 1])],
            "inputs[0].data",
            "are 1 x 2; expected 1 x 1 values",
        ),
        (
            [tensor("home:town", [["a"], []], "BYTES", shape=[2, 1])],
            "inputs[0].data",
            "are ragged: rows are of different lengths",
        ),
    ],
)
def test_an_input_of_another_type_is_422_that_names_its_place(
    service: Running, those: list[dict[str, Any]], field: str, words: str
) -> None:
    assert_refused(post(service, json.dumps({"inputs": those}).encode(), model="liner"), 422, field, words)


@pytest.mark.parametrize(
    ("blob", "field", "words"),
    [
        (b"\x04\0\0\0Bon", "inputs[0].parameters.binary_data_size", "not 1 texts; expected each text after its length"),
        (b"\x04\0\0\0Bonn\0\0\0\0", "inputs[0].parameters.binary_data_size", "are not 1 texts"),
        (b"\xff\xff\xff\xff", "inputs[0].parameters.binary_data_size", "are not 1 texts"),
        (b"\0", "inputs[0].parameters.binary_data_size", "are not 1 texts"),
        (b"\x02\0\0\0\xc3\x28", "inputs[0].data", "text 0 of input 'home:town' is not UTF-8"),
    ],
)
def test_bytes_that_are_no_texts_are_refused(service: Running, blob: bytes, field: str, words: str) -> None:
    parameters = {"binary_data_size": len(blob)}
    head = {"name": "home:town", "shape": [1, 1], "datatype": "BYTES", "parameters": parameters}
    content = json.dumps({"inputs": [head]}).encode()
    headers = {JSON_BYTES: str(len(content)), "Content-Type": "application/octet-stream"}
    assert_refused(post(service, content + blob, headers, "liner"), 422, field, words)


# Metrics and memory


def test_clamped_columns_are_counted_by_group() -> None:
    with run_service([columns_model()], SETTINGS) as fresh:
        assert "anytime_clamped_columns_total{" in fresh.scrape().text, "it is 0 before the first"
        for case, count in (("every type", 0), ("clamped", 1)):
            fresh.post({"groups": CASES[case]})
            assert fresh.metric("anytime_clamped_columns_total", group="person", model="liner") == count
        lines = [line for line in fresh.scrape().text.splitlines() if line.startswith("anytime_clamped")]
    assert 'group="home"' not in "".join(lines), "no column of it has a range"


def test_values_count_with_the_bytes_of_their_terms(service: Running) -> None:
    """`ticket` has 4 columns and 10 terms."""
    before = service.metric("anytime_held_bytes")
    path = f"/sessions/{service.post_to('/sessions').json()['id']}"
    assert service.post_to(f"{path}/groups", {"ticket": CASES["every type"]["ticket"]}).status_code == 200
    assert service.metric("anytime_held_bytes") == before + 80
    assert service.post_to(f"{path}/groups", {"ticket": CASES["null"]["ticket"]}).status_code == 200
    assert service.metric("anytime_held_bytes") == before + 80
    assert service.delete(path).status_code == 204
    assert service.metric("anytime_held_bytes") == before
