"""Hostile input, a small part of what `make hostile` tries: it is refused in order, and leaves nothing behind."""

from __future__ import annotations

import logging
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from anytime_service.http.responses import MAX_DETAIL
from anytime_service.models.registry import load_registry
from anytime_service.schemas.problem import MEDIA_TYPE
from anytime_service.settings import Settings
from benchmarks.load.frames import frame
from drills.attacks.bodies import BOMBS
from drills.attacks.frames import HANDSHAKES, NONSENSE, open_websocket, send_frames, send_handshake
from drills.attacks.malformed import AMBIGUOUS, OTHER_PROTOCOLS, ROUTES, TRICKS, UPGRADES, get_request, send_ambiguous
from drills.attacks.wire import connect, receive, request, send_all
from drills.judging import unexpected_replies
from service.serving import VALUES, Running, expected, logged, run_service, timeless, trained_model
from waiting import until

LIMITS = Settings(port=0, max_body_bytes=1 << 20, max_deadline_ms=2_000, header_timeout_s=1.0, max_rows=50)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path: Path = tmp_path_factory.mktemp("models") / "m.safetensors"
    trained_model().save(path)
    with run_service(load_registry([path]), LIMITS) as service:
        yield service


@pytest.fixture(scope="module")
def right(house: Running) -> dict[str, Any]:
    """The answer of an honest client, before anybody has attacked."""
    answer = timeless(house.post({"groups": VALUES}).json())
    assert answer == expected(trained_model(), VALUES) | {"version": answer["version"]}
    return answer


@pytest.fixture(autouse=True)
def _serves_on(house: Running, right: dict[str, Any]) -> Iterator[None]:
    """After each attack an honest client is answered, nothing is open, and nothing was an error."""
    with logged() as records:
        yield
        assert timeless(house.post({"groups": VALUES}).json()) == right
        until(lambda: house.metric("anytime_open_predictions") == 0)
    assert not [record for record in records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    ("contents", "send"),
    [
        (AMBIGUOUS, send_ambiguous),
        (UPGRADES, send_ambiguous),
        (OTHER_PROTOCOLS, lambda content, port: request(port, content, 1.0)),
        (BOMBS, lambda content, port: request(port, content)),
        (NONSENSE, send_frames),
        (HANDSHAKES, send_handshake),
    ],
    ids=["ambiguous requests", "upgrades", "other protocols", "bombs", "frames", "handshakes"],
)
def test_attacks_are_refused_in_order_and_hide_no_request(
    house: Running, contents: Mapping[str, bytes], send: Callable[[bytes, int], Counter[str]]
) -> None:
    for name, content in contents.items():
        received = send(content, house.port)
        assert received, name
        may_reset = contents is NONSENSE and len(content) > 1 << 20
        assert not unexpected_replies(received, may_reset=may_reset, may_stay_open=False), (name, received)
        if contents is AMBIGUOUS:
            assert received["FIN"] == 1, f"{name}: what follows is not believed either"
        if contents is UPGRADES:
            assert received.total() - received["FIN"] == 1, (name, received)


def test_no_name_in_a_path_escapes_its_route(house: Running) -> None:
    for route in ROUTES:
        for trick in TRICKS:
            received = request(house.port, get_request(route.format(trick, trick)))
            assert not unexpected_replies(received, may_reset=True, may_stay_open=False), (route, trick[:100], received)
            assert not received["200"], (route, trick[:100])


@pytest.mark.parametrize(
    ("length", "status", "detail"),
    [
        (1_000, 422, "there is no group 'yyyy"),
        (900_000, 400, "a name has more than 1024 characters; send at most 1024"),
    ],
)
def test_an_error_is_not_longer_than_its_request(house: Running, length: int, status: int, detail: str) -> None:
    response = house.post({"groups": {"y" * length: [1]}})
    assert (response.status_code, response.headers["content-type"]) == (status, MEDIA_TYPE)
    assert (detail in response.json()["detail"], len(response.json()["detail"]) <= MAX_DETAIL) == (True, True)


def test_compression_is_not_negotiated(house: Running) -> None:
    with connect(house.port) as sock:
        send_all(sock, HANDSHAKES["compression"])
        received, _ = receive(sock, 1.0)
    assert b" 101 " in received
    assert b"extensions" not in received.lower()


def test_a_closed_websocket_accepts_no_message(house: Running) -> None:
    with open_websocket(house.port) as sock:
        send_all(sock, frame(8, struct.pack("!H", 1000)) + frame(1, b'{"type": "begin", "id": 1}'))
        received, end = receive(sock, 1.0)
    assert received == b"\x88\x02" + struct.pack("!H", 1000)
    assert end == "FIN"
