"""A reload keeps the meaning of what clients have stored, or is refused: codes of levels, units, classes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anytime.estimators import AnytimeClassifier, AnytimeRegressor
from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from anytime_service.models.registry import load_registry
from anytime_service.settings import Settings
from service.serving import Running, changed, logged, packed, problem_in, run_service

PORTS = ("Bonn", "Cork", "Oslo")


def trained(
    weights: tuple[float, ...] = (0.6, 0.3, 0.1),
    ports: tuple[Any, ...] = PORTS,
    *,
    unit: str = "ms",
    classes: tuple[str, ...] = (),
    targets: tuple[str, ...] = ("y",),
    extra: bool = False,
) -> Model:
    """A model of a port and a number, in which the port says nearly everything."""
    rng = np.random.default_rng(5)
    rows = 240
    frame = pd.DataFrame({"port": rng.choice(np.array(ports, dtype=object), rows, p=weights)})
    for name in ("x", "more") if extra else ("x",):
        frame[name] = rng.normal(size=rows)
    stated = {"cost_unit": unit, "groups": [{"name": name, "features": [name], "cost": 1.0} for name in frame]}
    score = np.array([ports.index(port) * 100.0 for port in frame["port"]]) + frame["x"].to_numpy()
    y: Any = pd.DataFrame({name: score * (i + 1) for i, name in enumerate(targets)}).squeeze(axis=1)
    if classes:
        y = np.array(classes)[np.digitize(score, np.linspace(50, 150, len(classes) - 1))]
    estimator = AnytimeClassifier if classes else AnytimeRegressor
    return changed(estimator(stated, basis="linear", alpha=1e-3, cv=2).fit(frame, y).model_, name="ship")


OTHER_MEANINGS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a level before others": ({}, {"ports": ("Aden", *PORTS), "weights": (0.3, 0.3, 0.2, 0.2)}, "column 'port'"),
    "a level less": ({}, {"ports": PORTS[1:], "weights": (0.5, 0.5)}, "column 'port'"),
    "numbers for levels": ({}, {"ports": (0.5, 1.5, 2.5)}, "type 'number' of column 'port'"),
    "another unit": ({}, {"unit": "EUR"}, "cost unit 'EUR' instead of 'ms'"),
    "classes for numbers": ({}, {"classes": ("high", "low")}, "task 'binary' instead of 'regression'"),
    "a class more": ({"classes": ("high", "low")}, {"classes": ("high", "low", "mid")}, "classes"),
    "responses in another order": ({"targets": ("y", "z")}, {"targets": ("z", "y")}, "responses"),
}

SAME_MEANINGS: dict[str, dict[str, Any]] = {
    "other frequencies": {"weights": (0.1, 0.3, 0.6)},
    "a level after the others": {"ports": (*PORTS, "Zara"), "weights": (0.1, 0.2, 0.3, 0.4)},
    "a group more": {"extra": True},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ship.safetensors"


@pytest.fixture
def serving(file: Path) -> Iterator[Running]:
    with run_service(load_registry([write(file, {})]), Settings(port=0)) as service:
        yield service


def write(file: Path, options: dict[str, Any]) -> Path:
    trained(**options).save(file)
    return file


def answer_to(service: Running, code: float, **query: Any) -> dict[str, Any]:
    body = {"groups": {"port": packed([[code]])}}
    answer: dict[str, Any] = service.post_packed("/predict", body, **{"policy": "arrived"} | query).json()
    return answer


@pytest.mark.parametrize("case", OTHER_MEANINGS)
def test_a_model_with_other_meanings_is_refused_unless_it_is_forced(file: Path, case: str) -> None:
    before, after, words = OTHER_MEANINGS[case]
    with run_service(load_registry([write(file, before)]), Settings(port=0)) as service:
        version = service.get("/models/ship").json()["version"]
        write(file, after)
        with logged("anytime_service") as records:
            refused = service.post_to("/models/ship/reload")
        detail = problem_in(refused, 409)["detail"]
        assert (words in detail, "force" in detail) == (True, True), detail
        assert [record.levelno for record in records] == [logging.ERROR]
        assert service.get("/models/ship").json()["version"] == version
        forced = service.post_to("/models/ship/reload?force=true")
        assert forced.status_code == 200, forced.text
        assert service.get("/models/ship").json()["version"] == forced.json()["version"] != version


@pytest.mark.parametrize("case", SAME_MEANINGS)
def test_the_index_of_a_level_means_the_same_after_a_training(
    serving: Running, file: Path, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    levels = next(each["levels"] for each in serving.get("/models/ship").json()["columns"] if each["name"] == "port")
    assert levels == list(PORTS)
    before = [answer_to(serving, code)["prediction"] for code in range(3)]
    assert np.ptp(before) > 100
    old = serving.get("/models/ship").json()["version"]
    write(file, SAME_MEANINGS[case])
    with caplog.at_level(logging.INFO, "anytime_service"):
        new = serving.post_to("/models/ship/reload").json()["version"]
    assert [record.getMessage() for record in caplog.records if record.name == "anytime_service"] == [
        f"models reloaded: 'ship' {old} -> {new}"
    ]
    model = trained(**SAME_MEANINGS[case])
    for code, port in enumerate(PORTS):
        literal = Prediction(model)
        literal.add("port", [port])
        answer = answer_to(serving, code)
        assert answer["prediction"] == literal.answer(policy="arrived").prediction
        assert abs(answer["prediction"] - before[code]) < 20
    assert answer_to(serving, 1, model=f"ship@{old}")["status"] == 404, "the version that the codes belong to is stated"


def test_codes_that_are_none_stay_what_they_were(serving: Running) -> None:
    """A missing value and another level are no codes; neither is a number beyond them."""
    for code in (float("nan"), -1.0):
        assert answer_to(serving, code)["imputed"] == ["port"]
    for code in (3.0, 0.5, -2.0):
        assert answer_to(serving, code)["status"] == 422
