"""The table of limits: complete in the guide, and its limits hold on a server."""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import Any

import pytest

from anytime.errors import LONGEST_COMPARED, suggestion
from anytime.inference import subsets
from anytime.inference.subsets import arrived_model, cached_arrived_model
from anytime_service.core.service import PredictionService
from anytime_service.errors import HeadTooLargeError
from anytime_service.http.exchange import STORE_REPLY, Reply
from anytime_service.keys import KeyRing
from anytime_service.limits.table import BASE_RATE_BYTES, BASE_RATES, FIELDS, HEADERS, NAME_LENGTH, NAMES, TABLE
from anytime_service.limits.turns import TTLCache
from anytime_service.models.registry import ModelRegistry
from anytime_service.routes import find
from anytime_service.server.connections import BASE_RATES_MS, LoadShedding
from anytime_service.server.requests import MAX_CHUNKS, Body, Head
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


def test_many_chunks_of_a_body_are_read_some_at_a_time() -> None:
    body = Body(None, 0, 1_000)
    content, _ = body.read(b"\r\n1\r\nx" * (MAX_CHUNKS + 10) + b"\r\n0\r\n\r\n")
    assert (content, body.pieces, body.complete) == (b"x" * MAX_CHUNKS, MAX_CHUNKS, False)


def test_the_framing_of_a_body_counts_with_the_head_before_it() -> None:
    for length, fits in ((1_000, True), (9_500, False)):
        head = Head()
        head.read(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nX: %b\r\n\r\n" % (b"y" * length), 10_000)
        with nullcontext() if fits else pytest.raises(HeadTooLargeError):
            present(head.body(10_000)).read(b"\r\n5;%b\r\nabcde" % (b"x" * 1_000))


def test_a_head_and_the_blank_lines_before_it_have_a_limit_each_and_its_target_is_known() -> None:
    for content, url in (
        (b"\r\n" * 501, b""),
        (b"\r\nPOST /v2/models/m/infer HTTP/1.1\r\nX: %b" % (b"y" * 990), b"/v2/models/m/infer"),
    ):
        head = Head()
        head.read(content[:900], 1_000)
        with pytest.raises(HeadTooLargeError):
            head.read(content, 1_000)
        assert head.url == url, "the form of the error depends on it"


def test_a_cache_keeps_the_newest_items_and_what_is_added_again_is_the_newest() -> None:
    cache = TTLCache[int](2, 1_000.0)
    for name, added_ms in (("a", 0.0), ("b", 1.0), ("a", 2.0), ("c", 3.0)):
        cache.add(name, 0, added_ms)
    assert [name in cache for name in "abc"] == [True, False, True]
    cache.add("d", 0, 1_002.5)
    assert [name in cache for name in "acd"] == [False, True, True], "one has expired"


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
    monkeypatch.setattr("anytime_service.server.connections.now_ms", lambda: now[0])
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
    now[0] += BASE_RATES_MS + 1.0
    store(9_000, size)
    assert stored(9_000) == 1
