"""What the console is sent: its files, a model's curve, and rows to try."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError
from typing import Any
from unittest.mock import Mock

import httpx
import numpy as np
import pytest

from anytime.evaluation.page.pictures import model_curve as curve, shape_charts
from anytime.evaluation.shapes import column_shapes
from anytime.model.manifest import Certificate, Guarantee, Stopped
from anytime.model.model import Model
from anytime.training.guarantee import bound, doubling_bound
from anytime_service.api.console import pages
from anytime_service.api.console.pages import sample
from models.present import present
from service.browser import BONN, classification, regression, trips
from service.serving import Running, changed, problem_in, small_model, trained_model

FILES = sorted([*(path.name for path in pages.STATIC.iterdir()), "charts.css"])


def promising(model: Model, **promise: Any) -> Model:
    return changed(model, guarantee=Guarantee(**promise))


def test_the_page_lets_nothing_in_but_what_comes_from_here(service: Running) -> None:
    response = service.get("/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
    assert [policy[f"{name}-src"] for name in ("default", "script", "connect")] == ["'none'", "'self'", "'self'"]
    assert {source for sources in policy.values() for source in sources.split()} <= {"'none'", "'self'", "data:"}


def test_the_page_has_no_inline_script_or_style_and_names_no_other_place(service: Running) -> None:
    for name in FILES:
        text = service.get(f"/console/{name}").text
        assert not re.search(r"(?:https?:)?//(?!www\.w3\.org/2000/svg)\w+\.\w+", text), name
    page = service.get("/").text
    assert re.findall(r"<script(?![^>]* src=)", page) == []
    assert not re.search(r"<style|\son\w+=|\sstyle=", page)


@pytest.mark.parametrize("path", ["/", "/docs", *(f"/console/{name}" for name in (*FILES, *pages.LIBRARIES))])
def test_a_file_is_packed_named_by_its_content_and_sent_once(service: Running, path: str) -> None:
    if path.removeprefix("/console/") in pages.LIBRARIES:
        pytest.importorskip("fastapi_offline", reason="no fastapi-offline beside the server")

    def get(accepted: str, **headers: str) -> httpx.Response:
        return httpx.get(service.url + path, headers={"Accept-Encoding": accepted} | headers)

    packed, plain = get("gzip"), get("gzip;q=0, br")
    assert [each.headers.get("content-encoding") for each in (packed, plain)] == ["gzip", None]
    assert (packed.content == plain.content, packed.headers["etag"] == plain.headers["etag"]) == (True, False)
    assert (packed.headers["vary"], packed.headers["x-content-type-options"]) == ("Accept-Encoding", "nosniff")
    again = get("gzip", **{"If-None-Match": f'"x", W/{packed.headers["etag"]}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", packed.headers["etag"])


@pytest.mark.parametrize("name", ["none.js", "..%2fpages.py", "%2e%2e", "__init__.py"])
def test_nothing_else_is_sent(service: Running, name: str) -> None:
    problem_in(service.get(f"/console/{name}"), 404)


def test_browsers_revalidate_the_page_and_its_own_files_and_cache_the_library(service: Running) -> None:
    pytest.importorskip("fastapi_offline", reason="no fastapi-offline next to the server")
    paths = ("/", "/console/console.js", "/console/swagger-ui.css")
    rules = [service.get(path).headers["cache-control"] for path in paths]
    assert rules == ["no-cache", "no-cache", "public, max-age=604800"]


@pytest.mark.parametrize("name", pages.LIBRARIES)
def test_without_its_package_a_library_is_a_problem_that_says_so(
    service: Running, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(pages, "distribution", Mock(side_effect=PackageNotFoundError))
    monkeypatch.setattr(pages, "assets", pages.assets.__wrapped__)
    problem = problem_in(service.get(f"/console/{name}"), 404)
    assert f"{pages.LIBRARIES[name][0]} is not installed" in problem["detail"]


def test_a_curve_has_every_prefix_in_training_and_held_out(service: Running) -> None:
    found = service.get("/models/brake/curve").json()
    for name, values in {
        "prefix": [0, 1, 2, 3],
        "group": [None, "speed", "hog", "lab"],
        "cost": [0.0, 1.0, 5.0, 10.0],
        "r2": pytest.approx([0.0, 0.2, 0.4, 0.6]),
        "cv_r2": pytest.approx([-1.0, 0.0, 0.5, 2 / 3]),  # of a variance of 1
        **dict.fromkeys(("guaranteed_r2", "certified_r2", "certified_share"), [None] * 4),
    }.items():
        assert [point[name] for point in found["points"]] == values, name
    assert (found["promise"], found["certified"]) == ("No guarantee is known.", None)


def test_the_shape_of_a_column_is_that_of_the_library_also_drawn_for_one_score(several: Running) -> None:
    model = trained_model()
    for options in ({}, {"prefix": model.steps}, {"score": 0}):
        shape = column_shapes(model, options.get("prefix"), "h1")[0]
        charts = [chart.svg() for chart in shape_charts(model, shape, (0,) if "score" in options else None)]
        found = several.get("/models/lens/shape", column="h1", **options).json()
        assert found == json.loads(json.dumps(asdict(shape))) | {"charts": charts}


@pytest.mark.parametrize(
    ("options", "field", "why"),
    [
        ({"column": "h9"}, "column", "there is no column 'h9' in prefix 3"),
        ({"column": "h9", "prefix": 3}, "column", "there is no column 'h9' in prefix 3"),
        ({"column": "h1", "prefix": 0}, "prefix", "there is no column 'h1' in prefix 0"),
        ({"column": "h1", "prefix": 9}, "prefix", "prefix is 9; expected 0 to 3"),
        ({"column": "h9", "prefix": 9}, "prefix", "prefix is 9; expected 0 to 3"),
        ({"column": "h9", "prefix": -1}, "prefix", "prefix is -1; expected 0 to 3"),
        ({"column": "h1", "score": 9}, "score", "score is 9; expected 0 to 0"),
        ({}, "column", ""),
    ],
)
def test_the_field_of_a_refused_shape_is_that_of_the_message(
    several: Running, options: dict[str, Any], field: str, why: str
) -> None:
    problem = problem_in(several.get("/models/lens/shape", **options), 422)
    assert (problem["field"], why in problem["detail"]) == (field, True)


def test_a_guarantee_is_a_floor_under_the_curve(model: Model) -> None:
    found = curve(promising(model, gamma=0.5))
    floor = [point.guaranteed_r2 for point in found.points]
    assert floor == pytest.approx([bound(0.5, cost, 10.0) * 0.6 for cost in (0.0, 1.0, 5.0, 10.0)])
    assert (
        "at least 39.35% of what the best set of groups of its cost explains (Theorem 3.2, gamma = 0.5)"
        in found.promise
    )
    for point in curve(classification()).points:
        low, penalised, r2 = map(present, (point.guaranteed_r2, point.penalised_r2, point.r2))
        assert low <= penalised <= r2 + 1e-12


def test_a_guarantee_of_doubling_ends_where_the_set_was_not_capable_of_it(model: Model) -> None:
    found = curve(promising(model, doubling_gamma=0.5, doubling_until=2))
    share = doubling_bound(0.5)
    # A quarter of 10 ms and of 5 ms buys the first step, a quarter of 1 ms buys none.
    assert [point.guaranteed_r2 for point in found.points] == [0.0, 0.0, pytest.approx(share * 0.2), None]
    assert "up to 5 ms" in found.promise
    assert "Theorem 4.3" in found.promise
    found = curve(promising(model, doubling_gamma=0.5, doubling_until=1))
    assert (
        found.promise == "No guarantee: the bound applies to budgets of at most 1 ms; a quarter of that buys no group."
    )
    assert curve(promising(model, why="the theorems cover fr and omp")).promise.endswith("fr and omp.")


def certifying(model: Model, *, left_out: tuple[str, ...] = ()) -> Model:
    """The model with bounds somewhat over its curve, the first of them exact; maybe one that was stopped."""
    reached = [0.0, *(step.explained_variance for step in model.manifest.steps)]
    bounds = tuple(F / share for F, share in zip(reached, (1.0, 1.0, 0.8, 0.96), strict=True))
    found = Certificate(bounds=bounds, exact=(True, True, False, False), nodes=9, seconds=2.0)
    stopped = Stopped(rule="epsilon", steps=3, epsilon=1.0, longest=0.5, left_out=left_out) if left_out else None
    return changed(model, certificate=found, stopped=stopped)


def test_a_certificate_is_a_line_over_the_curve(model: Model) -> None:
    found = curve(certifying(model))
    assert [point.certified_r2 for point in found.points] == pytest.approx([0.0, 0.2, 0.5, 0.625])
    assert [point.certified_share for point in found.points] == pytest.approx([1.0, 1.0, 0.8, 0.96])
    assert found.certified == (
        "Certified: no set of groups of the same cost explains more than the upper line (training data, minus the "
        "penalty), and every step explains at least 80 % of it."
    )
    assert "no set of selected groups" in str(curve(certifying(model, left_out=("other",))).certified)


def test_a_curve_without_cross_validation_errors_has_none(model: Model) -> None:
    steps = tuple(step.model_copy(update={"cv_error": None}) for step in model.manifest.steps)
    found = curve(changed(model, steps=steps, prior_error=None))
    assert all(point.cv_r2 is None and point.cv_error is None for point in found.points)


def test_a_sample_has_the_values_of_every_group_with_features_and_can_be_predicted(service: Running) -> None:
    found = service.get("/models/brake/sample", seed=3).json()
    assert {name: len(values) for name, values in found["groups"].items()} == {"speed": 1, "hog": 2, "lab": 1}
    assert (found["seed"], found["correlated"]) == (3, False)
    assert service.post({"groups": found["groups"]}).json()["complete"]


@pytest.mark.parametrize("build", [small_model, regression])
def test_a_seed_stands_for_one_row(build: Callable[[], Model]) -> None:
    assert sample(build(), 5) == sample(build(), 5)
    assert sample(build(), 5).groups != sample(build(), 6).groups


def test_samples_vary_as_the_training_data_did() -> None:
    learned = regression()
    moments: Any = learned.moments
    rows = np.array([np.concatenate([*sample(learned, seed).groups.values()]) for seed in range(300)])
    assert {*rows[:, 3]} == {0.0, 1.0}, "as in training"
    assert rows.mean(axis=0) == pytest.approx(learned.prefixes.mean, abs=0.3)
    assert rows[:, 3].mean() == pytest.approx(learned.prefixes.mean[3], abs=0.1)
    np.testing.assert_allclose(np.cov(rows.T), moments.scatter[:4, :4] / moments.weight, atol=0.3)


def test_a_column_of_categories_is_drawn_by_the_shares_of_its_levels() -> None:
    rows = [sample(trips(), seed).groups for seed in range(300)]
    ports = [row["ticket"][0] for row in rows]
    shares = {port: ports.count(port) / 300 for port in ports}
    assert shares == pytest.approx({"Oslo": 0.25, "Rome": 0.25, BONN: 0.25, "other": 0.25}, abs=0.1)
    assert {tuple(map(type, row["person"])) for row in rows} == {(str, int, bool)}
    assert {row["person"][1] for row in rows} == {1, 2, 4}


def test_duplicate_constant_and_missing_columns_do_not_stop_a_sample() -> None:
    learned = regression()
    redundant = learned.manifest.redundant.model_copy(update={"constant": ("v",)})
    assert sample(changed(learned, redundant=redundant), 1).groups["speed"] == (learned.prefixes.mean[0],)
    moments: Any = learned.moments
    scatter = moments.scatter.copy()
    scatter[1], scatter[:, 1] = scatter[2], scatter[:, 2]
    assert sample(replace(learned, moments=replace(moments, scatter=scatter)), 0).correlated


@pytest.mark.parametrize("seed", [-1, "x", 2**32])
def test_a_seed_that_cannot_be_is_a_problem(service: Running, seed: Any) -> None:
    assert problem_in(service.get("/models/brake/sample", seed=seed), 422)["field"] == "seed"
