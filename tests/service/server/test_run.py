"""The server as a process: what it prints, where it listens, how it stops."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from anytime import load
from anytime.errors import AnytimeError
from anytime.model.model import Model
from anytime_service import cli
from anytime_service.app import create_app
from anytime_service.client import Client
from anytime_service.errors import AddressError, RegistryError
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas.codecs import JSON, MSGPACK
from anytime_service.server.run import SWITCH_S, bind
from anytime_service.settings import Settings
from models.commands import Capture, ran
from models.present import present
from service.commands import ENVIRONMENT, command
from service.in_session import begin, post_groups
from service.serving import (
    LINES,
    VALUES,
    Running,
    chunk,
    expected,
    lines_of,
    logged,
    problem_in,
    run_service,
    running,
    timeless,
)
from waiting import until


def test_a_unix_socket_serves_until_an_interrupt_removes_it(model_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "s"
    serve = [sys.executable, "-m", "anytime", "serve", str(model_file), "--uds", str(path)]
    with subprocess.Popen(serve, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert f"on unix:{path}" in next(line for line in present(process.stderr) if "serving 'brake'" in line)
            with Client(f"unix:{path}") as client:
                assert client.predict(VALUES).complete
                assert client.models()[0].name == "brake"
            with pytest.raises(AddressError, match="in use"), bind(Settings(uds=path)):
                pass
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert "Traceback" not in errors
    assert process.returncode == 0
    assert not path.exists()


@pytest.mark.parametrize(("closed", "form"), [("<&- >&- 2>&-", "text"), ("2>&-", "json")], ids=["all", "errors"])
def test_a_server_starts_without_standard_streams(model_file: Path, tmp_path: Path, closed: str, form: str) -> None:
    path = tmp_path / "s"
    line = f"exec {sys.executable} -m anytime serve {model_file} --uds {path} {closed}"
    process = subprocess.Popen(["sh", "-c", line], env=ENVIRONMENT | {"ANYTIME_LOG_FORMAT": form})

    def listens() -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(path)) == 0

    try:
        until(lambda: listens() or process.poll() is not None, "the server listens: its file is there before")
        with Client(f"unix:{path}") as client:
            assert client.predict(VALUES).complete
    finally:
        process.terminate()
        process.wait(60)
    assert (process.returncode, path.exists()) == (-signal.SIGTERM, False)


def printed(code: str) -> str:
    """What a program prints that ends well."""
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_one_blas_thread_serves_and_tracing_is_not_loaded_unless_set(model_file: Path) -> None:
    code = f"""
import anytime_service.server.run as server, sys, threadpoolctl
from anytime_service import load_registry, load_settings
def run(self, sockets):
    print({{pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}})
    assert not [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
server.uvicorn.Server.run = run
server.serve(load_registry([{str(model_file)!r}]), load_settings(port=0))
"""
    assert printed(code) == "{1}"


def test_a_socket_left_behind_is_replaced_and_a_file_is_not(tmp_path: Path) -> None:
    stale = tmp_path / "stale"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(stale))
    with bind(Settings(uds=stale)):
        assert stale.exists()
    stale.write_text("something else")
    with pytest.raises(AddressError, match="in use"), bind(Settings(uds=stale)):
        pass
    assert stale.read_text() == "something else"


def test_a_port_in_use_is_one_line_and_exit_1(model_file: Path, capsys: Capture) -> None:
    with bind(Settings(port=0)) as taken:
        port = taken.getsockname()[1]
        reported = ran(capsys, "serve", str(model_file), "--port", str(port), code=1).err
    assert reported.count("\n") == 1
    assert f"error: cannot listen on 127.0.0.1:{port}: address already in use" in reported


def test_serving_without_models_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANYTIME_MODELS", raising=False)
    with pytest.raises(AnytimeError, match="no model to serve"):
        cli.serve([])
    with pytest.raises(RegistryError):  # what else is no model, `models/test_registry.py` tests
        cli.serve([tmp_path])


def test_importing_has_no_side_effects_and_the_command_names_what_it_lacks(model_file: Path) -> None:
    code = f"""
import logging, sys
import anytime_service, anytime_service.cli
assert not {{"fastapi", "uvicorn", "msgspec", "pydantic_settings"}} & set(sys.modules)
assert not logging.getLogger().handlers
assert not logging.getLogger("uvicorn").handlers
sys.modules["fastapi"] = None
from anytime import AnytimeError
try:
    anytime_service.cli.serve([{str(model_file)!r}])
except AnytimeError as error:
    print(error)
"""
    assert "pip install 'anytime-linear[serve]'" in printed(code)


def test_other_threads_release_the_interpreter_soon_while_a_server_runs(model: Model) -> None:
    before, settings = sys.getswitchinterval(), Settings(port=0)
    with run_service([model], settings), run_service([model], settings):
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    assert sys.getswitchinterval() == pytest.approx(before)


# SIGHUP never ends a server: while it starts it is remembered, and while it stops it is ignored.


HUNG_UP = """
import asyncio, contextlib, os, signal, sys, warnings
import anytime_service.models.registry as registry
import anytime_service.server.run as run
from anytime.cli.main import main
from anytime_service import hangup

def hang_up():
    os.kill(os.getpid(), signal.SIGHUP)

def stage(name, function):
    def hooked(*arguments, **options):
        if name == at:
            hang_up()
        return function(*arguments, **options)
    return hooked

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a shell may have run the tests by nohup
registry.load_registry = stage("load", registry.load_registry)
run.Server.__init__ = stage("server", run.Server.__init__)
real = run.Server.startup, run.Server.shutdown, run.Server._reload_models, run.single_blas_thread

async def startup(self, sockets=None):
    await real[0](self, sockets)
    if at == "stop":  # once it has started
        asyncio.get_running_loop().call_later(0.1, signal.raise_signal, signal.SIGTERM)

async def shutdown(self, sockets=None):
    await real[1](self, sockets)
    if at == "stop":
        hang_up()

async def reload(self):
    await real[2](self)
    print("reloaded", file=sys.stderr, flush=True)
    signal.raise_signal(signal.SIGTERM)

@contextlib.contextmanager
def block():
    try:
        with real[3]():
            yield
    finally:
        if at == "stop":
            hang_up()  # the event loop is closed
        print("cleaned up", file=sys.stderr, flush=True)

run.Server.startup, run.Server.shutdown, run.Server._reload_models = startup, shutdown, reload
run.single_blas_thread = block
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork next to other threads
for at in ("load", "server", "stop"):
    child = os.fork()
    if not child:
        os._exit(main(["serve", sys.argv[1], "--port", "0"]))
    print("ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=sys.stderr, flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no SIGHUP here")
def test_sighup_is_remembered_while_a_server_starts_and_ignored_while_it_stops(model_file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HUNG_UP, str(model_file)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    *outputs, _ = done.stderr.split("ended with ")
    assert done.stderr.count(f"ended with {-signal.SIGTERM}\n") == 3, done.stderr
    for output, reloaded in zip(outputs, (True, True, False), strict=True):
        assert [words in output for words in ("serving 'brake'", "reloaded", "cleaned up")] == [True, reloaded, True]


# A service that stops: what is open is answered before its connection closes, and nothing more is begun.


SPEED = {"speed": VALUES["speed"]}
PATIENT = {"ANYTIME_MAX_LATENESS_MS": "1000", "ANYTIME_MAX_DEADLINE_MS": "3600000"}


def test_what_is_open_is_answered_before_its_connection_closes_and_probes_are_answered_meanwhile(
    model_file: Path,
) -> None:
    model = load(model_file)
    reported = expected(model, SPEED)
    with (
        command(model_file, **PATIENT, ANYTIME_METRICS_PORT="0") as (served, started),
        ThreadPoolExecutor(1) as threads,
        started.stream(JSON) as text,
        started.stream(MSGPACK) as binary,
        started.connect() as whole,
        started.connect() as lines,
    ):
        service = Running(started.port, int(served.said(r"metrics on http://\S+:(\d+)")[1]))
        for name in range(20):
            for stream in (text, binary):
                stream.say("begin", name)
                stream.groups(name, SPEED)
        whole.head(length=1_000)
        whole.send(b'{"groups": ')
        lines.head(content_type=LINES)
        lines.send(chunk(lines_of(SPEED)))
        session = begin(service)
        post_groups(service, session, SPEED)
        waiting = threads.submit(service.get, f"/sessions/{session}/predict", deadline_ms=3_600_000)
        until(lambda: service.metric("anytime_open_predictions") == 43)
        served.process.send_signal(signal.SIGTERM)
        for stream in (text, binary):
            answers = {message["id"]: message for message in (stream.hear() for _ in range(20))}
            assert sorted(answers) == list(range(20))
            for answer in answers.values():
                assert (answer["type"], answer["reason"], answer["complete"]) == ("answer", "draining", False)
                assert timeless(answer) == reported
            assert stream.closed()[0] == 1012
        # Two bodies have not ended, so that the service goes on for a while.
        unready = service.scrape("/readyz")
        assert (unready.status_code, unready.json()["detail"]) == (503, "the service is stopping")
        assert service.scrape("/livez").status_code == 200
        by_session = waiting.result(60).json()
        assert (by_session["reason"], timeless(by_session)) == ("draining", reported)
        for connection, expectation in ((whole, expected(model, {})), (lines, reported)):
            status, _, answer = connection.response()
            assert (status, answer["reason"], timeless(answer)) == (200, "draining", expectation)
        assert service.metric("anytime_predictions_total", model="brake", reason="draining") == 43
        assert whole.at_end()
        assert lines.at_end()
        errors = served.stopped()
        for probe in (service.get, service.scrape):
            with pytest.raises(httpx.ConnectError):
                probe("/livez")
    assert served.process.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in errors
    assert "ERROR" not in errors


def test_a_draining_service_begins_nothing_more(model: Model) -> None:
    limits = Settings(port=0)
    app = create_app(ModelRegistry.of([model]), limits)
    with running(app, limits) as service, service.stream() as stream, logged() as records:
        app.state.service.drain()
        stream.say("begin", "more")
        problem = stream.problem()
        assert (problem["status"], problem["id"]) == (503, "more")
        assert "stopping" in problem["detail"]
        response = service.post({"groups": VALUES})
        assert (problem_in(response, 503)["status"], response.headers["retry-after"]) == (503, "1")
        with pytest.raises(InvalidStatus) as refused, service.stream():
            pass
        assert refused.value.response.status_code == 503
        # What uvicorn says of handshakes that are refused is another's promise, see test_websocket.
        unexpected: list[Any] = [record for record in records if "handshake" not in record.getMessage()]
    assert not unexpected
