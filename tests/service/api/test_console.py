"""What the console is sent: its files, a model's curve, and rows to try."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError
from typing import Any

import httpx
import numpy as np
import pytest

from anytime.evaluation.page.pictures import model_curve as curve
from anytime.evaluation.page.pictures import shape_charts
from anytime.evaluation.shapes import column_shapes
from anytime.model.manifest import Certificate, Guarantee, Stopped
from anytime.model.model import Model
from anytime.moments.moments import Moments
from anytime.training.guarantee import bound, doubling_bound
from anytime_service.api.console import pages
from anytime_service.api.console.pages import sample
from anytime_service.schemas.problem import MEDIA_TYPE
from anytime_service.settings import Settings
from service.browser import BONN, classification, regression, trips
from service.serving import Running, run_service, small_model, trained_model

FILES = sorted([*(path.name for path in pages.STATIC.iterdir()), "charts.css"])


@pytest.fixture(scope="module")
def learned() -> Model:
    return regression()


def promising(model: Model, **promise: Any) -> Model:
    manifest = model.manifest.model_copy(update={"guarantee": Guarantee(**promise)})
    return Model(manifest, model.prefixes, model.moments)


def test_the_page_lets_nothing_in_but_what_comes_from_here(service: Running) -> None:
    response = service.get("/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
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
    packed = httpx.get(service.url + path, headers={"Accept-Encoding": "gzip"})
    plain = httpx.get(service.url + path, headers={"Accept-Encoding": "gzip;q=0, br"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content  # httpx unpacks
    assert packed.headers["etag"] != plain.headers["etag"]
    assert packed.headers["vary"] == "Accept-Encoding"
    assert packed.headers["x-content-type-options"] == "nosniff"
    again = httpx.get(
        service.url + path, headers={"Accept-Encoding": "gzip", "If-None-Match": f'"x", W/{packed.headers["etag"]}'}
    )
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == packed.headers["etag"]


@pytest.mark.parametrize("name", ["none.js", "..%2fpages.py", "%2e%2e", "__init__.py"])
def test_nothing_else_is_sent(service: Running, name: str) -> None:
    response = service.get(f"/console/{name}")
    assert (response.status_code, response.headers["content-type"]) == (404, MEDIA_TYPE)


def test_browsers_revalidate_the_page_and_its_own_files_and_cache_the_library(service: Running) -> None:
    pytest.importorskip("fastapi_offline", reason="no fastapi-offline next to the server")
    assert service.get("/").headers["cache-control"] == "no-cache"
    assert service.get("/console/console.js").headers["cache-control"] == "no-cache"
    assert service.get("/console/swagger-ui.css").headers["cache-control"] == "public, max-age=604800"


@pytest.fixture
def without_libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(pages, "distribution", missing)
    pages.library_asset.cache_clear()
    yield
    pages.library_asset.cache_clear()


@pytest.mark.usefixtures("without_libraries")
@pytest.mark.parametrize("name", pages.LIBRARIES)
def test_without_its_package_a_library_is_a_problem_that_says_so(service: Running, name: str) -> None:
    response = service.get(f"/console/{name}")
    assert (response.status_code, response.headers["content-type"]) == (404, MEDIA_TYPE)
    assert f"{pages.LIBRARIES[name][0]} is not installed" in response.json()["detail"]


def test_a_curve_has_every_prefix_in_training_and_held_out(service: Running) -> None:
    found = service.get("/models/brake/curve").json()
    assert [(point["prefix"], point["group"], point["cost"]) for point in found["points"]] == [
        (0, None, 0.0),
        (1, "speed", 1.0),
        (2, "hog", 5.0),
        (3, "lab", 10.0),
    ]
    assert [point["r2"] for point in found["points"]] == pytest.approx([0.0, 0.2, 0.4, 0.6])
    assert [point["cv_r2"] for point in found["points"]] == pytest.approx([-1.0, 0.0, 0.5, 2 / 3])  # of a variance of 1
    assert [point["guaranteed_r2"] for point in found["points"]] == [None] * 4
    assert (found["promise"], found["certified"]) == ("No guarantee is known.", None)
    assert {(point["certified_r2"], point["certified_share"]) for point in found["points"]} == {(None, None)}


def test_the_shape_of_a_column_is_that_of_the_library(several: Running) -> None:
    model = trained_model()
    for prefix in (None, model.steps):
        options: dict[str, Any] = {} if prefix is None else {"prefix": prefix}
        found = several.get("/models/lens/shape", column="h1", **options).json()
        shape = column_shapes(model, prefix, "h1")[0]
        charts = [chart.svg() for chart in shape_charts(model, shape)]
        assert found == json.loads(json.dumps(asdict(shape))) | {"charts": charts}


def test_a_shape_is_drawn_for_one_score(several: Running) -> None:
    shape = column_shapes(trained_model(), None, "h1")[0]
    (drawn,) = several.get("/models/lens/shape", column="h1", score=0).json()["charts"]
    assert drawn == next(shape_charts(trained_model(), shape, (0,))).svg()


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
    refused = several.get("/models/lens/shape", **options)
    assert (refused.status_code, refused.json()["field"]) == (422, field)
    assert why in refused.json()["detail"]


def test_a_guarantee_is_a_floor_under_the_curve(model: Model) -> None:
    found = curve(promising(model, gamma=0.5))
    floor = [point.guaranteed_r2 for point in found.points]
    assert floor == pytest.approx([bound(0.5, cost, 10.0) * 0.6 for cost in (0.0, 1.0, 5.0, 10.0)])
    assert "at least 39.35% of what the best set of groups does (Theorem 3.2, gamma = 0.5)" in found.promise


def test_a_learned_models_floor_is_under_its_curve() -> None:
    found = curve(classification())
    for point in found.points:
        assert point.guaranteed_r2 is not None
        assert point.penalised_r2 is not None
        assert point.r2 is not None
        assert point.guaranteed_r2 <= point.penalised_r2 <= point.r2 + 1e-12


def test_a_guarantee_of_doubling_ends_where_the_set_was_not_capable_of_it(model: Model) -> None:
    found = curve(promising(model, doubling_gamma=0.5, doubling_until=2))
    share = doubling_bound(0.5)
    # A quarter of 10 ms and of 5 ms buys the first step, a quarter of 1 ms buys none.
    assert [point.guaranteed_r2 for point in found.points] == [0.0, 0.0, pytest.approx(share * 0.2), None]
    assert "up to 5 ms" in found.promise
    assert "Theorem 4.3" in found.promise
    found = curve(promising(model, doubling_gamma=0.5, doubling_until=1))
    assert found.promise == "No guarantee: the bound applies up to 1 ms, where a quarter of the budget buys no group."


def test_no_guarantee_says_why(model: Model) -> None:
    assert curve(promising(model, why="the theorems cover fr and omp")).promise.endswith("fr and omp.")


def certifying(model: Model, *, left_out: tuple[str, ...] = ()) -> Model:
    """The model with bounds somewhat over its curve, the first of them exact; maybe one that was stopped."""
    reached = [0.0, *(step.explained_variance for step in model.manifest.steps)]
    bounds = tuple(F / share for F, share in zip(reached, (1.0, 1.0, 0.8, 0.96), strict=True))
    found = Certificate(bounds=bounds, exact=(True, True, False, False), nodes=9, seconds=2.0)
    stopped = Stopped(rule="epsilon", steps=3, epsilon=1.0, longest=0.5, left_out=left_out) if left_out else None
    changes = {"certificate": found, "stopped": stopped}
    return Model(model.manifest.model_copy(update=changes), model.prefixes, model.moments)


def test_a_certificate_is_a_line_over_the_curve(model: Model) -> None:
    found = curve(certifying(model))
    assert [point.certified_r2 for point in found.points] == pytest.approx([0.0, 0.2, 0.5, 0.625])
    assert [point.certified_share for point in found.points] == pytest.approx([1.0, 1.0, 0.8, 0.96])
    assert found.certified == (
        "Certified: every set of groups of the same cost explains at most the upper line (training data, less the "
        "penalty), and every step explains at least 80 % of it."
    )
    assert "every set of selected groups" in str(curve(certifying(model, left_out=("other",))).certified)


def test_the_summary_has_the_certificate(model: Model, settings: Settings) -> None:
    sure = certifying(model)
    with run_service([sure], settings) as service:
        found = service.get("/models/brake").json()["certificate"]
    assert sure.manifest.certificate is not None
    assert found == sure.manifest.certificate.model_dump(mode="json")


def test_a_curve_without_cross_validation_errors_has_none(model: Model) -> None:
    steps = tuple(step.model_copy(update={"cv_error": None}) for step in model.manifest.steps)
    manifest = model.manifest.model_copy(update={"steps": steps, "prior_error": None})
    found = curve(Model(manifest, model.prefixes))
    assert all(point.cv_r2 is None and point.cv_error is None for point in found.points)


def test_a_sample_has_the_values_of_every_group_with_features_and_can_be_predicted(service: Running) -> None:
    found = service.get("/models/brake/sample", seed=3).json()
    assert {name: len(values) for name, values in found["groups"].items()} == {"speed": 1, "hog": 2, "lab": 1}
    assert (found["seed"], found["correlated"]) == (3, False)
    assert service.post({"groups": found["groups"]}).json()["complete"]


@pytest.mark.parametrize("build", [small_model, regression])
def test_a_seed_stands_for_one_row(build: Callable[[], Model]) -> None:
    model = build()
    assert sample(model, 5) == sample(model, 5)
    assert sample(model, 5).groups != sample(model, 6).groups


def test_samples_vary_as_the_training_data_did(learned: Model) -> None:
    assert learned.moments is not None
    rows = np.array([np.concatenate([*sample(learned, seed).groups.values()]) for seed in range(2000)])
    D = learned.moments.features
    covariance = learned.moments.scatter[:D, :D] / learned.moments.weight
    np.testing.assert_allclose(rows.mean(axis=0), learned.prefixes.mean, atol=0.15)
    np.testing.assert_allclose(np.cov(rows.T), covariance, atol=0.15)


def test_a_column_of_zeros_and_ones_stays_one(learned: Model) -> None:
    drawn = [sample(learned, seed).groups["lab"][0] for seed in range(300)]
    assert set(drawn) == {0.0, 1.0}
    assert drawn.count(1.0) / len(drawn) == pytest.approx(learned.prefixes.mean[3], abs=0.1)


def test_a_constant_column_is_what_it_was(learned: Model) -> None:
    redundant = learned.manifest.redundant.model_copy(update={"constant": ("v",)})
    manifest = learned.manifest.model_copy(update={"redundant": redundant})
    constant = Model(manifest, learned.prefixes, learned.moments)
    assert sample(constant, 1).groups["speed"] == (learned.prefixes.mean[0],)


def test_a_column_of_categories_is_drawn_by_the_shares_of_its_levels() -> None:
    model = trips()
    rows = [sample(model, seed).groups for seed in range(300)]
    ports = [row["ticket"][0] for row in rows]
    shares = {port: ports.count(port) / 300 for port in ports}
    assert shares == pytest.approx({"Oslo": 0.25, "Rome": 0.25, BONN: 0.25, "other": 0.25}, abs=0.1)
    assert {tuple(map(type, row["person"])) for row in rows} == {(str, int, bool)}
    assert {row["person"][1] for row in rows} == {1, 2, 4}


def test_duplicate_columns_and_gaps_do_not_stop_a_sample(learned: Model) -> None:
    assert isinstance(learned.moments, Moments)
    scatter = learned.moments.scatter.copy()
    scatter[1], scatter[:, 1] = scatter[2], scatter[:, 2]
    doubled = Moments(4, 1, 400, 400.0, learned.moments.mean, scatter, learned.moments.fill)
    assert sample(Model(learned.manifest, learned.prefixes, doubled), 0).correlated


@pytest.mark.parametrize("seed", [-1, "x", 2**32])
def test_a_seed_that_cannot_be_is_a_problem(service: Running, seed: Any) -> None:
    response = service.get("/models/brake/sample", seed=seed)
    assert (response.status_code, response.json()["field"]) == (422, "seed")
