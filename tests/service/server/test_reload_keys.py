"""Keys that change while the server runs, and the connections of a removed key."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from anytime.inference.prediction import Settled
from anytime_service import cli
from anytime_service.errors import KeysError
from anytime_service.limits.tuning import Tuning
from service.commands import command
from service.doors import MANAGING, PREDICTING, WRONG, bearer, keyed, refused
from service.serving import BASE_RATE, Gate, Running, logged
from waiting import until

SECOND = "second-0123456789.abc_~"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(f"{PREDICTING}\n")
    return file


@pytest.fixture
def rotating(file: Path) -> Iterator[Running]:
    with keyed(f"admin:{MANAGING}", Tuning(key_check_s=0.05), api_keys_file=file) as service:
        yield service


def replace(file: Path, content: str) -> None:
    """Put another file in its place at once, as tools do that hand out secrets."""
    file.with_suffix(".new").write_text(content)
    file.with_suffix(".new").replace(file)


def holds(client: httpx.Client, key: str) -> bool:
    return client.get("/models", headers=bearer(key)).status_code == 200


def test_keys_follow_their_file_and_those_of_the_variable_stay(rotating: Running, file: Path) -> None:
    with httpx.Client(base_url=rotating.url) as client:
        assert [holds(client, key) for key in (MANAGING, PREDICTING, SECOND)] == [True, True, False]
        replace(file, f"{PREDICTING}\n{SECOND}\n")
        until(lambda: holds(client, SECOND))
        assert holds(client, PREDICTING), "both hold for a while"
        file.write_text(f"# Ann's\n{SECOND}\n")
        until(lambda: not holds(client, PREDICTING))
        assert holds(client, SECOND)
        assert holds(client, MANAGING)


def test_an_invalid_key_file_is_logged_once_and_the_keys_stay(rotating: Running, file: Path) -> None:
    with httpx.Client(base_url=rotating.url) as client, logged("anytime_service") as records:
        for spoil in (partial(replace, file, f"{SECOND} {SECOND}\n"), file.unlink, partial(replace, file, "")):
            count = len(records)
            spoil()
            until(lambda count=count: len(records) == count + 1)  # type: ignore[misc]
            assert holds(client, PREDICTING)
        replace(file, f"{SECOND}\n")
        until(lambda: holds(client, SECOND))
        assert not holds(client, PREDICTING)
    faults = ("line 1 is not a valid key", "cannot read key file", "contains no key")
    for record, words in zip(records, faults, strict=True):
        assert re.match(f"could not reload the keys; .*{words}", record.getMessage())
        assert SECOND not in record.getMessage()


def test_a_websocket_whose_key_is_removed_is_answered_and_closed(rotating: Running, file: Path) -> None:
    with (
        rotating.stream(additional_headers=bearer(PREDICTING)) as going,
        rotating.stream(additional_headers=bearer(MANAGING)) as staying,
    ):
        for stream in (going, staying):
            stream.say("begin", 1, deadline_ms=2_000)
            stream.ask(2, deadline_ms=0)
        replace(file, f"{SECOND}\n")
        answer = going.answer(1)
        assert (answer["reason"], answer["prediction"]) == ("draining", BASE_RATE)
        assert going.closed() == (1008, "the API key is no longer valid")
        assert staying.end(1)["reason"] == "end"
    assert refused(rotating, additional_headers=bearer(PREDICTING)).status_code == 401
    with rotating.stream(additional_headers=bearer(SECOND)) as stream, httpx.Client(base_url=rotating.url) as client:
        replace(file, f"{PREDICTING}\nadmin:{SECOND}\n")
        until(lambda: holds(client, PREDICTING))
        assert stream.ask(1, deadline_ms=0), "its key has another scope"


def test_a_websocket_whose_key_is_removed_closes_after_the_answers_that_the_worker_still_makes(
    rotating: Running, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, rows = Gate(monkeypatch, Settled, "make_arrays"), 3_000
    with (
        rotating.stream(additional_headers=bearer(PREDICTING)) as stream,
        httpx.Client(base_url=rotating.url) as client,
    ):
        stream.say("begin", 1, rows=rows, deadline_ms=0)
        stream.say("group", 1, group="speed", values=[])  # too late, but no error
        stream.say("begin", 2)
        stream.ask(3, deadline_ms=0)
        replace(file, f"{SECOND}\n")
        assert stream.answer(2)["prediction"] == BASE_RATE
        until(lambda: not holds(client, PREDICTING))
        worker.open()
        assert stream.answer(1)["prediction"] == [BASE_RATE] * rows
        assert stream.closed()[0] == 1008


def test_the_command_reads_keys_at_a_hangup_refuses_bad_ones_and_logs_none(file: Path, model_file: Path) -> None:
    file.write_text(f"guess\n{PREDICTING}\n")
    keys = {"ANYTIME_API_KEYS": f"admin:{MANAGING}", "ANYTIME_API_KEYS_FILE": str(file)}
    with command(model_file, **keys) as (served, service):
        with httpx.Client(base_url=service.url) as client:
            assert [holds(client, key) for key in (MANAGING, PREDICTING, WRONG)] == [True, True, False]
            with service.stream(subprotocols=["anytime.v1", f"anytime.key.{PREDICTING}"]):
                pass
            assert refused(service, subprotocols=["anytime.v1", f"anytime.key.{WRONG}"]).status_code == 401
            file.write_text(f"{SECOND}\n")
            served.process.send_signal(signal.SIGHUP)
            until(lambda: holds(client, SECOND))
            file.write_text(f"{SECOND}: not one\n")
            served.process.send_signal(signal.SIGHUP)
            until(lambda: any("could not reload the keys" in line for line in served.lines))
        served.process.terminate()
        said = served.stopped()
    assert "keys that are short enough to guess: 1;" in said
    assert "keys reloaded: 2 are valid" in said
    assert not [key for key in (MANAGING, PREDICTING, WRONG, SECOND, "guess\n") if key in said]


def test_an_unreadable_key_file_prevents_the_start(
    file: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(f"{SECOND} {SECOND}\n")
    monkeypatch.setenv("ANYTIME_API_KEYS_FILE", str(file))
    with pytest.raises(KeysError, match=r"^key file '\S+': line 1 is not a valid key; expected .*$") as refused:
        cli.serve([model_file], port=0)
    assert SECOND not in repr(refused.value)
