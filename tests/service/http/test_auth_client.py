"""The client and keys, against the service itself: a refused key is an error, and never mistaken for a slow network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from anytime_service.client import Client, ProblemError
from anytime_service.client.transport import Network
from anytime_service.limits.tuning import Tuning
from service.doors import HASHED, MANAGING, PREDICTING, WRONG, bearer, keyed
from service.serving import BASE_RATE, EXTRACTORS, VALUES, Running
from waiting import until


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


def test_a_valid_key_works_over_http_and_websocket(guarded: Running) -> None:
    for key in (PREDICTING, HASHED, MANAGING):
        with Client(guarded.url, api_key=key) as client:
            assert client.predict(VALUES).complete
            assert client.run(EXTRACTORS, VALUES, deadline_ms=2_000).complete
            assert client.models()[0].name == "brake"
            with client.session() as session:
                session.add("speed", VALUES["speed"])
                assert session.predict().prefix == 1


async def test_an_insufficient_scope_is_a_problem(guarded: Running) -> None:
    for key, words in ((PREDICTING, r"scope of the API key is predict.*\(403\)"), (MANAGING, r"from files.*\(409\)")):
        network = Network(guarded.url, key, 10.0)
        with pytest.raises(ProblemError, match=words):
            await network.request("POST", "/models/brake/reload")
        await network.close()


def test_the_removal_of_a_key_during_a_run_is_reported_by_the_next_call(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(PREDICTING)

    def rotate(_: Any) -> Any:
        until(lambda: service.scrape(**bearer(HASHED)).text.count("\nanytime_open_predictions 1.0\n"))
        file.write_text(MANAGING)
        until(lambda: httpx.get(f"{service.url}/models", headers=bearer(PREDICTING)).status_code == 401)
        return VALUES["hog"]

    with (
        keyed(f"admin:{HASHED}", Tuning(key_check_s=0.05), api_keys_file=file, max_deadline_ms=3_600_000) as service,
        Client(service.url, api_key=PREDICTING) as client,
    ):
        assert client.run(EXTRACTORS, VALUES, deadline_ms=0).prediction == BASE_RATE
        assert client.predict(VALUES).complete, "connected before the key is removed"
        answer = client.run(EXTRACTORS | {"hog": rotate}, VALUES, deadline_ms=3_600_000)
        assert answer.reason == "draining", "the open prediction is answered from the groups received"
        with pytest.raises(ProblemError, match="the API key is invalid"):
            client.predict(VALUES, deadline_ms=500)
        file.write_text(PREDICTING)

        def answers() -> bool:
            try:
                return client.predict(VALUES).complete
            except ProblemError:
                return False

        until(answers)
