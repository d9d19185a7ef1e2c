"""The table of limits: complete in the guide, and its limits hold on a server."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from anytime.errors import LONGEST_COMPARED, suggestion
from anytime.groups import COST_TOLERANCE
from anytime.inference import subsets
from anytime.inference.prediction import Prediction
from anytime.inference.subsets import arrived_model, cached_arrived_model
from anytime_service.core.service import PredictionService
from anytime_service.http.exchange import STORE_REPLY, Reply
from anytime_service.keys import KeyRing
from anytime_service.limits.table import BASE_RATE_BYTES, BASE_RATES, FIELDS, HEADERS, NAME_LENGTH, NAMES, TABLE
from anytime_service.models.registry import ModelRegistry
from anytime_service.routes import find
from anytime_service.server import shedding
from anytime_service.server.shedding import LoadShedding
from anytime_service.settings import Settings
from guides import ROOT
from models.present import present
from service.serving import Running, small_model, trained_model
from waiting import until

SETTINGS = Settings(port=0, header_timeout_s=30.0)


def shown(limit: int | str) -> str:
    return f"`{limit.upper()}`" if isinstance(limit, str) else f"{limit:,}"


def test_the_guide_has_the_table_of_limits() -> None:
    text = (ROOT / "deploy" / "SETTINGS.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", text.split("## Limits of requests")[1], re.MULTILINE
    )
    assert rows[1:] == [(each.element, shown(each.limit), each.reaction, each.counted) for each in TABLE]


@pytest.mark.parametrize(("count", "status"), [(int(HEADERS), b"200"), (int(HEADERS) + 1, b"431")])
def test_a_request_has_a_bounded_number_of_headers(service: Running, count: int, status: bytes) -> None:
    head = b"GET /livez HTTP/1.1\r\nHost: test\r\n" + b"ab:cd\r\n" * (count - 1) + b"\r\n"
    with service.connect() as connection:
        connection.send(head)
        assert connection.file.readline().split()[1] == status


def test_a_head_in_part_counts_as_stored_until_the_connection_ends(service: Running) -> None:
    before = service.metric("anytime_held_bytes")
    with service.connect() as connection:
        connection.send(b"GET /livez HTTP/1.1\r\nHost: test\r\n" + b"ab:cd\r\n" * 50)
        until(lambda: service.metric("anytime_held_bytes") >= before + 50 * len(b"ab:cd\r\n"))
    until(lambda: service.metric("anytime_held_bytes") == before)


def test_names_are_bounded_before_they_are_looked_up(service: Running) -> None:
    for names in (["y" * (int(NAME_LENGTH) + 1)], range(int(NAMES) + 1)):
        groups = {str(name): {"dtype": "f8", "values": b""} for name in names}
        answer = service.post_packed("/predict", {"groups": groups})
        assert (answer.status_code, "send at most " in answer.json()["detail"]) == (400, True)


def test_the_fields_of_a_json_message_are_counted_before_it_is_decoded(service: Running) -> None:
    answer = service.post({"groups": {f"{i}": [] for i in range(int(FIELDS) + 1)}})
    assert (answer.status_code, "colons" in answer.json()["detail"]) == (413, True)


def test_an_unknown_name_is_compared_with_few_names_and_by_its_beginning() -> None:
    known = [f"group-{i}" for i in range(20_000)]
    for unknown, names, begins in (
        ("gruop-123", known, "did you mean 'group-123'?"),
        ("y" * 10_000_000, known, "known: 'group-0'"),
        ("a" * LONGEST_COMPARED + "b" * 1000, ["a" * LONGEST_COMPARED], "did you mean"),
    ):
        assert suggestion(unknown, names).startswith(begins)


def literal_usable(prediction: Prediction, budget: float) -> frozenset[str]:
    """Groups in sequence order, whose joint cost is added up again for each."""
    groups, selected, paid = prediction.model.groups, set[str](), set[int]()
    for name in prediction.received:
        index = groups.position(name)
        paid.update((index, *groups.prerequisites[index]))
        if sum(groups.costs[i] for i in paid) > budget * (1 + COST_TOLERANCE):
            break
        selected.add(name)
    return frozenset(selected)


def test_the_groups_that_a_budget_allows_are_those_of_the_literal_sum() -> None:
    model = trained_model()
    names = list(model.places)
    rng = np.random.default_rng(0)
    for _ in range(100):
        prediction = Prediction(model)
        for name in rng.permutation(names)[: rng.integers(len(names) + 1)]:
            prediction.add(name, np.zeros(len(model.places[name].features)))
        for budget in (0.0, 1.0, 3.5, 4.0, 5.0, 6.0, 8.0, 10.0):
            assert prediction.usable(budget) == literal_usable(prediction, budget)


def test_solved_sets_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained_model("bounded", seed=5)
    sets = [frozenset(each) for each in (["hog"], ["lab"], ["hog", "lab"])]
    monkeypatch.setattr(subsets, "MAX_BYTES", 1)
    for each in sets:
        arrived_model(model, each)
        assert sum(len(groups) > 0 for groups in subsets.solved_sets(model).sets) == 1
    assert cached_arrived_model(model, sets[-1]) is not None
    assert subsets.solved_sets(model).nbytes == arrived_model(model, sets[-1]).nbytes


def test_stored_base_rates_are_bounded_in_number_bytes_and_age(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(shedding, "now_ms", lambda: now[0])
    shed = LoadShedding(PredictionService(ModelRegistry.of([small_model()]), SETTINGS), KeyRing())
    route = present(find("POST", "/predict")[0])
    size = int(BASE_RATE_BYTES) - len("/predict")

    def scope(number: int) -> dict[str, Any]:
        query = b"overload=prior&budget=%04d" % number
        return {"raw_path": b"/predict", "query_string": query, "headers": [], "state": {}}

    def stored(last: int) -> int:
        return sum(shed.reply(scope(number), route, []) is not None for number in range(last + 1))

    def store(number: int, length: int) -> None:
        request = scope(number)
        assert shed.reply(request, route, []) is None
        reply = Reply(200, "application/json", b"0" * (length - len(request["query_string"])))
        request["state"][STORE_REPLY](reply)

    store(0, size + 1)
    assert stored(0) == 0
    for i in range(2 * int(BASE_RATES)):
        store(i, size)
    assert stored(2 * int(BASE_RATES)) == int(BASE_RATES)
    now[0] += shedding.BASE_RATES_MS + 1.0
    store(9_000, size)
    assert stored(9_000) == 1
