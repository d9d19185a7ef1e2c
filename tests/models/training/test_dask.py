"""Training on a Dask cluster of real processes comes to what training here comes to, even where a worker dies."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anytime.cli.main import main
from anytime.data.dataset import Dataset
from anytime.data.formats import open_table
from anytime.data.survey import settle_target, survey, surveyed
from anytime.errors import EnvironmentFailure
from anytime.families import family_of
from anytime.folds import FoldAssigner
from anytime.groups import ColumnBasis, FeatureGroups, load_groups
from anytime.loaded import load
from anytime.moments.moments import Gram, Moments
from anytime.training.dask import Cluster, ClusterDesign, ClusterObserved, spans
from anytime.training.fit import fit
from anytime.training.likelihood import Observations, Observed
from anytime.training.options import Options
from anytime.training.pairs import Screened
from anytime.types import FamilyName
from models.commands import Capture, refusal
from models.present import present
from models.refusals import assert_refused

dask = pytest.importorskip("dask", reason="no Dask (pip install 'anytime-linear[dask]')")
distributed = pytest.importorskip("distributed", reason="no Dask (pip install 'anytime-linear[dask]')")

ROWS, FEATURES = 6_000, 12
NAMES = [f"x{j}" for j in range(FEATURES)]


def groups(size: int = 2) -> FeatureGroups:
    starts = range(0, FEATURES, size)
    return load_groups(
        {"groups": [{"name": f"g{j}", "features": NAMES[j : j + size], "cost": 1.0 + j} for j in starts]}
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of Parquet files, of several row groups each."""
    folder = tmp_path_factory.mktemp("table")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, FEATURES))
    X[:, 1:] += 0.6 * X[:, :-1]
    score = X @ np.linspace(1, -1, FEATURES)
    frame = pd.DataFrame(X, columns=NAMES)
    frame["x3"] += 1e4
    frame.loc[::50, "x5"] = np.nan
    frame["y"] = score + rng.normal(size=ROWS)
    frame.loc[::77, "y"] = np.nan
    frame["kind"] = np.where(score + rng.logistic(size=ROWS) > 0, "up", "down")
    frame["grade"] = np.digitize(score + rng.logistic(size=ROWS), [-1.0, 1.0]).astype(str)
    frame["amount"] = rng.gamma(2.0, np.exp(0.3 * score))
    frame["n"] = rng.poisson(frame["amount"])
    frame["q"] = rng.integers(0, 300, size=ROWS)
    frame["w"] = rng.random(ROWS)
    for number, start in enumerate(range(0, ROWS, 2_500)):
        frame[start : start + 2_500].to_parquet(folder / f"{number}.parquet", row_group_size=700)
    return folder


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    """Two workers, each a process with one thread."""
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as local,
        distributed.Client(local) as client,
    ):
        yield client


@pytest.fixture
def cluster(running: Any) -> Cluster:
    running.wait_for_workers(2, timeout=60)
    return Cluster(running, gathered_values=0)


def dataset(folder: Path, target: str = "y", size: int = 2, **options: Any) -> Dataset:
    table = open_table(folder)
    found = survey(table, [target], drop_missing=True)
    return Dataset(table, groups(size), settle_target(found), drop_missing=True, **options)


def assert_same(found: list[Moments], expected: list[Moments]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert (a.rows, a.missing) == (b.rows, b.missing)
        ours = a.refilled(b.fill)
        scale = np.sqrt(np.diagonal(b.scatter))
        assert np.abs(ours.mean - b.mean).max() <= 1e-12 * np.abs(b.mean).max()
        assert (np.abs(ours.scatter - b.scatter) <= 1e-10 * np.outer(scale, scale)).all()
        assert a.weight == pytest.approx(b.weight, rel=1e-12)


@pytest.mark.parametrize("how", ["rows", "queries", "classes", "whole"])
def test_moments_are_those_of_one_process(how: str, cluster: Cluster, folder: Path) -> None:
    options: dict[str, Any] = {"weights": "w"} | ({"query": "q"} if how == "queries" else {})
    data = dataset(folder, "kind" if how == "classes" else "y", **options)
    folds = 1 if how == "whole" else 3
    reported: list[int] = []
    found = cluster.moments(data, folds, seed=5, stratified=how == "classes", progress=reported.append)
    expected = data.moments(folds, seed=5, stratified=how == "classes")
    assert_same(found, expected)
    assert sum(reported) == sum(part.rows for part in expected)
    assert len(reported) == 8
    ours, theirs = (fit(parts, groups(), Options(alpha=1e-3)) for parts in (found, expected))
    assert ours.sequence.columns.tolist() == theirs.sequence.columns.tolist()
    np.testing.assert_allclose(ours.prefixes.packed, theirs.prefixes.packed, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("limit", [300, 10**6])
def test_workers_draw_the_rows_that_one_process_draws(limit: int, cluster: Cluster, folder: Path) -> None:
    data = dataset(folder, weights="w")
    ours, theirs = Screened(limit, 7), Screened(limit, 7)
    assert_same(cluster.moments(data, 3, drawn=ours), data.moments(3))
    rows = sum(len(block.Y) for block in theirs.drawing_from(data.blocks(FoldAssigner(3, 0, stratified=False))))
    found, expected = ours.sample(), theirs.sample()
    assert found.rows == expected.rows == min(limit, rows)
    for name, values in expected.columns.items():
        np.testing.assert_array_equal(found.columns[name], values)


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_columns_with_bases_come_to_the_model_of_one_process(
    family: FamilyName, cluster: Cluster, folder: Path
) -> None:
    first = groups(4).groups[0]
    several = (first.model_copy(update={"features": (*first.features, "grade")}), *groups(4).groups[1:])
    plain = dataset(folder, "kind" if family == "binomial" else "y", 4)
    stated = FeatureGroups(groups=several, bases={"grade": ColumnBasis(basis="categories")})
    columns = plain.target.columns
    # By rows, few terms: each step of a likelihood takes many passes.
    basis, terms = ("auto", 8) if family == "gaussian" else ("hinge:1", 2)
    data = replace(plain, groups=surveyed(plain.table, stated, columns, option=basis, drop_missing=True, seed=2)[0])
    parts = data.moments(2)
    found = cluster.moments(data, 2)
    assert found[0].features == FEATURES * terms + 3, "the knots of each, and three grades"
    assert_same(found, parts)
    here = Observed(data.blocks(FoldAssigner(2, 0, stratified=False)), data.target)
    rows: list[Observations | None] = [None, None] if family == "gaussian" else [here, cluster.observed(data, 2)]
    options = Options(alpha=1e-2, family=family)
    one, other = (fit(part, data.groups, options, seen) for part, seen in zip((parts, found), rows, strict=True))
    assert one.expansion.terms.features == other.expansion.terms.features
    assert {"grade=0", "x5 is missing"} < set(one.expansion.terms.features)
    digits = 1e-9 if family == "gaussian" else 1e-6
    np.testing.assert_allclose(other.prefixes.packed, one.prefixes.packed, rtol=digits, atol=digits)


@pytest.mark.parametrize(
    ("target", "family", "alpha"),
    [
        ("kind", "binomial", 0.1),
        ("grade", "multinomial", 1e-3),
        pytest.param("amount", "gamma", 0.1, marks=pytest.mark.heavy),
        pytest.param("n", "negative-binomial:0.5", 1e-3, marks=pytest.mark.heavy),
    ],
)
def test_a_likelihood_is_that_of_one_process(
    target: str, family: FamilyName, alpha: float, cluster: Cluster, folder: Path
) -> None:
    size, folds = 6, 2 if alpha == 0.1 else 1  # few steps: each takes a hundred passes
    data = dataset(folder, target, size, weights="w")
    data = replace(data, target=settle_target(survey(data.table, [target], drop_missing=True), "auto", family))
    parts = data.moments(folds, stratified=True)
    options = Options(alpha=alpha, family=family, nested=folds == 2)
    here = Observed(data.blocks(FoldAssigner(folds, 0, stratified=True)), data.target)
    expected = fit(parts, groups(size), options, here)
    found = fit(parts, groups(size), options, cluster.observed(data, folds, stratified=True))
    assert found.sequence.columns.tolist() == expected.sequence.columns.tolist()
    np.testing.assert_allclose(found.prefixes.packed, expected.prefixes.packed, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(present(found.learned.deviance), present(expected.learned.deviance), rtol=1e-10)
    assert found.alphas.tolist() == expected.alphas.tolist()


def test_the_client_fits_a_small_table_itself(running: Any, folder: Path) -> None:
    data = dataset(folder, "kind", 6)
    gathered = Cluster(running).observed(data, 3, stratified=True)
    assert isinstance(gathered, Observed)
    assert isinstance(Cluster(running, gathered_values=ROWS).observed(data, 3, stratified=True), ClusterObserved)
    here = Observed(data.blocks(FoldAssigner(3, 0, stratified=True)), data.target)
    parts, options = data.moments(3, stratified=True), Options(alpha="cv", family="binomial")
    found, expected = (fit(parts, groups(6), options, rows) for rows in (gathered, here))
    np.testing.assert_allclose(found.prefixes.packed, expected.prefixes.packed, rtol=1e-6, atol=1e-8)


def kill_one(client: Any) -> None:
    """End a worker's process as the kernel does where memory is gone; its nanny starts another."""
    os.kill(min(client.run(os.getpid).values()), signal.SIGKILL)


def test_a_worker_that_dies_on_the_way_costs_time_and_the_rows_that_it_held_are_read_again(
    cluster: Cluster, running: Any, folder: Path
) -> None:
    data, reported = dataset(folder, "kind"), list[int]()
    expected = data.moments(3)
    moments = Moments.merged(expected)
    design = cluster.observed(data).design(Gram.of(moments), family_of("binomial"), moments.weight)
    view = design.view(np.arange(FEATURES))
    theta = np.random.default_rng(0).normal(size=(FEATURES + 1, 1))
    before = view.evaluate(view.predictors(theta), hessian=True)

    def progress(rows: int) -> None:
        if not reported:
            kill_one(running)
        reported.append(rows)

    assert_same(cluster.moments(data, 3, progress=progress), expected)
    assert sum(reported) == sum(part.rows for part in expected)
    after = view.evaluate(view.predictors(theta), hessian=True)
    assert after.loss == pytest.approx(before.loss, rel=1e-12)
    np.testing.assert_allclose(after.score, before.score, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(present(after.hessian), present(before.hessian), rtol=1e-12, atol=1e-12)


def test_the_command_trains_on_a_cluster_as_it_does_here(
    cluster: Cluster, running: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    Path("groups.json").write_text(groups().model_dump_json())
    command = ["train", folder.name, "--groups", "groups.json", "--target", "y"]
    assert main([*command, "--out", str(tmp_path / "here.safetensors")]) == 0
    remote = ["--backend", "dask", "--scheduler", running.scheduler.address]
    assert main([*command, "--out", str(tmp_path / "there.safetensors"), *remote]) == 0
    here, there = load(tmp_path / "here.safetensors"), load(tmp_path / "there.safetensors")
    assert [s.group for s in here.manifest.steps] == [s.group for s in there.manifest.steps]
    np.testing.assert_allclose(here.prefixes.packed, there.prefixes.packed, rtol=1e-8, atol=1e-11)
    assert main(["moments", folder.name, *command[2:], "--out", str(tmp_path / "there.moments"), *remote]) == 0


def test_what_is_wrong_with_the_rows_is_told_in_one_line(cluster: Cluster, tmp_path: Path) -> None:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(100, FEATURES)), columns=NAMES)
    frame["y"] = 1.0 * np.arange(100)
    frame.loc[60, "x2"] = np.inf
    frame.to_parquet(tmp_path / "bad.parquet", row_group_size=30)
    assert_refused(lambda: cluster.moments(dataset(tmp_path / "bad.parquet")), "'x2' holds 1 infinite value")


def _fatal(*_: object) -> None:
    os._exit(1)


def test_a_pass_that_ends_its_worker_is_told_in_one_line(folder: Path) -> None:
    data = dataset(folder, "kind")
    moments = Moments.merged(data.moments())
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(**options) as local,
        distributed.Client(local) as client,
    ):
        observed = Cluster(client, gathered_values=0).observed(data)
        design = observed.design(Gram.of(moments), family_of("binomial"), moments.weight)
        assert isinstance(design, ClusterDesign)
        assert_refused(lambda: list(design.over(_fatal)), "several workers died", error=EnvironmentFailure)


def test_a_scheduler_that_is_lost_is_told_in_one_line(folder: Path) -> None:
    local = distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0")
    with distributed.Client(local) as client:
        data, read = dataset(folder), list[int]()

        def progress(rows: int) -> None:
            if not read:
                local.close()
            read.append(rows)

        lost = "the connection to the Dask scheduler is lost"
        assert_refused(lambda: Cluster(client).moments(data, progress=progress), lost, error=EnvironmentFailure)


def test_workers_read_the_types_that_training_found(cluster: Cluster, tmp_path: Path) -> None:
    """The part of a worker may hold digits only, where the whole column is text."""
    names = np.where(np.arange(400) < 100, "7", "x7")
    frame = pd.DataFrame({"x0": np.arange(400.0), "code": names, "y": np.arange(400) % 3})
    frame.to_csv(tmp_path / "t.csv", index=False)
    table = open_table(tmp_path / "t.csv")
    content = {"groups": [{"name": "g", "features": ["x0", "code"], "cost": 1.0}]}
    bases, found = surveyed(table, load_groups(content), ["y"])
    data = Dataset(table, bases, settle_target(found))
    read = pickle.loads(pickle.dumps(data))
    assert read.types["code"] == "text"
    assert_same(cluster.moments(read, 2), data.moments(2))


@pytest.mark.parametrize(
    ("starts", "most", "expected"),
    [
        ((0,), 8, [(0, None)]),
        ((0, 10, 20), 8, [(0, 10), (10, 20), (20, None)]),
        ((0, 10, 20, 30), 2, [(0, 20), (20, None)]),
    ],
)
def test_parts_are_whole_row_groups(starts: tuple[int, ...], most: int, expected: list[tuple[int, Any]]) -> None:
    assert spans(starts, most) == expected


@pytest.mark.usefixtures("desk")
def test_options_that_do_not_go_together(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    pd.DataFrame({"x": range(9), "y": np.arange(9.0)}).to_csv("t.csv", index=False)
    command = ["train", "t.csv", "--target", "y", "--out", "m.safetensors"]
    for options, words in (
        (["--backend", "dask"], "add --scheduler"),
        (["--scheduler", "tcp://localhost:1"], "requires --backend dask"),
        (["--backend", "dask", "--scheduler", "nonsense://"], "no Dask scheduler"),
    ):
        assert words in refusal(capsys, *command, *options)
    monkeypatch.setattr("anytime.training.dask.CONNECT_S", 0.5)
    silent = ["--backend", "dask", "--scheduler", "tcp://localhost:1"]
    assert "no Dask scheduler answers at 'tcp://localhost:1'" in refusal(capsys, *command, *silent, code=1)


def test_a_cluster_without_workers_is_refused(folder: Path) -> None:
    with (
        distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as local,
        distributed.Client(local) as client,
        pytest.raises(EnvironmentFailure, match="no workers"),
    ):
        Cluster(client).moments(dataset(folder))
