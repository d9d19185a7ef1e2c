"""The stream: many predictions over one WebSocket, in both forms."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from anytime.model.model import Model
from anytime_service.core import solver as solving
from anytime_service.core.open_prediction import OpenPrediction
from anytime_service.limits.table import IDS, OPEN_OF_CONNECTION
from anytime_service.schemas.codecs import JSON, MSGPACK, Form
from anytime_service.settings import Settings
from models.properties import quick
from service.doors import refused
from service.in_session import begin
from service.raw_stream import raw, read_frame, text
from service.serving import (
    VALUES,
    Gate,
    Running,
    Stream,
    expected,
    logged,
    problem_in,
    run_service,
    timeless,
    trained_model,
)
from waiting import until

both_forms = pytest.mark.parametrize("form", [JSON, MSGPACK], ids=lambda form: form.name)
LONG = 1_900


def test_the_two_forms_share_a_connection_and_each_prediction_is_answered_in_its_own(service: Running) -> None:
    with service.stream() as text:
        binary = Stream(text.wire, MSGPACK)
        for name, own, other in (("text", text, binary), ("binary", binary, text)):
            own.say("begin", name)
            other.groups(name, {"speed": [2.0]})
        text.say("end", "binary")
        answer = binary.answer("binary")
        assert "form" not in answer, "it is in MessagePack"
        binary.say("end", "text")
        assert timeless(text.answer("text")) == timeless(answer)


def test_ids_that_look_alike_are_different(service: Running) -> None:
    with service.stream() as stream:
        for name in (1, "1", "a", "A", 10**30, -1):
            stream.say("begin", name)
        for name in (-1, 10**30, "A", "a", "1", 1):
            assert stream.end(name)["id"] == name


@both_forms
def test_updates_come_as_the_answer_becomes_better_and_the_answer_comes_last(
    service: Running, model: Model, form: Form
) -> None:
    with service.stream(form) as stream:
        stream.say("begin", "p", updates=True)
        stream.groups("p", {"hog": VALUES["hog"], "speed": VALUES["speed"]})
        update = stream.hear()
        assert (update["type"], update["id"], update["reason"], update["prefix"]) == ("update", "p", None, 2)
        assert timeless(update) == expected(model, {name: VALUES[name] for name in ("speed", "hog")})
        stream.groups("p", {"lab": VALUES["lab"]})
        assert stream.answer("p")["prefix"] == 3


def test_the_deadline_does_not_wait_for_an_optimum_that_is_still_being_solved(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = trained_model("slow", width=80)  # so that no group alone is solved at once, in the event loop
    late = {group: [0.5] * 80 for group in wide.order(wide.places)[1:3]}
    gate = Gate(monkeypatch, solving, "arrived_model")
    with run_service([wide], settings) as service, service.stream() as stream:
        for name, deadline_ms in (("deadline", 400), ("patient", LONG)):
            stream.say("begin", name, policy="arrived", deadline_ms=deadline_ms)
            stream.groups(name, late)
            stream.say("end", name)
        answer = stream.answer("deadline")
        assert (answer["reason"], answer["policy"], answer["prefix"]) == ("deadline", "prefix", 0)
        assert "not solved yet" in answer["note"]
        gate.open()
        assert timeless(stream.answer("patient")) == expected(wide, late, policy="arrived")
        assert stream.ask("at hand", late, policy="arrived", deadline_ms=400)["policy"] == "arrived"


def test_an_optimum_that_would_take_too_long_is_refused_and_the_answer_says_so() -> None:
    limits = Settings(port=0, max_solve_ms=0)
    wide = trained_model("dear", width=40)
    late = {group: [0.5] * 40 for group in wide.order(wide.places)[1:3]}
    with run_service([wide], limits) as service:
        answer = service.post({"groups": late}, policy="arrived").json()
    assert (answer["reason"], answer["policy"], answer["note"] is None) == ("end", "prefix", False)
    assert timeless(answer) == expected(wide, late) | {"note": answer["note"]}


def of_hog(**fields: Any) -> dict[str, Any]:
    return {"type": "group", "id": "p", "group": "hog", **fields}


INVALID: list[tuple[Any, int, str | None, str]] = [
    ({"type": "group", "id": "p", "group": "sped", "values": [1.0]}, 422, "groups.sped", "did you mean 'speed'"),
    ({"type": "group", "id": "p", "group": "blood", "values": [1.0]}, 422, "groups.blood", "has no features"),
    ({"type": "group", "id": "p", "group": "hog", "values": [1.0]}, 422, "groups.hog", "expected 1 x 2"),
    ({"type": "group", "id": "p", "group": "hog", "values": [[1, 2], [3, 4]]}, 422, "groups.hog", "expected 1 x 2"),
    ({"type": "group", "id": "p", "group": "hog", "values": [[1, 2], [3]]}, 422, "groups.hog", "ragged"),
    ({"type": "group", "id": "p", "group": "hog", "values": [1, [2]]}, 422, "groups.hog", "ragged"),
    ({"type": "group", "id": "p", "group": "hog", "values": []}, 422, "groups.hog", "expected 1 x 2"),
    ({"type": "group", "id": "p", "group": "speed", "values": [1e101]}, 422, "groups.speed", "beyond 1e+100"),
    ({"type": "group", "id": "p", "group": "speed", "values": [[0.0]] * 51}, 422, "rows", "expected 1 to 50"),
    ({"type": "group", "id": "p", "group": "hog", "values": [1, "two"]}, 422, "groups.hog[1]", "column 'h1' has 'two'"),
    ({"type": "group", "id": "p", "group": "hog", "values": 1}, 400, "groups.hog", "got `int`"),
    ({"type": "group", "id": "p", "group": "hog"}, 400, None, "missing required field `values`"),
    ({"type": "group", "id": "p", "group": "hog", "values": [1, 2], "took_ms": -1}, 400, "took_ms", ">= 0"),
    ({"type": "begin", "id": "p"}, 409, None, "is already open"),
    ({"type": "begin", "id": "q", "budget": -1}, 400, "budget", ">= 0"),
    ({"type": "begin", "id": "q", "deadline_ms": -0.1}, 400, "deadline_ms", ">= 0"),
    ({"type": "begin", "id": "q", "deadline_ms": "soon"}, 400, "deadline_ms", "got `str`"),
    ({"type": "begin", "id": "q", "rows": 0}, 400, "rows", ">= 1"),
    ({"type": "begin", "id": "q", "rows": 51}, 422, "rows", "expected 1 to 50"),
    ({"type": "begin", "id": "q", "rows": 1.5}, 400, "rows", "got `float`"),
    ({"type": "begin", "id": "q", "policy": "better"}, 400, "policy", "better"),
    ({"type": "begin", "id": "q", "model": "break"}, 404, "model", "did you mean 'brake'"),
    ({"type": "begin", "id": "q", "deadline": 5}, 400, None, "unknown field `deadline`"),
    ({"type": "begin", "id": "q", "updates": 1}, 400, "updates", "expected `bool`"),
    ({"type": "begin", "id": ""}, 400, "id", "send at least 1"),
    ({"type": "begin", "id": "x" * 129}, 400, "id", "send at most 128"),
    ({"type": "begin", "id": 1.5}, 400, "id", "got `float`"),
    ({"type": "begin", "id": True}, 400, "id", "got `bool`"),
    ({"type": "begin", "id": None}, 400, "id", "expected `int | str`"),
    ({"type": "begin"}, 400, None, "missing required field `id`"),
    ({"type": "group", "id": "never", "group": "hog", "values": [1, 2]}, 422, "id", "never begun"),
    ({"type": "end", "id": "never"}, 422, "id", "never begun"),
    ({"type": "end", "id": "p", "reason": "x"}, 400, None, "unknown field `reason`"),
    ({"type": "answer", "id": "p"}, 400, "type", "answer"),
    ({"type": ["end"], "id": "p"}, 400, "type", "expected `str`"),
    ({"id": "p"}, 400, None, "missing required field `type`"),
    ({}, 400, None, "missing required field"),
    ([1, 2], 400, None, "expected `object`"),
    ("begin", 400, None, "expected `object`"),
    (None, 400, None, "expected `object`"),
]
INVALID_IN_TEXT: list[tuple[Any, int, str | None, str]] = [
    (of_hog(values=[1.0, 2.0], dtype="f8"), 400, None, "unknown field `dtype`"),
    (of_hog(values="AAAA", dtype="f8"), 400, "groups.hog", "expected `array`"),
]
INVALID_IN_BYTES: list[tuple[Any, int, str | None, str]] = [
    (of_hog(values=b"1234567", dtype="f8"), 422, "groups.hog", "16 bytes each"),
    (of_hog(values=b"", dtype="f8"), 422, "groups.hog", "expected 1 x 2"),
    (of_hog(values=b"x" * 16), 422, "dtype", "without a dtype"),
    (of_hog(values=[1.0, 2.0], dtype="f8"), 422, "dtype", "have no dtype"),
    (of_hog(values=np.array([1.0, np.inf]).tobytes(), dtype="f8"), 422, "groups.hog", "infinite"),
    (of_hog(values=b"x" * 16 * 51, dtype="f8"), 422, "rows", "1 to 50"),
    (of_hog(values=[float("inf"), 1.0]), 422, "groups.hog", "infinite"),
    (of_hog(values=b"x" * 16, dtype="f16"), 400, "dtype", "f16"),
]


@pytest.mark.parametrize(
    ("form", "message", "status", "field", "words"),
    [*((JSON, *row) for row in INVALID + INVALID_IN_TEXT), *((MSGPACK, *row) for row in INVALID + INVALID_IN_BYTES)],
)
def test_an_error_names_its_field_and_leaves_the_prediction_as_it_was(
    service: Running, model: Model, form: Form, message: Any, status: int, field: str | None, words: str
) -> None:
    with service.stream(form) as stream:
        stream.say("begin", "p", rows=1)
        stream.groups("p", {"speed": [2.0]})
        stream.send(form.encode(message))
        problem = stream.problem()
        assert (problem["status"], problem.get("field")) == (status, field), problem
        assert words in problem["detail"]
        assert set(problem) - {"field"} == {"type", "title", "status", "detail", "id"}
        named = message.get("id") if isinstance(message, dict) else None
        legible = isinstance(named, str | int) and named is not True and (named == 0 or 0 < len(str(named)) <= 128)
        assert problem["id"] == (named if legible else None)
        stream.groups("p", {"hog": VALUES["hog"]})
        assert timeless(stream.end("p")) == expected(model, {"speed": [2.0], "hog": VALUES["hog"]})


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "nonsense",
        '{"type":"end","id":1}{}',
        '{"type":"begin","id":1,"budget":NaN}',
        '{"type":"begin","id":1,"budget":1e999}',
        '{"type":"begin","id":"\\ud800"}',
        '{"type":"begin","id":' + "9" * 5_000 + "}",
        "[" * 50_000,
        '{"type":"group","id":1,"group":"speed","values":' + "[" * 9_000 + "]" * 9_000 + "}",
        '{"a":' * 9_000 + "1" + "}" * 9_000,
        b"",
        b"\xc1",
        b"\x81",
        b"\x91" * 50_000,
        b"\x81\xa1a" * 9_000,
        b"\x82\xa4type\xa5begin\xa2id\xa2\xff\xfe",
        MSGPACK.encode({"type": "begin", "id": 1}) + b"\x00",
        MSGPACK.encode({"type": "begin", "id": 1, "budget": float("nan")}),
        MSGPACK.encode({"type": "begin", "id": 1, "budget": float("inf")}),
        MSGPACK.encode({"type": "begin", "id": 1, "deadline_ms": float("inf")}),
        MSGPACK.encode({"type": "begin", "id": 1, "deadline_ms": float("nan")}),
        MSGPACK.encode({1: 2}),
        MSGPACK.encode({"type": "begin", "id": b"p"}),
        MSGPACK.encode(msgspec.msgpack.Ext(5, b"x")),
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
    ],
    ids=lambda content: repr(content[:30]),
)
def test_what_cannot_be_read_is_told(service: Running, content: str | bytes) -> None:
    with logged() as records, service.stream(JSON if isinstance(content, str) else MSGPACK) as stream:
        stream.send(content)
        assert stream.problem()["status"] == 400
        stream.ask("p", deadline_ms=0)
    assert not records


def test_an_id_is_used_once_unless_its_begin_was_refused(service: Running) -> None:
    for _ in range(2):  # on another connection it is another id
        with service.stream() as stream:
            stream.say("begin", "p", rows=51)
            assert stream.problem()["status"] == 422
            stream.ask("p", deadline_ms=0)
            stream.say("begin", "p")
            problem = stream.problem()
            assert (problem["status"], problem["id"], "is already answered" in problem["detail"]) == (409, "p", True)


@both_forms
def test_what_comes_after_the_answer_is_dropped_and_counted(service: Running, form: Form) -> None:
    before = service.metric("anytime_groups_late_total", model="brake")
    with service.stream(form) as stream:
        stream.ask("p", deadline_ms=0)
        stream.groups("p", VALUES)
        stream.groups("p", {"none": [1.0]})
        stream.say("end", "p")
        stream.ask("q", deadline_ms=0)
    assert service.metric("anytime_groups_late_total", model="brake") == before + 4


def test_a_connection_remembers_only_so_many_answers(service: Running) -> None:
    count = int(IDS) + 1
    with service.stream() as stream:
        for name in range(count):
            stream.ask(name, deadline_ms=0)
        stream.say("end", count - 1)
        stream.say("end", 0)
        assert stream.problem()["id"] == 0


def test_answers_are_counted_by_their_reason(fresh: Running) -> None:
    with fresh.stream() as stream:
        stream.say("begin", 0)
        stream.end(0)
        stream.ask(1, deadline_ms=1)
        stream.ask(2, VALUES, budget=1)
        stream.ask(3, VALUES)
    for reason in ("end", "deadline", "complete", "budget"):
        assert fresh.metric("anytime_predictions_total", model="brake", reason=reason) == 1.0
    assert fresh.metric("anytime_deadline_lateness_seconds_bucket", model="brake", le="+Inf") == 1.0
    until(lambda: fresh.metric("anytime_open_predictions") == 0)


def test_another_subprotocol_is_refused_with_a_problem(service: Running) -> None:
    subprotocols: Any = ["graphql-ws", "mqtt"]
    with logged() as records:
        problem = problem_in(refused(service, subprotocols=subprotocols), 400)
    assert ("expected 'anytime.v1'" in problem["detail"], records) == (True, [])
    plain = service.get("/stream")  # the answer requests an upgrade
    assert (problem_in(plain, 426)["status"], plain.headers["upgrade"]) == (426, "websocket")


@pytest.mark.parametrize(
    ("frame", "code"),
    [(text(b'{"type":"end","id":"\xff\xfe"}'), 1007), (text(b"x" * 100_001), 1009), (b"\x81\x02{}", 1002)],
    ids=["not UTF-8", "long", "no mask"],
)
def test_a_message_that_the_protocol_forbids_closes_the_connection(service: Running, frame: bytes, code: int) -> None:
    with raw(service) as connection:
        connection.send(text({"type": "begin", "id": 1}) + frame)
        opcode, payload = read_frame(connection)
        assert (opcode, struct.unpack("!H", payload[:2])[0]) == (8, code)
    until(lambda: service.metric("anytime_open_predictions") == 0)


def test_a_client_that_stalls_within_a_message_is_answered_at_its_deadline(service: Running) -> None:
    half = text({"type": "group", "id": 1, "group": "speed", "values": [2.0]})
    with raw(service) as connection:
        connection.send(text({"type": "begin", "id": 1, "deadline_ms": 30}) + half[: len(half) // 2])
        answer = json.loads(read_frame(connection)[1])
        assert (answer["reason"], answer["groups"]) == ("deadline", [])
        connection.send(half[len(half) // 2 :] + text({"type": "begin", "id": 2, "deadline_ms": 0}))
        assert json.loads(read_frame(connection)[1])["id"] == 2


@pytest.mark.parametrize("kind", ["answers", "errors"])
def test_a_client_that_stops_reading_is_given_up_and_costs_the_others_nothing(service: Running, kind: str) -> None:
    message = {"type": "begin", "deadline_ms": 0, "rows": 50, "ranking": True} if kind == "answers" else {"type": "end"}
    with logged() as records, raw(service, receive_buffer=4096) as deaf, service.stream() as other:
        deaf.send(text({"type": "begin", "id": "open"}))
        deaf.sock.settimeout(1)
        with pytest.raises((TimeoutError, ConnectionError)):  # noqa: PT012
            for sent in range(0, 300_000, 100):
                deaf.send(b"".join(text({**message, "id": f"{i:0100}"}) for i in range(sent, sent + 100)))
                if sent % 2_000 == 0:
                    other.ask(sent, deadline_ms=1)
        until(lambda: service.metric("anytime_open_predictions") == 0)
        other.ask("still", deadline_ms=0)
        deaf.sock.settimeout(60)
        read = 0
        with suppress(ConnectionError):
            while piece := deaf.sock.recv(1 << 20):
                read += len(piece)
        assert read < 30_000_000, "what was kept for it is bounded, and its connection is closed"
    assert not records


@both_forms
def test_hundreds_are_open_at_once_and_each_is_answered_once(model: Model, form: Form) -> None:
    count, patient = 300, Settings(port=0, max_deadline_ms=30_000)
    rng = np.random.default_rng(4)
    given = {i: {name: rng.normal(size=len(VALUES[name])).tolist() for name in VALUES} for i in range(count)}
    with run_service([model], patient) as service, service.stream(form) as stream:
        for i in range(count):
            stream.say("begin", i)
        until(lambda: service.metric("anytime_open_predictions") == count)
        for i in range(count):
            if i % 2:
                del given[i]["lab"]
            stream.groups(i, given[i])
            if i % 2:
                stream.say("end", i)
        answers = {answer["id"]: answer for answer in (stream.hear() for _ in range(count))}
        for i in range(count):
            assert answers[i]["reason"] == ("end" if i % 2 else "complete")
            assert timeless(answers[i]) == expected(model, given[i])


def test_beyond_what_may_be_open_on_a_connection_a_begin_is_refused_and_nothing_is_lost(model: Model) -> None:
    limit = int(OPEN_OF_CONNECTION)
    limits = Settings(port=0, max_deadline_ms=600_000)  # no prediction ends by itself
    with run_service([model], limits) as service, service.stream() as stream, service.stream() as other:
        for name in range(limit + 1):
            stream.say("begin", name)
        problem = stream.problem()
        assert (problem["status"], problem["id"]) == (503, limit)
        other.ask(0, deadline_ms=0)
        stream.end(1)
        stream.say("begin", limit)
        for name in (0, *range(2, limit + 1)):
            stream.end(name)


def test_beyond_what_may_be_open_at_all_every_binding_refuses_and_nothing_is_lost(model: Model) -> None:
    limits = Settings(port=0, max_open=2, max_deadline_ms=5_000)
    with run_service([model], limits) as service, service.stream() as stream:
        session = begin(service)
        for name in range(3):
            stream.say("begin", name)
        assert stream.problem()["status"] == 503
        stream.groups(2, VALUES)  # sent before the client knew
        for response in (
            service.post({"groups": VALUES}),
            service.get(f"/sessions/{session}/predict"),
            service.post_to("/sessions"),
            service.post_to("/v2/models/brake/infer", {"inputs": []}),
        ):
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert "open already" in response.json()["detail"]
        assert service.metric("anytime_shed_total", how="refused", why="open") == 5
        assert service.get("/livez").status_code == 200
        stream.end(0)
        assert service.post({"groups": VALUES}).status_code == 200
        assert stream.end(1)["reason"] == "end"


def test_a_fault_of_the_server_is_told_once_logged_and_the_connection_lives(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the secret of the house")

    with service.stream() as stream, logged() as records:
        for event, name in (("deadline", 1), ("groups", 2), ("begin", 3)):
            with monkeypatch.context() as patched:
                patched.setattr(OpenPrediction, event, fail)
                stream.say("begin", name, deadline_ms=30)
                stream.groups(name, {"speed": [2.0]} if event == "groups" else {})
                problem = stream.problem()
            assert (problem["status"], problem["id"], "secret" in problem["detail"]) == (500, name, False)
        stream.answer(2)
        stream.ask(5, deadline_ms=0)
    assert len(records) == 3
    until(lambda: service.metric("anytime_open_predictions") == 0)


def test_a_prediction_that_is_no_number_is_told_as_an_error(
    service: Running, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(model.prefixes), "coef", lambda _self, _prefix: 1e300 * np.ones((1, 1)))
    with service.stream() as stream:
        stream.say("begin", "p", budget=1)
        stream.groups("p", {"speed": [1e100]})
        problem = stream.problem()
    assert (problem["status"], problem["id"], "not a finite number" in problem["detail"]) == (422, "p", True)


# Frames of every kind of nonsense: each is reported or dropped, and a good prediction works after it.


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=10),
    st.sampled_from(
        ["p", "q", 1, "", "speed", "hog", "lab", "blood", "brake", "begin", "group", "end", "prefix", "f8"]
    ),
)
blobs = st.binary(max_size=40)
anything = st.recursive(
    scalars | blobs,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
good = st.sampled_from(
    [
        {"type": "begin", "id": "p"},
        {"type": "begin", "id": "q", "rows": 2, "budget": 5.0, "deadline_ms": 0.5, "updates": True, "ranking": True},
        {"type": "begin", "id": 1, "policy": "arrived", "model": "brake", "deadline_ms": 0},
        *({"type": "group", "id": "p", "group": name, "values": values} for name, values in VALUES.items()),
        {"type": "group", "id": "q", "group": "hog", "values": [[1, 2], [3, None]], "took_ms": 0.5},
        {"type": "end", "id": "p"},
        {"type": "end", "id": 1},
    ]
)
field_names = st.sampled_from(
    [*("type", "id", "model", "rows", "budget", "deadline_ms", "policy", "updates", "ranking"), "group", "values", "x"]
)
changed_frames = st.builds(lambda frame, name, value: {**frame, name: value}, good, field_names, anything)
lacking_frames = st.builds(lambda frame, name: {key: frame[key] for key in frame if key != name}, good, field_names)
several_frames = st.lists(good | changed_frames | lacking_frames | anything, min_size=1, max_size=8)


def text_of(message: Any) -> str:
    """JSON as a careless client writes it: NaN and infinity, and bytes as something else."""
    return json.dumps(message, default=lambda content: content.decode("latin-1"))


def damaged(content: Any, at: int, with_what: Any) -> Any:
    """Cut a piece out of a message, and put another there."""
    place = at % (len(content) + 1)
    return content[:place] + with_what + content[place + at % 7 :]


texts = st.one_of(
    st.text(max_size=60),
    several_frames.map(lambda several: text_of(several[0])),
    st.builds(damaged, good.map(text_of), st.integers(0, 500), st.text(max_size=4)),
)
binaries = st.one_of(
    st.binary(max_size=60),
    several_frames.map(lambda several: MSGPACK.encode(several[0])),
    st.builds(damaged, good.map(MSGPACK.encode), st.integers(0, 500), st.binary(max_size=4)),
)


def withstand(service: Running, model: Model, form: Form, frames: list[Any]) -> None:
    """Send frames, and then a good prediction, on one connection."""
    with service.stream(form) as stream:
        for frame in frames:
            stream.send(frame)
        stream.say("begin", "the good one")
        stream.groups("the good one", VALUES)
        replies = [stream.hear()]
        while replies[-1].get("id") != "the good one":
            replies.append(stream.hear())
        *others, answer = replies
        assert timeless(answer) == expected(model, VALUES)
        for reply in others:
            assert reply["type"] in ("answer", "update", "error")
            if reply["type"] == "error":
                assert 400 <= reply["problem"]["status"] < 500, reply
                assert len(reply["problem"]["detail"]) < 1_000


@pytest.mark.parametrize(
    ("form", "frames"),
    [
        (JSON, st.lists(texts, min_size=1, max_size=8) | several_frames.map(lambda several: [*map(text_of, several)])),
        (
            MSGPACK,
            st.lists(binaries, min_size=1, max_size=8)
            | several_frames.map(lambda several: [*map(MSGPACK.encode, several)]),
        ),
    ],
    ids=["text", "bytes"],
)
def test_no_frames_break_a_connection(
    service: Running, model: Model, form: Form, frames: st.SearchStrategy[list[Any]]
) -> None:
    @quick(max_examples=150)
    @given(frames)
    def check(sent: list[Any]) -> None:
        withstand(service, model, form, sent)

    with logged() as records:
        check()
    assert not records
    until(lambda: service.metric("anytime_open_predictions") == 0)
