"""The client and keys, against the service itself: a refused key is an error, and never mistaken for a slow network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from anytime_service.client import Client, ProblemError
from anytime_service.client.transport import Network
from service.doors import MANAGING, PREDICTING, WRONG, keyed
from service.serving import EXTRACTORS, VALUES, Running


@pytest.fixture(scope="module")
def guarded() -> Iterator[Running]:
    with keyed() as service:
        yield service


CALLS: dict[str, Callable[[Client], Any]] = {
    "predict": lambda client: client.predict(VALUES),
    "predict by a deadline": lambda client: client.predict(VALUES, deadline_ms=50),
    "run": lambda client: client.run(EXTRACTORS, VALUES, deadline_ms=50),
    "warm_up": lambda client: client.warm_up(),
    "models": lambda client: client.models(),
    "model": lambda client: client.model("brake"),
    "plan": lambda client: client.plan("brake"),
    "session": lambda client: client.session().__enter__(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(("key", "message"), [(None, "the API key is missing"), (WRONG, "is invalid")])
def test_every_call_with_a_refused_key_raises_at_once(
    guarded: Running, call: Callable[[Client], Any], key: str | None, message: str
) -> None:
    with Client(guarded.url, api_key=key) as client:
        for _ in range(2):
            with pytest.raises(ProblemError, match=message) as refused:
                call(client)
            assert (refused.value.status, refused.value.type) == (401, "urn:anytime:problem:key-needed")
            assert WRONG not in str(refused.value)


async def test_an_insufficient_scope_is_a_problem(guarded: Running) -> None:
    for key, words in ((PREDICTING, r"scope of the API key is predict.*\(403\)"), (MANAGING, r"from files.*\(409\)")):
        network = Network(guarded.url, key, 10.0)
        with pytest.raises(ProblemError, match=words):
            await network.request("POST", "/models/brake/reload")
        await network.close()
