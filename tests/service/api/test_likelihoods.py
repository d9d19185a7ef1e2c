"""Models of classes and counts by a likelihood: one answer by every way, and what it says of itself.

`test_bindings.py` and, for Open Inference, `test_oip.py` test that every binding returns the library's answers.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from anytime.inference.prediction import Prediction
from anytime.inference.subsets import arrived_model
from anytime.model.model import Model
from anytime_service.api.console.model_data import sample
from anytime_service.client import Client
from anytime_service.core import solver as solving
from anytime_service.core.open_prediction import OpenPrediction, State
from anytime_service.core.solver import Solver
from anytime_service.models.registry import load_registry
from anytime_service.schemas.options import PredictionOptions
from anytime_service.schemas.problem import MEDIA_TYPE
from anytime_service.settings import Settings
from service.inferring import infer, tensors
from service.loops import run
from service.serving import (
    LIKELIHOODS,
    VALUES,
    Running,
    expected,
    likelihood_model,
    run_service,
    timeless,
    trained_model,
)

LINKS = {"binomial": "logit", "multinomial": "softmax", "poisson": "log"}
STEPPED = ("binomial", "poisson")


def late(model: Model) -> dict[str, list[float]]:
    """All groups but the first of the sequence."""
    return {name: VALUES[name] for name in model.computed[-1][1:]}


@pytest.mark.parametrize("family", LIKELIHOODS)
def test_a_model_reports_its_family_its_link_and_its_deviances(several: Running, family: str) -> None:
    reported = several.get(f"/models/{family}").json()
    manifest = likelihood_model(family).manifest
    assert (reported["family"], reported["link"]) == (family, LINKS[family])
    assert reported["prior_deviance"] == manifest.prior_deviance
    deviances = [reported["prior_deviance"], *(step["deviance"] for step in reported["steps"])]
    assert deviances == sorted(deviances, reverse=True), "steps explain more and more"
    assert reported["policies"] == (["prefix"] if family == "multinomial" else ["prefix", "arrived"])
    plan = several.get(f"/models/{family}/plan").json()
    assert [step["deviance"] for step in plan["steps"]] == deviances[1:]
    parameters = several.get(f"/v2/models/{family}").json()["parameters"]
    assert (parameters["family"], parameters["link"]) == (family, LINKS[family])


@pytest.mark.parametrize("family", LIKELIHOODS)
def test_an_answer_reports_the_expected_deviance(several: Running, family: str) -> None:
    manifest = likelihood_model(family).manifest
    for prefix, deviance in enumerate([manifest.prior_deviance, *(step.deviance for step in manifest.steps)]):
        groups = {name: VALUES[name] for name in likelihood_model(family).computed[prefix]}
        answer = several.post({"groups": groups}, model=family).json()
        assert (answer["prefix"], answer["expected"]["deviance"]) == (prefix, deviance)
        assert infer(several, tensors(groups), family)["parameters"]["expected_deviance"] == deviance
    assert several.post({"groups": {}}, model="lens").json()["expected"]["deviance"] is None


def test_softmax_models_fall_back_to_the_prefix_and_say_so(several: Running) -> None:
    groups = late(likelihood_model("multinomial"))
    with several.stream() as stream:
        stream.say("begin", 1, model="multinomial", policy="arrived")
        stream.groups(1, groups)
        stream.say("end", 1)
        answer = stream.answer(1)
    assert (answer["policy"], answer["prefix"], answer["groups"], answer["approximate"]) == ("prefix", 0, [], False)
    assert "multinomial" in answer["note"]


def test_a_prediction_waits_for_what_the_policy_can_use() -> None:
    for family in LIKELIHOODS:
        model = likelihood_model(family)
        name = model.computed[1][0]
        opened = OpenPrediction(model)
        opened.begin(0.0, PredictionOptions(budget=float(model.costs[1]), policy="arrived"))
        answer = opened.groups(1.0, {name: VALUES[name]})
        assert (answer is not None) == (family == "multinomial")
        assert opened.state is (State.OPEN if answer is None else State.ANSWERED)


@pytest.mark.parametrize("family", LIKELIHOODS)
def test_the_client_gets_the_librarys_answers_and_the_models_family(several: Running, family: str) -> None:
    model = likelihood_model(family)
    with Client(several.url) as client:
        for policy in ("prefix", "arrived"):
            answer = client.predict(late(model), model=family, policy=policy)
            there = Prediction(model)
            for name, values in late(model).items():
                there.add(name, values)
            here = there.answer(policy=policy)
            assert replace(answer, elapsed_ms=0.0, reason="end") == here
        reported = client.model(family)
        assert (reported.family, reported.link, reported.prior_deviance) == (
            family,
            LINKS[family],
            model.manifest.prior_deviance,
        )
        assert [step.deviance for step in reported.steps] == [step.deviance for step in model.manifest.steps]
        assert [step.deviance for step in client.plan(family).steps] == [step.deviance for step in reported.steps]


@pytest.mark.parametrize("family", LIKELIHOODS)
@pytest.mark.parametrize("policy", ["prefix", "arrived"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_absurd_values_have_finite_answers(several: Running, family: str, policy: str, sign: float) -> None:
    groups = {name: [sign * 3e99] * len(values) for name, values in VALUES.items()}
    answer = several.post({"groups": groups}, model=family, policy=policy).json()
    numbers = answer["prediction"] if family == "poisson" else answer["probabilities"]
    assert np.isfinite(numbers).all()
    if family != "poisson":
        assert sum(numbers) == pytest.approx(1.0)


@pytest.mark.parametrize("family", LIKELIHOODS)
def test_scores_that_overflow_are_never_a_nan(settings: Settings, tmp_path: Path, family: str) -> None:
    model = likelihood_model(family)
    coef = np.full_like(model.prefixes.packed, 1e300)
    replace(model, prefixes=replace(model.prefixes, packed=coef)).save(tmp_path / "m.safetensors")
    groups = {name: [1e99] * len(values) for name, values in VALUES.items()}
    with run_service(load_registry([tmp_path]), settings) as service:
        response = service.post({"groups": groups})
        reported = response.json()
        if family == "multinomial":  # differences of infinite scores are nothing
            assert (response.status_code, response.headers["content-type"]) == (422, MEDIA_TYPE)
            assert "not a finite number" in reported["detail"]
        else:  # an infinite score is a certain class, or the largest count
            assert response.status_code == 200
            assert np.isfinite(reported["prediction"] if family == "poisson" else reported["probabilities"]).all()


@pytest.mark.parametrize("family", LIKELIHOODS)
def test_a_model_of_least_squares_is_replaced_by_one_of_a_likelihood(
    settings: Settings, tmp_path: Path, family: str
) -> None:
    file = tmp_path / "m.safetensors"
    named = {"name": "m", "version": ""}
    old, new = (
        replace(m, manifest=m.manifest.model_copy(update=named)) for m in (trained_model(), likelihood_model(family))
    )
    old = old.save(file)
    with run_service(load_registry([tmp_path]), settings) as service, service.stream() as stream:
        stream.say("begin", "before", policy="arrived")
        stream.groups("before", {"hog": VALUES["hog"]})
        new = new.save(file)
        reload = f"{service.url}/models/m/reload"
        assert httpx.post(reload, timeout=30).status_code == 409, "answers have another meaning"
        assert httpx.post(f"{reload}?force=true", timeout=30).json()["version"] == new.version
        stream.say("end", "before")
        reported = stream.answer("before")
        assert {**timeless(reported)} == expected(old, {"hog": VALUES["hog"]}, policy="arrived")
        for policy in ("prefix", "arrived"):
            answer = service.post({"groups": late(new)}, policy=policy).json()
            assert timeless(answer) == expected(new, late(new), policy=policy)
        assert service.get("/models/m").json()["family"] == family


@pytest.mark.parametrize("family", STEPPED)
def test_wide_sets_of_a_likelihood_are_solved_beside_the_loop_and_small_ones_at_once(family: str) -> None:
    model = likelihood_model.__wrapped__(family, 40)
    first, *others = model.order("abcd")
    small, wide = frozenset(others[:1]), frozenset(others[:2])

    async def main() -> None:
        solver = Solver(250.0)
        reported: list[Any] = []
        try:
            solver.find(model, small, reported.append)
            assert len(reported) == 1, "at once"
            solver.find(model, wide, reported.append)
            assert len(reported) == 1
            while len(reported) < 2:
                await asyncio.sleep(0.001)
            solver.find(model, frozenset({first}), reported.append)
        finally:
            solver.close()
        assert [found.groups for found in reported] == [small, wide, frozenset({first})]
        assert [found.approximate for found in reported] == [True, True, False]
        assert arrived_model(model, wide) is reported[1]

    assert solving.MAX_SMALL < 80
    run(main())


@pytest.mark.parametrize("family", LIKELIHOODS)
def test_samples_vary_as_the_training_data_did_where_the_model_knows_how(several: Running, family: str) -> None:
    X = np.random.default_rng(0).normal(size=(200, 4)) @ np.array(
        [[1, 2, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 1]]
    )
    model = correlated(family, X)
    reported = [sample(model, seed) for seed in range(2000)]
    rows = np.array([np.concatenate([*each.groups.values()]) for each in reported])
    seen, there = np.corrcoef(rows.T), np.corrcoef(X.T)
    assert all(each.correlated == (family != "multinomial") for each in reported)
    np.testing.assert_allclose(seen, np.eye(4) if family == "multinomial" else there, atol=0.1)
    np.testing.assert_allclose(rows.mean(axis=0), X.mean(axis=0), atol=0.2)
    values = several.get(f"/models/{family}/sample", seed=1).json()["groups"]
    assert several.post({"groups": values}, model=family).json()["complete"]


def correlated(family: str, X: Any) -> Model:
    """A model of these rows, each column a group of its own."""
    from anytime.estimators import AnytimeClassifier, AnytimeRegressor  # noqa: PLC0415

    rng = np.random.default_rng(3)
    if family == "poisson":
        found: Model = (
            AnytimeRegressor(family="poisson", alpha=0.1, basis="linear").fit(X, rng.poisson(2.0, len(X))).model_
        )
    else:
        y = rng.integers(0, 2 if family == "binomial" else 3, len(X))
        found = AnytimeClassifier(family=family, alpha=0.1, basis="linear").fit(X, y).model_
    return found
