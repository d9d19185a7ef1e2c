"""Published figures and real prices: measures of the protocols, codes for peers, verdicts, and what a test is worth."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from anytime.groups import load_groups
from benchmarks.peers import environments, published, report
from benchmarks.peers.environments import Environment, prepared
from benchmarks.peers.published import PROTOCOLS, Protocol, Rows, curve, ndcg, rerun
from benchmarks.peers.quality import QualitySet, Table

ROWS = 300


@pytest.fixture(autouse=True)
def no_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Environment:
        return prepared(name) if name == "ours" else Environment(name, why="a test installs no peer")

    for module in (environments, report):
        monkeypatch.setattr(module, "prepared", absent)


def small(*, ranked: bool = False) -> Rows:
    """A number decides, a text helps; two splits."""
    rng = np.random.default_rng(0)
    number, text = rng.normal(size=ROWS), rng.choice(["a", "b"], ROWS)
    y = (number + (text == "a") + rng.normal(0, 0.3, ROWS) > 0.5).astype(np.intp)
    order = np.arange(ROWS)
    splits = [(order[100:], order[:100]), (order[:200], order[200:])]
    query = np.repeat(np.arange(ROWS // 5), 5) if ranked else None
    return Rows(pd.DataFrame({"text": text, "number": number}), y, splits, None, query)


def test_ndcg_is_that_of_the_protocol() -> None:
    y, query = np.array([0.0, 2.0, 1.0, 0.0, 0.0, 1.0, 0.0]), np.array([4, 4, 4, 2, 2, 7, 7])
    scores = np.array([3.0, 1.0, 2.0, 5.0, 1.0, 0.5, 0.5])
    second, third = 1 / np.log2(3), 1 / np.log2(4)
    expected = [1.0, (second + 3 * third) / (3 + second), second]  # none is relevant; by rank; a tie costs a rank
    np.testing.assert_allclose(ndcg(y, scores, query), expected)
    y = np.array([1.0, *np.zeros(10)])
    assert ndcg(y, np.arange(11.0), np.zeros(11)).tolist() == [0.0], "the eleventh rank does not count"


@pytest.mark.parametrize("ranked", [False, True])
def test_ours_has_the_measure_of_every_unit_within_each_budget(ranked: bool) -> None:
    budgets, found = curve(small(ranked=ranked), {})
    assert budgets.tolist() == [0.0, 1.0, 2.0]
    assert found.shape == (3, 40 if ranked else 2)
    assert found[0].mean() < found[1].mean() < found[2].mean()
    assert found[2].mean() > 0.9


def test_texts_are_codes_and_nominal_for_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    scored = Mock(side_effect=lambda *given, **_: given[3].T[1:])
    monkeypatch.setattr(published, "peer_scores", scored)
    assert min(rerun(small(), "ebm")) > 0.8
    (_, X, _, _, columns), options = scored.call_args
    assert set(X[:, 0]) == {0.0, 1.0}
    assert (columns.tolist(), options["nominal"], options["classes"]) == ([[True, True]], [0], 2)


def test_the_section_says_what_is_absent_and_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = Protocol("rows", "a paper", "It is small.", "AUC", 0.9, {"trees": 0.7}, "ebm", lambda _: small())
    monkeypatch.setattr(published, "PROTOCOLS", {"toy": toy, "telco": PROTOCOLS["telco"]})
    found = published.published(tmp_path, quick=False)
    verdicts = [each.verdict for each in found.findings]
    assert (verdicts[:3], verdicts[4:]) == (["absent", "absent", "holds"], ["absent"])
    assert "telco: not found" in found.findings[-1].text
    [sheet] = found.sheets
    assert [row[0] for row in sheet.rows] == [*published.VARIANTS, "trees, printed"]
    assert "toy: rows. Source: a paper. It is small." in found.text
    assert "trees, printed</span>" in found.pictures[0].html


def test_a_test_is_worth_what_it_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = load_groups(
        {name: {"features": [name], "cost": cost} for name, cost in (("age", 0), ("lab", 3), ("x", 2))}
    )

    def split(_name: str, _data: Path, seed: int) -> QualitySet:
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(ROWS, 3))
        whole = Table(X, (X[:, 0] + X[:, 1] + rng.normal(0, 0.5, ROWS) > 0).astype(np.intp))
        parts = (whole.at(rows) for rows in np.split(np.arange(ROWS), [150, 200]))
        return QualitySet("small", "", ("AUC",), 2, groups, *parts)

    monkeypatch.setattr(published, "load", split)
    found = published.prices(Path(), quick=True)
    assert [row[:2] for row in found.sheets[0].rows] == [("lab", "3.00"), ("x", "2.00")]
    lab, x = ([float(str(cell).split()[0]) for cell in row[2:]] for row in found.sheets[0].rows)
    assert min(lab) > 0.1 > max(x)
    assert [finding.verdict for finding in found.findings] == ["absent"]
