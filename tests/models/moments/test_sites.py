"""Sites whose rows lack a class, have one class only, or have no event yet join as one table of all rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from anytime.cli.main import main
from anytime.moments.files import StoredMoments

GROUPS = "groups:\n  - {name: A, features: [a], cost: 1}\n  - {name: B, features: [b], cost: 1}\n"
STATED = {"two": "no,yes", "three": "a,b,c", "numbers": "0,1,2"}


def _table(kind: str) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    score = X @ [2.0, -1.0]
    of = {
        "two": np.where(score > 0, "yes", "no"),
        "three": np.where(score > 1, "a", np.where(score < -1, "c", "b")),
        "numbers": np.digitize(score, [-1.0, 1.0]),
        "events": np.maximum(score.round(), 0.0),
    }
    return pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": of[kind]})


def _run(*args: object) -> None:
    assert main([str(each) for each in args]) == 0


@pytest.mark.parametrize("stated", [False, True])
@pytest.mark.parametrize("kind", ["two", "three", "numbers", "events"])
def test_sites_that_lack_classes_join_as_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, *, stated: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("g.yaml").write_text(GROUPS)
    table = _table(kind)
    classes = ["--classes", STATED[kind]] if stated and kind in STATED else []
    task = ["--task", "multiclass"] if kind == "numbers" else []
    options = ["--groups", "g.yaml", "--target", "y", "--folds", "0", *task, *classes]
    sites = [table[table.y == value] for value in sorted(set(table.y))]
    for i, site in enumerate([*sites, table]):
        site.to_csv(f"{i}.csv", index=False)
        _run("moments", f"{i}.csv", *options, "--out", f"{i}.moments")
    _run("moments", *(f"{i}.moments" for i in range(len(sites))), "--out", "sites.moments")
    _run("moments", *(f"{i}.csv" for i in range(len(sites))), *options, "--out", "tables.moments")
    whole = StoredMoments.load(f"{len(sites)}.moments")
    for name in ("sites", "tables"):
        joined = StoredMoments.load(f"{name}.moments")
        assert joined.target == whole.target
        assert joined.total.rows == whole.total.rows
        np.testing.assert_allclose(joined.total.mean, whole.total.mean, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(joined.total.scatter, whole.total.scatter, rtol=1e-10, atol=1e-9)
