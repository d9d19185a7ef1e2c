"""Models loaded again while predictions are open: the new one is checked before the old one goes."""

from __future__ import annotations

import copy
import logging
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest

from anytime.estimators import AnytimeClassifier, AnytimeRegressor
from anytime.groups import load_groups
from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from anytime_service.errors import RegistryError
from anytime_service.models.registry import load_registry, reloaded
from anytime_service.settings import Settings
from service.commands import command
from service.in_session import begin, post_groups
from service.serving import (
    GROUPS,
    VALUES,
    Running,
    changed,
    expected,
    logged,
    packed,
    problem_in,
    rows_of,
    run_service,
    small_model,
    timeless,
    trained_model,
)
from waiting import WAIT_S

LIMITS = Settings(port=0, max_deadline_ms=5_000)


def shifted(intercept: float, name: str = "brake") -> Model:
    """The small model with another base rate, by which its answers are reported apart."""
    model = small_model(name)
    return replace(model, prefixes=replace(model.prefixes, intercept=np.array([intercept])))


def swapped() -> Model:
    """The small model with the features of a group the other way round."""
    reported = copy.deepcopy(GROUPS)
    reported["groups"][1]["features"].reverse()
    return changed(small_model(), groups=load_groups(reported))


def fewer() -> Model:
    """A model of speed and hog alone."""
    groups = GROUPS | {"groups": GROUPS["groups"][:2]}
    return changed(AnytimeRegressor(groups, basis="linear").fit(*rows_of(groups, 0)).model_, name="brake")


def write(file: Path, intercept: float, name: str = "brake") -> Model:
    return shifted(intercept, name).save(file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "m.safetensors"


@pytest.fixture
def reloading(file: Path) -> Iterator[Running]:
    """A service of one file, whose model has the base rate 10."""
    write(file, 10.0)
    with run_service(load_registry([file.parent]), LIMITS) as service:
        yield service


def reload(service: Running, name: str = "brake") -> httpx.Response:
    return service.post_to(f"/models/{name}/reload")


def test_a_model_is_replaced_when_asked_to(reloading: Running, file: Path) -> None:
    new = write(file, 3.0)
    assert reloading.post({"groups": {}}).json()["prediction"] == 10.0, "not before"
    response = reload(reloading)
    assert (response.status_code, response.json()) == (200, reloading.get("/models").json()[0])
    assert response.json()["version"] == new.version
    assert timeless(reloading.post({"groups": VALUES}).json()) == expected(new, VALUES)
    assert reload(reloading).json()["version"] == new.version, "nothing has changed"


def test_a_file_that_cannot_be_loaded_or_has_another_model_leaves_the_old_model_serving(
    reloading: Running, file: Path
) -> None:
    spoiled: list[tuple[Callable[[], object], str]] = [
        (lambda: file.write_bytes(b""), str(file)),
        (lambda: file.write_bytes(b"nonsense"), str(file)),
        (file.unlink, str(file.parent)),
        (lambda: shifted(3.0, "another").save(file), "and now contains 'another', the name of the file"),
        (lambda: trained_model("brake", width=2).save(file), "without any of the previous groups"),
        (lambda: swapped().save(file), "other features in 'hog'"),
    ]
    for spoil, words in spoiled:
        spoil()
        with logged() as records:
            detail = problem_in(reload(reloading), 409)["detail"]
        assert (words in detail, str(file.parent) in detail) == (True, True), detail
        assert [str(file.parent) in record.getMessage() for record in records] == [True]
        assert reloading.post({"groups": {}}).json()["prediction"] == 10.0
    new = write(file, 3.0)
    assert reload(reloading).json()["version"] == new.version, "corrected, it is loaded"


@pytest.mark.parametrize("how", ["link", "folder"])
@pytest.mark.parametrize(("other", "words"), [(swapped(), "other features"), (shifted(3.0, "another"), "'another'")])
def test_a_link_that_refers_to_another_model_leaves_the_old_one_serving(
    tmp_path: Path, how: str, other: Model, words: str
) -> None:
    """Kubernetes, git-sync and releases replace a file by another target of a symbolic link."""
    for name, model in (("v1", shifted(10.0)), ("v2", other), ("v3", shifted(3.0))):
        (tmp_path / name).mkdir()
        model.save(tmp_path / name / "m.safetensors")
    served = tmp_path / "served"
    served.mkdir()
    link, target = {"link": ("m.safetensors", "../{}/m.safetensors"), "folder": ("..data", "../{}")}[how]
    swap = served / link
    swap.symlink_to(target.format("v1"))
    if how == "folder":  # as in a ConfigMap
        (served / "m.safetensors").symlink_to("..data/m.safetensors")
    registry = load_registry([served])
    for version in ("v2", "v3"):
        (served / "new").symlink_to(target.format(version))
        (served / "new").replace(swap)
        if version == "v2":
            with pytest.raises(RegistryError, match=words) as refused:
                reloaded(registry)
            assert str(served / "m.safetensors") in str(refused.value)
    assert reloaded(registry).get().prefixes.intercept == [3.0]


def test_groups_may_go_and_come_from_one_training_to_the_next(reloading: Running, file: Path) -> None:
    less = fewer().save(file)
    assert reload(reloading).json()["version"] == less.version
    assert reloading.post({"groups": {"lab": VALUES["lab"]}}).status_code == 422
    more = trained_model("brake").save(file)
    assert reload(reloading).json()["version"] == more.version
    other = trained_model("brake", width=2).save(file.with_name("other.safetensors"))  # a new file may hold others
    assert reload(reloading).status_code == 200
    assert set(reloading.get("/models/brake").json()["versions"]) == {more.version, other.version}


def test_what_cannot_be_loaded_again_is_a_problem(reloading: Running, service: Running) -> None:
    unknown, unsaved = reload(reloading, "break"), reload(service)
    assert (unknown.status_code, unknown.json()["field"]) == (404, "model")
    assert (unsaved.status_code, "were not loaded from files" in unsaved.json()["detail"]) == (409, True)


def test_what_is_open_keeps_the_version_it_began_with(reloading: Running, file: Path) -> None:
    old = load_registry([file]).get()
    session = begin(reloading)
    post_groups(reloading, session, {"speed": VALUES["speed"]})
    with reloading.stream() as stream, reloading.connect() as connection:
        stream.say("begin", "old")
        stream.groups("old", {"speed": VALUES["speed"]})
        connection.head(content_type="application/x-ndjson")
        new = write(file, 3.0)
        assert reload(reloading).status_code == 200
        stream.say("begin", "new")
        hog = {"hog": VALUES["hog"]}
        both = {"speed": VALUES["speed"], **hog}
        for name, model, groups in (("old", old, both), ("new", new, hog)):
            stream.groups(name, hog)
            assert timeless(stream.end(name)) == expected(model, groups)
        connection.send(b"0\r\n\r\n")
        assert timeless(connection.response()[2]) == expected(old, {})
    post_groups(reloading, session, {"hog": VALUES["hog"]})
    assert timeless(reloading.get(f"/sessions/{session}/predict").json()) == expected(old, both)
    assert reloading.post_to("/sessions").json()["version"] == new.version
    assert reloading.post({}, model=f"brake@{old.version}").status_code == 404, (
        "the old version is gone for what begins now"
    )


def test_reloading_under_load_loses_and_mixes_nothing(reloading: Running, file: Path) -> None:
    versions = {load_registry([file]).get().version: 10.0}
    stop = Event()

    def post() -> Iterator[dict[str, Any]]:
        with httpx.Client(base_url=reloading.url, timeout=WAIT_S) as client:
            while not stop.is_set():
                yield client.post("/predict", json={"groups": VALUES}).raise_for_status().json()

    def stream() -> Iterator[dict[str, Any]]:
        with reloading.stream() as stream:
            for name in count():
                if stop.is_set():
                    return
                yield stream.ask(name, VALUES)

    with ThreadPoolExecutor(2) as threads:
        asking = [threads.submit(list, ask()) for ask in (post, stream)]
        try:
            for i in range(12):
                new = write(file, float(20 + i % 4))
                versions[new.version] = float(20 + i % 4)
                assert reload(reloading).json()["version"] == new.version
        finally:
            stop.set()
        answers = [answer for each in asking for answer in each.result(WAIT_S)]
    given = {version: expected(shifted(base), VALUES)["prediction"] for version, base in versions.items()}
    assert len({answer["version"] for answer in answers}) > 2
    for answer in answers:
        assert answer["prediction"] == pytest.approx(given[answer["version"]], rel=1e-12)
        assert answer["reason"] == "complete"


def test_sighup_loads_again_and_a_broken_file_leaves_the_old_model(file: Path) -> None:
    write(file, 10.0)
    with command(file) as (served, service), service.stream() as stream:
        stream.say("begin", "old")
        new = write(file, 3.0)
        served.process.send_signal(signal.SIGHUP)
        served.said(f"models reloaded: 'brake' [0-9a-f]+ -> {new.version}")
        assert service.get("/models").json()[0]["version"] == new.version
        stream.say("begin", "new")
        for name, base in (("old", 10.0), ("new", 3.0)):
            assert stream.end(name)["prediction"] == base
        file.write_bytes(b"nonsense")
        for words in (".*m.safetensors", ".*there is no file"):
            served.process.send_signal(signal.SIGHUP)
            served.said(f"could not reload the models; {words}")
            assert service.post({"groups": {}}).json()["prediction"] == 3.0
            file.unlink(missing_ok=True)


# A reload keeps the meaning of what clients have stored, or is refused: codes of levels, units, classes.


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
def serving(file: Path) -> Iterator[Running]:
    with run_service(load_registry([write_trained(file, {})]), Settings(port=0)) as service:
        yield service


def write_trained(file: Path, options: dict[str, Any]) -> Path:
    trained(**options).save(file)
    return file


def answer_to(service: Running, code: float, **query: Any) -> dict[str, Any]:
    body = {"groups": {"port": packed([[code]])}}
    answer: dict[str, Any] = service.post_packed("/predict", body, **{"policy": "arrived"} | query).json()
    return answer


@pytest.mark.parametrize("case", OTHER_MEANINGS)
def test_a_model_with_other_meanings_is_refused_unless_it_is_forced(file: Path, case: str) -> None:
    before, after, words = OTHER_MEANINGS[case]
    with run_service(load_registry([write_trained(file, before)]), Settings(port=0)) as service:
        version = service.get("/models/ship").json()["version"]
        write_trained(file, after)
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
    write_trained(file, SAME_MEANINGS[case])
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
