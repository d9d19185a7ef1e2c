"""Frames of every kind of nonsense: each is reported or dropped, and a good prediction works after it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime.model.model import Model
from anytime_service.schemas.codecs import JSON, MSGPACK, Form
from models.properties import quick
from service.serving import VALUES, Running, expected, logged, timeless
from waiting import until

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
packed = st.binary(max_size=40)
anything = st.recursive(
    scalars | packed,
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
fields = st.sampled_from(
    [*("type", "id", "model", "rows", "budget", "deadline_ms", "policy", "updates", "ranking"), "group", "values", "x"]
)
changed = st.builds(lambda frame, name, value: {**frame, name: value}, good, fields, anything)
lacking = st.builds(lambda frame, name: {key: frame[key] for key in frame if key != name}, good, fields)
messages = st.lists(good | changed | lacking | anything, min_size=1, max_size=8)


def text_of(message: Any) -> str:
    """JSON as a careless client writes it: NaN and infinity, and bytes as something else."""
    return json.dumps(message, default=lambda content: content.decode("latin-1"))


def damaged(content: Any, at: int, with_what: Any) -> Any:
    """Cut a piece out of a message, and put another there."""
    place = at % (len(content) + 1)
    return content[:place] + with_what + content[place + at % 7 :]


texts = st.one_of(
    st.text(max_size=60),
    messages.map(lambda several: text_of(several[0])),
    st.builds(damaged, good.map(text_of), st.integers(0, 500), st.text(max_size=4)),
)
binaries = st.one_of(
    st.binary(max_size=60),
    messages.map(lambda several: MSGPACK.encode(several[0])),
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
        (JSON, st.lists(texts, min_size=1, max_size=8) | messages.map(lambda several: [*map(text_of, several)])),
        (
            MSGPACK,
            st.lists(binaries, min_size=1, max_size=8) | messages.map(lambda several: [*map(MSGPACK.encode, several)]),
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
