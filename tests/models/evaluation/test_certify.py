"""A certified model says no more of the best possible than is true, and everything that it knows of it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from anytime.errors import TrainingError
from anytime.estimators import AnytimeClassifier, AnytimeRegressor
from anytime.evaluation.certificate.certify import certify
from anytime.groups import FeatureGroups
from anytime.loaded import load
from anytime.model.manifest import Certificate
from anytime.model.model import Model
from anytime.moments.accumulate import moments_of
from anytime.target import Target
from anytime.training.fit import fit, provenance
from anytime.training.options import Options
from anytime.training.resequencing import resequence
from models import literal
from models.literal import Rows, brute_force_best, explained_variance_of_subsets
from models.present import present
from models.problems import any_groups, grouped, messy_table
from models.properties import quick
from models.refusals import assert_refused


def trained(
    groups: FeatureGroups, seed: int = 0, alpha: float = 1e-2, epsilon: float | None = None
) -> tuple[Model, Rows]:
    """A model by omp, which the best sets may well beat, and its rows."""
    rng = np.random.default_rng(seed)
    X = messy_table(rng, 50, len(groups.features), ("fresh", "copy", "sum", "constant"), 0.2, 0.0)
    Y = X @ rng.normal(size=(X.shape[1], 2)) + rng.normal(size=(50, 2))
    fitted = fit([moments_of(X, Y)], groups, Options(method="omp", alpha=alpha, epsilon=epsilon))
    model = fitted.model("m", Target("regression", ("a", "b")), provenance(fitted, "t"))
    return model, Rows(*literal.standardise(X, Y), alpha)


SEVEN = grouped([1, 2, 2, 1, 3, 2, 1], [1.0, 2.0, 3.0, 1.0, 5.0, 2.0, 2.0])


@pytest.fixture(scope="module")
def model() -> Model:
    return trained(SEVEN)[0]


@quick(max_examples=25)
@given(any_groups, st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_bounds_hold_for_every_set_and_are_reached_where_they_are_exact(
    groups: FeatureGroups, seed: int, nodes: int
) -> None:
    assume(len(groups) <= 7)
    model, rows = trained(groups, seed)
    found = present(certify(model, nodes=nodes).manifest.certificate)
    F = explained_variance_of_subsets(rows, groups)
    whole = {subset.union(*(groups.prerequisites[g] for g in subset)) for subset in F}
    affordable = {subset: F[subset] for subset in whole}
    for cost, bound, exact in zip(model.costs, found.bounds, found.exact, strict=True):
        best = brute_force_best(affordable, groups.costs.tolist(), float(cost))
        assert bound >= best * (1 - 1e-7) - 1e-10
        if exact:
            assert bound == pytest.approx(best, rel=1e-7, abs=1e-9)


def test_shares_are_of_the_bounds_the_base_rate_first() -> None:
    model, _ = trained(SEVEN, seed=3)
    model = certify(model, nodes=1)
    bounds, shares = present(model.manifest.certificate).bounds, present(model.certified_shares)
    assert (shares[0], bounds[0]) == (1.0, 0.0)
    F = [step.explained_variance for step in model.manifest.steps]
    assert shares[1:] == pytest.approx(np.divide(F, bounds[1:]))
    assert min(shares) < 0.999, "this table does not test anything"
    assert max(shares) <= 1.0


def test_no_share_is_above_one(model: Model) -> None:
    assert model.certified_shares is None
    low = Certificate(
        bounds=(0.0, *(step.explained_variance * (1 - 1e-12) for step in model.manifest.steps)),
        exact=(True,) * (model.steps + 1),
        nodes=1,
    )
    reported = replace(model, manifest=model.manifest.model_copy(update={"certificate": low}))
    assert reported.certified_shares == (1.0,) * (model.steps + 1)


def test_what_is_free_is_compared_with_the_base_rate() -> None:
    model, _ = trained(grouped([1, 2, 1], [0.0, 2.0, 1.0]))
    found = certify(model)
    free = present(found.manifest.certificate).bounds[0]
    assert free == pytest.approx(model.manifest.steps[0].explained_variance)
    assert present(found.certified_shares)[:2] == pytest.approx((0.0, 1.0))


def test_a_certified_model_is_saved_loaded_and_another_version(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    before = model.save(path)
    found = certify(load(path), nodes=5)
    assert found.version == ""
    saved = found.save(path)
    again = load(path)
    assert saved.version not in ("", before.version)
    assert (again.manifest, again.certified_shares) == (saved.manifest, found.certified_shares)
    assert again.prefixes.packed.tobytes() == model.prefixes.packed.tobytes()


def test_progress_is_told_of_every_prefix(model: Model) -> None:
    reported: list[int] = []
    certify(model, nodes=1, progress=reported.append)
    assert reported == [1] * (model.steps + 1)


def test_a_stopped_model_is_compared_with_sets_of_its_own_groups() -> None:
    model, _ = trained(SEVEN, epsilon=0.3)
    assert present(model.manifest.stopped).left_out
    # All groups kept are the last prefix.
    assert present(certify(model).certified_shares)[-1] == pytest.approx(1.0)


def test_a_model_at_other_costs_is_not_certified(model: Model) -> None:
    expensive = FeatureGroups(
        groups=tuple(g.model_copy(update={"cost": 2 * c}) for g, c in zip(SEVEN.groups, SEVEN.costs, strict=True))
    )
    assert resequence(certify(model, nodes=1), expensive).manifest.certificate is None


def test_likelihoods_models_without_moments_and_limits_of_nothing_are_refused(model: Model) -> None:
    rng = np.random.default_rng(0)
    likely = AnytimeClassifier().fit(rng.normal(size=(30, 2)), rng.integers(0, 2, 30)).model_
    for call, said in (
        (partial(certify, replace(model, moments=None)), "saved without its moments"),
        (partial(certify, likely), "is binomial; certificates support least squares only"),
        (partial(certify, model, nodes=0), "0 nodes"),
    ):
        assert_refused(call, said, error=TrainingError)


def test_penalties_of_prefixes_have_no_part_in_it() -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(40, 11))
    y = X @ rng.normal(size=11) + 3 * rng.normal(size=40)
    groups = grouped([2, 2, 2, 2, 3], [1.0, 2.0, 1.0, 3.0, 2.0])
    model = AnytimeRegressor(groups, alpha="cv", cv=4).fit(X, y).model_
    assert len({step.alpha for step in model.manifest.steps}) > 1
    rows = Rows(*literal.standardise(X, y), model.manifest.alpha)
    F = explained_variance_of_subsets(rows, groups)
    best = [brute_force_best(F, groups.costs.tolist(), float(cost)) for cost in model.costs]
    assert present(certify(model).manifest.certificate).bounds == pytest.approx(best, rel=1e-7)
