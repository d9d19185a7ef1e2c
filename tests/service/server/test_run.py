"""The server as a process: what it prints, where it listens, how it stops."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from anytime.errors import AnytimeError
from anytime.model.model import Model
from anytime_service import cli
from anytime_service.client import Client
from anytime_service.errors import AddressError, RegistryError
from anytime_service.server.run import SWITCH_S, bind
from anytime_service.settings import Settings
from models.commands import Capture, ran
from models.present import present
from service.commands import ENVIRONMENT
from service.serving import VALUES, run_service
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
            _, errors = process.communicate(timeout=30)
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
        process.wait(30)
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
run.build_server = stage("server", run.build_server)
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
