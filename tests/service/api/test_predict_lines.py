"""`POST /predict` line by line: each group counts when it comes, and the answer need not wait for the end."""

from __future__ import annotations

from time import sleep

import httpx
import pytest

from anytime.model.model import Model
from anytime_service.app import create_app
from anytime_service.limits.turns import AT_ONCE
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas.problem import MEDIA_TYPE
from anytime_service.settings import Settings
from service.serving import LINES, VALUES, Running, chunk, expected, lines_of, logged, running, timeless
from waiting import until

KIND = {"content-type": LINES}
USUAL = Settings(port=0)
OF = {name: lines_of({name: values})[:-1] for name, values in VALUES.items()}


@pytest.mark.parametrize("kind", [LINES, "application/jsonl", "Application/X-NDJSON; charset=utf-8"])
def test_lines_are_answered_like_a_body_that_came_whole(service: Running, model: Model, kind: str) -> None:
    response = httpx.post(f"{service.url}/predict", content=b"\n".join(OF.values()), headers={"content-type": kind})
    assert timeless(response.json()) == expected(model, VALUES)
    assert response.json()["reason"] == "complete"


def test_each_line_counts_when_it_comes_and_the_deadline_does_not_wait_for_the_next(
    service: Running, model: Model
) -> None:
    with service.connect() as connection:
        connection.head("deadline_ms=500", content_type=LINES)
        for name in ("speed", "hog"):
            connection.send(chunk(OF[name] + b"\n"))
            sleep(0.01)
        connection.send(chunk(OF["lab"][:10]))
        _, _, answer = connection.response()
        assert (answer["reason"], answer["complete"], answer["missing"]) == ("deadline", False, ["lab"])
        assert timeless(answer) == expected(model, {name: VALUES[name] for name in ("speed", "hog")})
        connection.send(chunk(OF["lab"][10:]) + b"0\r\n\r\n")
        connection.head(content_type=LINES)
        connection.send(chunk(OF["speed"]) + b"0\r\n\r\n")
        assert connection.response()[2]["groups"] == ["speed"], "the connection serves the next request"


def test_the_line_that_completes_the_budgets_prefix_brings_the_answer(service: Running) -> None:
    with service.connect() as connection:
        connection.head("budget=5", content_type=LINES)
        connection.send(chunk(OF["hog"] + b"\n") + chunk(OF["speed"] + b"\n"))
        answer = connection.response()[2]
        assert (answer["reason"], answer["groups"]) == ("budget", ["speed", "hog"])


def test_lines_may_be_split_across_chunks_anywhere(service: Running, model: Model) -> None:
    content = b"\n" + OF["hog"] + b"\r\n \n" + OF["speed"] + b"\n"
    reported = expected(model, {name: VALUES[name] for name in ("speed", "hog")})
    with service.connect() as connection:
        for at in range(1, len(content)):
            connection.head(content_type=LINES)
            for piece in (content[:at], content[at:]):
                connection.send(chunk(piece))
            connection.send(b"0\r\n\r\n")
            assert timeless(connection.response()[2]) == reported, at
        connection.head(content_type=LINES)
        connection.send(b"".join(chunk(content[i : i + 1]) for i in range(len(content))) + b"0\r\n\r\n")
        assert timeless(connection.response()[2]) == reported


@pytest.mark.parametrize(
    ("line", "status", "field", "words"),
    [
        (b"{", 400, None, "line 3 is not JSON"),
        (b"\xff", 400, None, "line 3 is not JSON"),
        (b"[" * 9_000, 400, None, "line 3"),
        (b"[]", 400, None, "line 3: expected `object`"),
        (b'{"group": "hog"}', 400, None, "missing required field `values`"),
        (b'{"groups": {"hog": [1, 2]}}', 400, None, "unknown field `groups`"),
        (
            b'{"group": "hog", "values": [1, "x"]}',
            422,
            "groups.hog[1]",
            "line 3: values of group 'hog': column 'h1' has 'x'",
        ),
        (b'{"group": "hog", "values": [1, 2], "took_ms": -1}', 400, "took_ms", ">= 0"),
        (b'{"group": "hog", "values": [1]}', 422, "groups.hog", "line 3: values of group 'hog' are 1 x 1"),
        (b'{"group": "hag", "values": [1]}', 422, "groups.hag", "line 3: there is no group 'hag'"),
        (b'{"group": "blood", "values": []}', 422, "groups.blood", "line 3"),
        (b'{"group": "hog", "values": [[1, 2], [3]]}', 422, "groups.hog", "line 3"),
        (OF["hog"] + OF["lab"], 400, None, "line 3 is not JSON"),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_a_line_that_cannot_be_is_a_problem_that_names_it(
    service: Running, line: bytes, status: int, field: str | None, words: str, last: bool
) -> None:
    with logged() as records:
        response = service.post_to(
            "/predict", content=OF["speed"] + b"\n\n" + line + (b"" if last else b"\n" + OF["lab"]), headers=KIND
        )
    assert (response.status_code, response.headers["content-type"]) == (status, MEDIA_TYPE)
    assert response.json().get("field") == field, response.text
    assert words in response.json()["detail"]
    assert "line 3" in response.json()["detail"]
    assert not records
    until(lambda: service.metric("anytime_open_predictions") == 0)


def test_a_long_line_counts_as_stored_while_it_waits_for_its_turn(model: Model) -> None:
    app = create_app(ModelRegistry.of([model]), USUAL)
    core, stored, long = app.state.service, list[int](), OF["hog"].ljust(2 * AT_ONCE) + b"\n"
    turn = core.turns.turn

    async def observed(size: int) -> None:
        stored.append(core.memory.bytes - size)
        await turn(size)

    core.turns.turn = observed
    with running(app, USUAL) as service:
        assert service.post_to("/predict", content=2 * long, headers=KIND).status_code == 200
        until(lambda: core.memory.bytes == 0)
    assert len(stored) == 3, "two lines, and what follows them"
    assert min(stored) >= 0


def test_a_bad_line_is_told_at_once_and_the_connection_lives(service: Running) -> None:
    with service.connect() as connection:
        connection.head(content_type=LINES)
        connection.send(chunk(OF["speed"] + b"\nnonsense\n"))
        assert connection.response()[0] == 400
        connection.send(chunk(OF["hog"]) + b"0\r\n\r\n")
        connection.head(content_type=LINES)
        connection.send(chunk(OF["speed"]) + b"0\r\n\r\n")
        assert connection.response()[0] == 200


def test_lines_above_the_limit_are_a_body_above_the_limit(service: Running) -> None:
    with service.connect() as connection:
        connection.head(content_type=LINES)
        connection.send(chunk(b" " * 50_000 + b"\n") * 2 + chunk(b"\n" * 5))
        assert connection.response()[0] == 413


def test_more_lines_than_are_read_at_a_time_leave_the_deadline_its_turn(service: Running) -> None:
    content = (OF["speed"] + b"\n") * 2_000
    assert service.post_to("/predict", content=content, headers=KIND).json()["replaced"] == ["speed"]
    reply = service.post_to("/predict?deadline_ms=1", content=content, headers=KIND)
    assert reply.json()["reason"] in ("deadline", "end")


def test_a_client_that_leaves_in_the_middle_of_a_line_harms_nobody(service: Running) -> None:
    with logged() as records:
        for _ in range(5):
            with service.connect() as connection:
                connection.head(content_type=LINES)
                connection.send(chunk(OF["speed"] + b'\n{"group'))
        until(lambda: service.metric("anytime_open_predictions") == 0)
    assert not records
