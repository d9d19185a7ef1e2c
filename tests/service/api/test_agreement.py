"""Every way to a prediction gives the same numbers: estimators, tables of each type, command, values in process, server
(JSON), and the exports in C and JSON."""

from __future__ import annotations

import json
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
from anytime.types import Float
from anytime_service.settings import Settings
from models.exporting import Event, added, compiled, printed, read
from service.serving import Running, run_service

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
