"""Long lists of values: the same numbers and the same errors as short ones, and others are served in between."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime.inference.prediction import coded_values
from anytime_service.app import create_app
from anytime_service.errors import FieldError
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas import values as long_values
from anytime_service.schemas.codecs import JSON, MSGPACK, Form, decoders
from anytime_service.schemas.values import (
    AT_ONCE,
    Pauses,
    TextError,
    UnevenRowsError,
    Values,
    numbers_of,
    read_list,
    read_values,
)
from anytime_service.settings import Settings
from models.properties import quick
from service.loops import run
from service.serving import Running, columns_model, expected, packed, running, small_model, timeless, until

MODEL, COLUMNS = small_model(), columns_model()
ROWS = 4_000
LARGE = {name: np.round(np.random.default_rng(1).normal(size=(ROWS, 2)), 12) for name in ("hog",)}
LISTS = {"hog": LARGE["hog"].tolist()}
LIMIT = 200_000


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have lists of more than 24 bytes cut."""
    monkeypatch.setattr(long_values, "AT_ONCE", 24)


def converted(form: Form, values: Any, width: int, content: bytes | None = None) -> Any:
    return run(read_list(form, form.encode(values) if content is None else content, width, Pauses()))


numbers = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.floats(allow_nan=False, allow_infinity=False, width=32)
)
tables = st.integers(1, 6).flatmap(
    lambda width: st.lists(st.lists(numbers, min_size=width, max_size=width), min_size=1, max_size=30)
)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("form", [JSON, MSGPACK], ids=lambda form: form.name)
def test_pieces_have_the_numbers_of_the_whole(form: Form) -> None:
    @quick()
    @given(tables, st.booleans())
    def check(table: list[list[Any]], flat: bool) -> None:
        values = table[0] if flat else table
        finite = form.encode(values)
        whole = np.array(values, dtype=np.float64)
        np.testing.assert_array_equal(converted(form, values, len(table[0])), whole)
        if form is JSON:
            spaced = json.dumps(msgspec.json.decode(finite), indent=3).encode()
            np.testing.assert_array_equal(converted(form, values, len(table[0]), spaced), whole)

    check()


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("form", [JSON, MSGPACK], ids=lambda form: form.name)
def test_an_error_names_its_place_in_the_whole_list(form: Form) -> None:
    table: list[list[Any]] = [[float(row), 2.5] for row in range(50)]
    for row in (0, 7, 49):
        table[row][1] = "two"
        with pytest.raises(TextError) as error:
            converted(form, table, 2)
        assert (error.value.index, error.value.value) == ((row, 1), "two")
        table[row][1] = {}
        with pytest.raises(msgspec.ValidationError, match=rf"at `\$\[{row}\]\[1\]`"):
            converted(form, table, 2)
        table[row][1] = 2.5
    flat: list[Any] = [0.5] * 50
    flat[33] = {"x": [1, 2]}
    with pytest.raises(msgspec.ValidationError, match=r"at `\$\[33\]`"):
        converted(form, flat, 50)
    for other in ({"a": 1}, "text " * 20, 12345678901234567890123456789.0):
        with pytest.raises(msgspec.ValidationError):
            converted(form, other, 1)
    with pytest.raises(msgspec.ValidationError, match="expected numbers"):
        converted(JSON, ["a], [b" * 20, "c"], 1)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("form", [JSON, MSGPACK], ids=lambda form: form.name)
@pytest.mark.parametrize(
    "table",
    [
        [[1.0, 2.0]] * 20 + [[1.0]],
        [[1.0]] + [[1.0, 2.0]] * 20,
        [[1.0, 2.0]] * 20 + [1.0],
        [[1.0] * 200],
        [[1.0, 2.0]] * 3 + [[1.0] * 200],
    ],
    ids=["the last is shorter", "the first is shorter", "the last is a number", "one is long", "the last is long"],
)
def test_rows_of_different_lengths_are_refused(form: Form, table: Any) -> None:
    with pytest.raises(UnevenRowsError):
        converted(form, table, 2)


@pytest.mark.parametrize("form", [JSON, MSGPACK], ids=lambda form: form.name)
def test_too_many_rows_are_refused_before_any_is_decoded(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_values, "_LISTS", {})
    content = form.encode([[0.5]] * 5_000)
    with pytest.raises(FieldError, match="there are 5000 rows; expected at most 4999") as error:
        run(read_values(form, decoders(Values)[form.name], MODEL, "speed", msgspec.Raw(content), 4_999, Pauses()))
    assert error.value.field == "rows"


async def turns_during(reading: Awaitable[Any]) -> int:
    """Turns of the event loop that another task has during some reading."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await reading
    counting.cancel()
    return turns


@pytest.mark.parametrize("form", [JSON, MSGPACK], ids=lambda form: form.name)
def test_the_loop_has_its_turn_while_a_long_list_is_converted(form: Form) -> None:
    async def main() -> None:
        content = form.encode([[0, 1] * 50] * 4_000)
        turns = await turns_during(read_list(form, content, 100, Pauses()))
        assert turns >= 10, "400,000 numbers take 50 ms at the least, and half a millisecond is a turn's"

    run(main())


# Text

texts = st.text(max_size=30) | st.sampled_from(["male", "female", "], [", '"], ["', "[[[[[[[["])
people = st.lists(st.tuples(numbers, texts | st.none()).map(list), min_size=1, max_size=60)


def read(form: Form, values: Any, max_rows: int = 10_000, group: str = "person", content: bytes | None = None) -> Any:
    encoded = msgspec.Raw(form.encode(values) if content is None else content)
    return run(read_values(form, decoders(Values)[form.name], COLUMNS, group, encoded, max_rows, Pauses()))


@pytest.mark.parametrize("form", [JSON, MSGPACK], ids=lambda form: form.name)
def test_pieces_with_text_have_the_values_of_the_whole(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_values, "AT_ONCE", 8)
    monkeypatch.setattr(long_values, "CODED_AT_ONCE", 6)
    place = COLUMNS.places["person"]

    @quick()
    @given(people, st.booleans())
    def check(table: list[list[Any]], flat: bool) -> None:
        values = table[0] if flat else table
        whole = coded_values("person", place, values)
        np.testing.assert_array_equal(read(form, values), whole)
        if form is JSON:
            spaced = json.dumps(values, indent=3).encode()
            np.testing.assert_array_equal(read(form, values, content=spaced), whole)

    check()


@pytest.mark.parametrize("form", [JSON, MSGPACK], ids=lambda form: form.name)
def test_brackets_in_text_are_not_rows_and_too_many_rows_are_refused(form: Form) -> None:
    table = [[1.0, "[" * 5_000]] * 4
    assert len(form.encode(table)) > AT_ONCE
    assert read(form, table, max_rows=4).shape == (4, 2)
    with pytest.raises(FieldError, match="there are 4 rows; expected at most 3"):
        read(form, table, max_rows=3)


@pytest.mark.parametrize("form", [JSON, MSGPACK], ids=lambda form: form.name)
def test_a_wrong_item_in_a_long_list_with_text_is_refused(form: Form) -> None:
    table: list[Any] = [[1.0, "male, or not"]] * 4_000
    assert len(form.encode(table[:1024])) > AT_ONCE
    ragged = "values of group 'person' are ragged: rows are of different lengths"
    for wrong, words in (
        ([*table, 1.0, "male"], ragged),
        ([*table[:1024], 1.0], ragged),  # the last piece has nothing else
        ([*table[:1024], [1.0]], "are 1 x 1; expected 1 x 2"),
        ([*table, [1.0, 2.0]], "column 'sex' has 2.0; expected text, or null"),
        ([1.0, *table], "not a list of rows"),
        (["male"] * 9_000, "are 1 x 9000; expected 1 x 2"),
    ):
        with pytest.raises(FieldError, match=words) as error:
            read(form, wrong)
        assert error.value.field == "groups.person"
    with pytest.raises(msgspec.ValidationError, match=r"at `\$\[4000\]\[1\]`"):
        read(form, [*table, [1.0, {}]])


@pytest.mark.parametrize("form", [JSON, MSGPACK], ids=lambda form: form.name)
def test_the_loop_has_its_turn_while_a_long_list_with_text_is_converted(form: Form) -> None:
    async def main() -> None:
        content = msgspec.Raw(form.encode([[0.5, "male"]] * 100_000))
        reading = read_values(form, decoders(Values)[form.name], COLUMNS, "person", content, 100_000, Pauses())
        assert await turns_during(reading) >= 10, (
            "200,000 values take 50 ms at the least, and half a millisecond is a turn's"
        )

    run(main())


def test_a_long_text_among_numbers_uses_no_memory_for_the_others() -> None:
    """An array of text would take 4 bytes a character for each of its elements, here 8 GB."""
    values: Any = [[0.5]] * 10_000 + [["x" * 200_000]]
    tracemalloc.start()
    try:
        with pytest.raises(TextError) as error:
            numbers_of(values)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert error.value.index == (10_000, 0)


@contextmanager
def alone() -> Iterator[Running]:
    settings = Settings(port=0, max_json_bytes=LIMIT, max_body_bytes=1_000_000)
    with running(create_app(ModelRegistry.of([MODEL]), settings), settings) as service:
        yield service


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with alone() as service:
        yield service


def posted(service: Running, path: str, content: bytes, kind: str = JSON.media_type) -> httpx.Response:
    return httpx.post(
        service.url + path, content=content, headers={"content-type": kind, "accept": JSON.media_type}, timeout=30
    )


def session_of(service: Running) -> str:
    return f"/sessions/{service.post_to('/sessions').json()['id']}"


def test_long_values_give_the_same_answer_on_every_binding(service: Running) -> None:
    told = expected(MODEL, LARGE, rows=None)
    body = json.dumps({"groups": LISTS}).encode()
    assert AT_ONCE < len(body) < LIMIT
    assert timeless(posted(service, "/predict", body).json()) == told
    packing = MSGPACK.encode({"groups": LISTS})
    assert timeless(posted(service, "/predict", packing, MSGPACK.media_type).json()) == told
    line = json.dumps({"group": "hog", "values": LISTS["hog"]}).encode()
    assert timeless(posted(service, "/predict", line + b"\n", "application/x-ndjson").json()) == told
    path = session_of(service)
    assert posted(service, f"{path}/groups", json.dumps(LISTS).encode()).status_code == 200
    assert timeless(service.get(f"{path}/predict").json()) == told
    for data in (LISTS["hog"], LARGE["hog"].ravel().tolist()):
        tensor = {"name": "hog", "shape": [ROWS, 2], "datatype": "FP64", "data": data}
        replied = service.post_to("/v2/models/brake/infer", {"inputs": [tensor]}).json()
        assert replied["outputs"][0]["data"] == told["prediction"]
    for form in (JSON, MSGPACK):
        with service.stream(form) as stream:
            stream.say("begin", 1)
            stream.groups(1, LISTS)
            stream.say("end", 1)
            assert timeless(stream.answer(1)) == told


TOO_LARGE = {"hog": (LARGE["hog"].tolist() * 3)[:9_000]}


def refused(response: httpx.Response, advice: str = "send MessagePack with packed values") -> None:
    problem = response.json()
    assert (response.status_code, problem["type"]) == (413, "urn:anytime:problem:body-too-large")
    assert str(LIMIT) in problem["detail"]
    assert advice in problem["detail"]


def test_lists_above_their_limit_are_refused_and_packed_values_are_not(service: Running) -> None:
    body, packing = json.dumps({"groups": TOO_LARGE}).encode(), MSGPACK.encode({"groups": TOO_LARGE})
    wide = {"hog": np.ones((9_000, 2))}
    told = expected(MODEL, wide, rows=None)
    bytes_of = {"groups": {"hog": packed(wide["hog"])}}
    packing = MSGPACK.encode({"groups": {"hog": TOO_LARGE["hog"] * 2}})
    assert min(len(body), len(packing)) > LIMIT
    refused(posted(service, "/predict", body))
    refused(httpx.post(f"{service.url}/predict", content=iter([body[:LIMIT], body[LIMIT:]]), timeout=30))  # no length
    refused(posted(service, "/predict", packing, MSGPACK.media_type))
    large = MSGPACK.encode({"groups": {"hog": packed(np.ones((20_000, 2)))}})
    assert len(large) > LIMIT
    assert "expected at most 10000" in posted(service, "/predict", large, MSGPACK.media_type).json()["detail"]
    assert timeless(posted(service, "/predict", MSGPACK.encode(bytes_of), MSGPACK.media_type).json()) == told
    path = session_of(service)
    refused(posted(service, f"{path}/groups", json.dumps(TOO_LARGE).encode()))
    refused(posted(service, f"{path}/groups", MSGPACK.encode({"hog": TOO_LARGE["hog"] * 2}), MSGPACK.media_type))
    refused(posted(service, "/sessions", b" " * (LIMIT + 1)))
    line = json.dumps({"group": "hog", "values": TOO_LARGE["hog"]}).encode()
    for end in (b"\n", b""):
        refused(posted(service, "/predict", line + end, "application/x-ndjson"))
    tensor = {"name": "hog", "shape": [9_000, 2], "datatype": "FP64", "data": TOO_LARGE["hog"]}
    refused(
        posted(service, "/v2/models/brake/infer", json.dumps({"inputs": [tensor]}).encode()), "bytes after the JSON"
    )
    announced = {"Inference-Header-Content-Length": str(LIMIT + 1)}
    content = b" " * (LIMIT + 1)
    refused(
        httpx.post(f"{service.url}/v2/models/brake/infer", content=content, headers=announced), "bytes after the JSON"
    )
    many = [json.dumps({"group": "hog", "values": LISTS["hog"]}).encode()] * 3
    assert sum(map(len, many)) > LIMIT, "lines have the limit each, not together"
    assert posted(service, "/predict", b"\n".join(many), "application/x-ndjson").json()["replaced"] == ["hog"]


@pytest.mark.parametrize("form", [JSON, MSGPACK], ids=lambda form: form.name)
def test_a_message_above_the_limit_is_refused_by_its_id_and_the_prediction_goes_on(
    service: Running, form: Form
) -> None:
    with service.stream(form) as stream:
        stream.say("begin", "p")
        stream.groups("p", {"hog": TOO_LARGE["hog"] * 2})
        problem = stream.problem()
        assert (problem["id"], problem["status"]) == ("p", 413)
        assert "send MessagePack with packed values" in problem["detail"]
        if form is MSGPACK:
            stream.groups("p", {"hog": packed(np.ones((9_000, 2))), "speed": packed(np.ones((9_000, 1)), "f4")})
            stream.say("end", "p")
            assert stream.answer("p")["prefix"] == 2


@pytest.mark.parametrize("form", [JSON, MSGPACK], ids=lambda form: form.name)
def test_a_long_message_that_cannot_be_names_the_place_and_changes_nothing(service: Running, form: Form) -> None:
    wrong = [list(row) for row in LISTS["hog"]]
    wrong[3_000][1] = "two"
    uneven = [*LISTS["hog"], [1.0]]
    with service.stream(form) as stream:
        stream.say("begin", 1)
        cases: list[tuple[Any, int, str]] = [
            (wrong, 422, "groups.hog[3000][1]"),
            (uneven, 422, "groups.hog"),
            ([[0, 0]] * 12_000, 422, "rows"),
        ]
        for values, status, field in cases:
            stream.groups(1, {"hog": values})
            problem = stream.problem()
            assert (problem["id"], problem["status"], problem["field"]) == (1, status, field), problem
        stream.say("group", 1, group="none", values=LISTS["hog"])
        assert "there is no group 'none'" in stream.problem()["detail"]
        if form is MSGPACK:
            stream.say("group", 1, group="hog", values=LISTS["hog"], dtype="f8")
            assert stream.problem()["field"] == "dtype"
        stream.say("end", 1)
        assert stream.answer(1)["groups"] == []
    if form is JSON:
        body = {"groups": {"hog": wrong}}
        problem = posted(service, "/predict", json.dumps(body).encode()).json()
        assert (problem["status"], problem["field"]) == (422, "groups.hog[3000][1]")
        line = json.dumps({"group": "hog", "values": wrong}).encode()
        problem = posted(service, "/predict", b"\n" + line, "application/x-ndjson").json()
        assert (problem["status"], problem["field"]) == (422, "groups.hog[3000][1]")
        assert problem["detail"] == "line 2: values of group 'hog': column 'h1' has 'two'; expected a number, or null"
        tensor = {"name": "hog", "shape": [ROWS, 2], "datatype": "FP64", "data": wrong}
        problem = service.post_to("/v2/models/brake/infer", {"inputs": [tensor]}).json()
        assert (problem["status"], problem["field"]) == (422, "inputs[0].data[3000][1]")


@pytest.mark.parametrize("late", ["/predict", "/v2/models/brake/infer", "lines", "stream"])
def test_a_deadline_that_expires_while_long_values_are_converted_is_answered_in_time(
    late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(self: Pauses) -> None:
        await asyncio.sleep(0.01)

    monkeypatch.setattr(Pauses, "pause", slow)
    with alone() as service:
        if late == "stream":
            with service.stream() as stream:
                stream.say("begin", 1, deadline_ms=50)
                stream.groups(1, LISTS)
                answer = stream.answer(1)
                stream.say("begin", 2, deadline_ms=0)
                assert stream.answer(2)["reason"] == "deadline", "what came too late was no error"
        elif late == "lines":
            line = json.dumps({"group": "hog", "values": LISTS["hog"]}).encode()
            answer = posted(service, "/predict?deadline_ms=50", line, "application/x-ndjson").json()
        elif late == "/predict":
            answer = posted(service, "/predict?deadline_ms=50", json.dumps({"groups": LISTS}).encode()).json()
        else:
            tensor = {"name": "hog", "shape": [ROWS, 2], "datatype": "FP64", "data": LISTS["hog"]}
            reply = service.post_to(f"{late}?deadline_ms=50", {"inputs": [tensor]}).json()
            answer = {**reply["parameters"], "groups": json.loads(reply["parameters"]["groups"])}
        assert (answer["reason"], list(answer["groups"])) == ("deadline", [])
        assert answer["elapsed_ms"] < 5_000
        until(lambda: service.metric("anytime_held_bytes") == 0)
        assert service.metric("anytime_open_predictions") == 0
