"""Models of classes and counts by a likelihood, and what they say of themselves.

`test_bindings.py` and, for Open Inference, `test_oip.py` test that every binding returns the library's answers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anytime.model.model import Model
from anytime_service.api.console.pages import sample
from anytime_service.models.registry import load_registry
from anytime_service.settings import Settings
from service.inferring import infer, tensors
from service.serving import (
    LIKELIHOODS,
    VALUES,
    Running,
    changed,
    expected,
    likelihood_model,
    problem_in,
    run_service,
    timeless,
    trained_model,
)

LINKS = {"binomial": "logit", "multinomial": "softmax", "poisson": "log"}


@pytest.mark.parametrize("family", LIKELIHOODS)
def test_a_model_reports_its_family_its_link_and_its_deviances(several: Running, family: str) -> None:
    reported = several.get(f"/models/{family}").json()
    prior = likelihood_model(family).manifest.prior_deviance
    assert (reported["family"], reported["link"], reported["prior_deviance"]) == (family, LINKS[family], prior)
    deviances = [reported["prior_deviance"], *(step["deviance"] for step in reported["steps"])]
    assert deviances == sorted(deviances, reverse=True), "steps explain more and more"
    assert reported["policies"] == (["prefix"] if family == "multinomial" else ["prefix", "arrived"])
    assert [step["deviance"] for step in several.get(f"/models/{family}/plan").json()["steps"]] == deviances[1:]
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


@pytest.mark.parametrize("family", LIKELIHOODS)
@pytest.mark.parametrize("policy", ["prefix", "arrived"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_absurd_values_have_finite_answers(several: Running, family: str, policy: str, sign: float) -> None:
    groups = {name: [sign * 3e99] * len(values) for name, values in VALUES.items()}
    answer = several.post({"groups": groups}, model=family, policy=policy).json()
    numbers = answer["prediction"] if family == "poisson" else answer["probabilities"]
    assert np.isfinite(numbers).all()
    assert family == "poisson" or sum(numbers) == pytest.approx(1.0)


@pytest.mark.parametrize("family", LIKELIHOODS)
def test_scores_that_overflow_are_never_a_nan(settings: Settings, family: str) -> None:
    model = likelihood_model(family)
    prefixes = replace(model.prefixes, packed=np.full_like(model.prefixes.packed, 1e300))
    with run_service([replace(model, prefixes=prefixes)], settings) as service:
        response = service.post({"groups": {name: [1e99] * len(values) for name, values in VALUES.items()}})
    reported = response.json()
    if family == "multinomial":  # differences of infinite scores are nothing
        assert "not a finite number" in problem_in(response, 422)["detail"]
    else:  # an infinite score is a certain class, or the largest count
        assert np.isfinite(reported["prediction"] if family == "poisson" else reported["probabilities"]).all()


def test_a_model_of_least_squares_is_replaced_by_one_of_a_likelihood_if_that_is_forced(
    settings: Settings, tmp_path: Path
) -> None:
    changed(trained_model(), name="m", version="").save(tmp_path / "m.safetensors")
    with run_service(load_registry([tmp_path]), settings) as service:
        new = changed(likelihood_model("poisson"), name="m", version="").save(tmp_path / "m.safetensors")
        assert service.post_to("/models/m/reload").status_code == 409, "answers have another meaning"
        assert service.post_to("/models/m/reload?force=true").json()["version"] == new.version
        assert timeless(service.post({"groups": VALUES}).json()) == expected(new, VALUES)


@pytest.mark.parametrize("family", ["gaussian", *LIKELIHOODS])
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
    np.testing.assert_allclose(rows.std(axis=0), X.std(axis=0), rtol=0.1)
    family = "lens" if family == "gaussian" else family
    values = several.get(f"/models/{family}/sample", seed=1).json()["groups"]
    assert several.post({"groups": values}, model=family).json()["complete"]


def correlated(family: str, X: Any) -> Model:
    """A model of these rows, each column a group of its own."""
    from anytime.estimators import AnytimeClassifier, AnytimeRegressor  # noqa: PLC0415

    rng = np.random.default_rng(3)
    estimator: Any = AnytimeRegressor if family in ("gaussian", "poisson") else AnytimeClassifier
    y = rng.integers(0, 2 if family == "binomial" else 3, len(X))
    found: Model = estimator(family=family, alpha=0.1, basis="linear").fit(X, y).model_
    return found
