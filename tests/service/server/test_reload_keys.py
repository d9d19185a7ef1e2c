"""Keys that change while the server runs, and the connections of a removed key."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from anytime.inference.prediction import Answer, Settled
from anytime_service import cli
from anytime_service.errors import KeysError
from anytime_service.limits.tuning import Tuning
from service.commands import command
from service.doors import MANAGING, PREDICTING, WRONG, bearer, keyed, refused
from service.serving import BASE_RATE, Running, logged, small_model
from waiting import WAIT_S, until

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
    written = file.with_suffix(".new")
    written.write_text(content)
    os.replace(written, file)


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
        replace(file, f"{SECOND} {SECOND}\n")
        until(lambda: len(records) == 1)
        file.unlink()
        until(lambda: len(records) == 2)
        assert holds(client, PREDICTING)
        replace(file, "")
        until(lambda: len(records) == 3)
        replace(file, f"{SECOND}\n")
        until(lambda: holds(client, SECOND))
        assert not holds(client, PREDICTING)
    said = [record.getMessage() for record in records]
    for message, words in zip(
        said, ("line 1 is not a valid key", "cannot read key file", "contains no key"), strict=True
    ):
        assert message.startswith("could not reload the keys; ")
        assert words in message
        assert SECOND not in message


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
        with pytest.raises(ConnectionClosed) as closed:
            going.hear()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "the API key is no longer valid")
        assert staying.end(1)["reason"] == "end"
    assert refused(rotating, additional_headers=bearer(PREDICTING)).status_code == 401
    with rotating.stream(additional_headers=bearer(SECOND)) as stream:
        stream.ask(1, deadline_ms=0)


def test_a_websocket_whose_key_is_removed_closes_after_the_answers_that_the_worker_still_makes(
    rotating: Running, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed, make, rows = Event(), Settled.make_arrays, 3_000

    def wait_and_make(settled: Settled) -> Answer:
        assert removed.wait(WAIT_S)
        return make(settled)

    monkeypatch.setattr(Settled, "make_arrays", wait_and_make)
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
        removed.set()
        assert stream.answer(1)["prediction"] == [BASE_RATE] * rows
        with pytest.raises(ConnectionClosed) as closed:
            stream.hear()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


def test_a_websocket_stays_open_when_the_scope_of_its_key_changes(rotating: Running, file: Path) -> None:
    with (
        rotating.stream(additional_headers=bearer(PREDICTING)) as stream,
        httpx.Client(base_url=rotating.url) as client,
    ):
        replace(file, f"{SECOND}\nadmin:{PREDICTING}\n")
        until(lambda: holds(client, SECOND))
        stream.ask(1, deadline_ms=0)


def test_the_command_reads_keys_at_a_hangup_refuses_bad_ones_and_logs_none(file: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    small_model().save(models / "m.safetensors")
    file.write_text(f"guess\n{PREDICTING}\n")
    with command(models, ANYTIME_API_KEYS=f"admin:{MANAGING}", ANYTIME_API_KEYS_FILE=str(file)) as (served, service):
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


def test_an_unreadable_key_file_prevents_the_start(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_model().save(tmp_path / "m.safetensors")
    file.write_text(f"{SECOND} {SECOND}\n")
    monkeypatch.setenv("ANYTIME_API_KEYS_FILE", str(file))
    with pytest.raises(KeysError, match=r"^key file '\S+': line 1 is not a valid key; expected .*$") as refused:
        cli.serve([tmp_path], port=0)
    assert SECOND not in repr(refused.value)
