"""The comparison of two commits finds what differs, ignores what also differs between two runs, and sorts by size."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from same import tables
from same.compare import SCREENFUL, differences, masked, summary
from same.library import BOTH, Probe, options
from same.service import CASES

ANSWER = {
    "service/POST JSON/one": [
        {
            "status": "HTTP/1.1 200 OK",
            "headers": [["date", "Sat, 28 Nov 2026 01:44:29 GMT"], ["x-request-id", "0dd13f6801d3-9"]],
            "body": {"prediction": 163.58, "reason": "end", "elapsed_ms": 1.13, "version": "8d2461c74ee6d507"},
        },
        "kept",
    ]
}


def changed(**fields: Any) -> dict[str, Any]:
    """The exchange with other fields in its body."""
    response, end = ANSWER["service/POST JSON/one"]
    assert isinstance(response, dict)
    return {"service/POST JSON/one": [response | {"body": response["body"] | fields}, end]}


def test_a_number_differs_beyond_the_tolerance_and_not_below() -> None:
    (found,) = differences(ANSWER, changed(prediction=163.58 * (1 + 1e-6)), tolerance=1e-7)
    assert found.size == pytest.approx(1e-6, rel=1e-3)
    assert found.kind == "service: body.prediction"
    assert differences(ANSWER, changed(prediction=163.58 * (1 + 1e-6)), tolerance=1e-5) == []


def test_a_list_of_numbers_is_compared_relative_to_its_largest() -> None:
    assert differences({"c": [1e6, 1e-9]}, {"c": [1e6, 2e-9]}) == []
    (found,) = differences({"c": [1e6, 2.0]}, {"c": [1e6, 3.0]})
    assert found.size == pytest.approx(1e-6)
    assert (found.base, found.here) == ("2.0", "3.0")


@pytest.mark.parametrize(
    ("base", "here"),
    [(1.0, math.nan), (math.inf, 1.0), (1, True), (1, "1"), (None, 0), ([1.0], [1.0, 2.0]), ("a", "b")],
)
def test_values_of_another_kind_differ(base: Any, here: Any) -> None:
    (found,) = differences({"c": base}, {"c": here})
    assert found.size == math.inf
    assert differences({"c": base}, {"c": base}) == []


def test_a_field_a_header_and_an_ending_that_change_are_found() -> None:
    response, _ = ANSWER["service/POST JSON/one"]
    assert isinstance(response, dict)
    fields = differences(ANSWER, changed(reason="budget", note=None))
    assert [(each.kind, each.base, each.here) for each in fields] == [
        ("service: body.reason", "'end'", "'budget'"),
        ("service: body.note", "absent", "None"),
    ]
    headers = {"service/POST JSON/one": [response | {"headers": [["Date", "x"], response["headers"][1]]}, "kept"]}
    assert [each.kind for each in differences(ANSWER, headers)] == ["service: headers"] * 2
    (ending,) = differences(ANSWER, {"service/POST JSON/one": [response, "closed"]})
    assert (ending.base, ending.here) == ("'kept'", "'closed'")


def test_another_order_of_fields_is_found() -> None:
    (found,) = differences({"c": {"a": 1, "b": 2}}, {"c": {"b": 2, "a": 1}})
    assert "order" in found.base
    assert differences({"a": 1, "b": 2}, {"b": 2, "a": 1}) == [], "the order of the cases does not matter"


def test_times_and_versions_are_ignored() -> None:
    assert differences(ANSWER, changed(elapsed_ms=7.0, version="0123456789abcdef")) == []
    later = [["date", "Mon, 30 Nov 2026 01:44:29 GMT"], ["x-request-id", "aaaaaaaaaaaa-1f"]]
    response, end = ANSWER["service/POST JSON/one"]
    assert isinstance(response, dict)
    assert differences(ANSWER, {"service/POST JSON/one": [response | {"headers": later}, end]}) == []
    assert len(differences(ANSWER, {"service/POST JSON/one": [response | {"headers": later[:1]}, end]})) == 1


def test_masking_keeps_everything_else() -> None:
    kept = ['anytime_predictions_total{model="m"} 3.0', "prefix 3 of 6, cost 21.5", "/sessions", "deadbeef", "0x12"]
    assert list(map(masked, kept)) == kept
    assert masked('anytime_loop_lag_seconds_sum{le="1"} 0.5') == 'anytime_loop_lag_seconds_sum{le="1"}'
    assert masked("model m 8d2461c74ee6d507: alpha 0.03") == "model m VERSION: alpha 0.03"
    assert masked("/sessions/PZTFhG6nYPkl0PosdQwrww/predict") == "/sessions/SESSION/predict"
    assert masked("http://127.0.0.1:8765 from /tmp/tmpab12cd_9/m.csv") == "http://127.0.0.1:PORT from FOLDER/m.csv"


def test_numbers_in_a_text_are_compared_as_numbers() -> None:
    (found,) = differences({"c": "alpha 0.030, 3 steps"}, {"c": "alpha 0.031, 3 steps"})
    assert found.size == pytest.approx(0.001 / 0.031)
    assert differences({"c": "alpha 0.030"}, {"c": "alpha 0.030000000000001"}) == []
    (found,) = differences({"c": "3 steps"}, {"c": "3 prefixes"})
    assert found.size == math.inf


def test_missing_cases_come_first_then_numbers_by_size() -> None:
    base = {"a": {"x": 1.0}, "b": {"x": 1.0}, "c": {"x": 1.0}}
    found = differences(base, {"a": {"x": 1.001}, "b": {"x": 1.5}, "d": {"x": 1.0}})
    assert [each.where for each in found] == ["c", "d", "b .x", "a .x"]
    assert (found[0].here, found[1].base) == ("absent", "absent")


def test_a_summary_is_a_screenful_with_one_entry_for_each_kind() -> None:
    many = {f"command/t/{place}": {f"field{place % 40}": place} for place in range(400)}
    lines = summary(
        differences(many, {name: {key: -1 - value for key, value in case.items()} for name, case in many.items()})
    )
    assert len(lines) == 2 * SCREENFUL + 2
    assert lines[-1] == "... and 20 more kinds"
    assert summary([]) == []


def test_there_are_enough_cases(tmp_path: Path) -> None:
    tables.write(tmp_path, tmp_path / "none")
    found = tables.tasks(tmp_path)
    assert len(found) == 7
    assert len(set(BOTH.strip().split("\n"))) >= 60
    for task in found:
        names = [name for name, _ in Probe(task, tmp_path).cases()]
        assert len(names) == len(set(names))
        assert min(sum(name.startswith(door) for name in names) for door in ("command/", "estimator/")) >= 60
    assert 7 * len(CASES) >= 300


def test_options_of_the_command_line_are_parameters_of_the_estimators() -> None:
    assert options("--method omp --cost-blind --folds 3 --alpha 0.1 --seed 1") == {
        "method": "omp",
        "cost_blind": True,
        "cv": 3,
        "alpha": 0.1,
        "random_state": 1,
    }
