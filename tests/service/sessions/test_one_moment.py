"""An answer that the worker makes is of one moment: of the values when it was settled, whatever replaces them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from anytime.inference.prediction import Settled
from anytime_service.schemas.codecs import MSGPACK
from service.in_session import begin
from service.serving import LIMITS, Gate, Running, expected, packed, run_service, timeless, trained_model
from waiting import until

ROWS = 3_000
MODEL = trained_model()
FIRST, *OTHERS = MODEL.order(MODEL.places)
DATABASE = 11


def values(version: int) -> dict[str, Any]:
    """Values of all groups; those of an odd version have missing ones."""
    rng = np.random.default_rng(version)
    found = {name: rng.normal(size=(ROWS, len(MODEL.places[name].features))) for name in MODEL.places}
    if version % 2:
        found[FIRST][:, 0] = np.nan
    return found


def post(service: Running, session: str, version: int) -> int:
    groups = {name: packed(each) for name, each in values(version).items()}
    return service.post_packed(f"/sessions/{session}/groups", groups).status_code


@pytest.fixture(scope="module", params=["memory", "redis"])
def service(request: pytest.FixtureRequest) -> Iterator[Running]:
    url = "memory" if request.param == "memory" else request.getfixturevalue("shared_redis").url(DATABASE)
    patient: dict[str, Any] = {"session_store": url, "session_store_timeout_ms": 5_000, "max_deadline_ms": 60_000}
    patient |= {"max_rows": ROWS, "max_body_bytes": 1_000_000}
    with run_service([MODEL], LIMITS.model_copy(update=patient)) as running:
        yield running


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """The worker's answers wait."""
    gate = Gate(monkeypatch, Settled, "make_arrays")
    yield gate
    gate.opened.set()


@pytest.mark.parametrize("options", [{}, {"policy": "arrived"}, {"explain": True}, {"ranking": True}])
def test_a_session_is_answered_from_the_values_before_their_replacement(
    service: Running, gate: Gate, options: dict[str, Any]
) -> None:
    session = begin(service)
    assert post(service, session, 1) == 200
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(service.get, f"/sessions/{session}/predict", **options)
        assert gate.reached.wait(60)
        assert post(service, session, 2) == 200
        gate.opened.set()
        answer = asked.result(60).json()
    assert timeless(answer) == expected(MODEL, values(1), rows=ROWS, **options)
    assert len(answer["imputed"]) == 1
    after = service.get(f"/sessions/{session}/predict", **options).json()
    assert after["prediction"] == expected(MODEL, values(2), rows=ROWS, **options)["prediction"]
    assert (after["imputed"], after["replaced"]) == ([], [FIRST, *OTHERS])
    service.delete(f"/sessions/{session}")
    until(lambda: service.metric("anytime_held_bytes") == 0)


def test_an_update_is_of_the_values_before_their_replacement(service: Running, gate: Gate) -> None:
    first, second = values(1), values(2)
    with service.stream(MSGPACK) as stream:
        stream.say("begin", 1, rows=ROWS, updates=True)
        stream.say("group", 1, group=FIRST, **packed(first[FIRST]))
        assert gate.reached.wait(60)
        stream.say("group", 1, group=FIRST, **packed(second[FIRST]))
        stream.say("end", 1)
        gate.opened.set()
        while (answer := stream.hear())["type"] == "update":
            some = first if answer["imputed"] else second
            assert answer["prediction"] == expected(MODEL, {FIRST: some[FIRST]}, rows=ROWS)["prediction"]
    assert answer["prediction"] == expected(MODEL, {FIRST: second[FIRST]}, rows=ROWS)["prediction"]
