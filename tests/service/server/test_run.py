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


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_unix_socket_serves_until_a_signal_removes_it(model_file: Path, tmp_path: Path, stop: signal.Signals) -> None:
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
            process.send_signal(stop)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert "Traceback" not in errors
    assert process.returncode == (0 if stop is signal.SIGINT else -stop)
    assert not path.exists()


@pytest.mark.parametrize(
    ("closed", "form"),
    [("<&- >&-", "json"), ("2>&-", "text"), ("2>&-", "json"), ("<&- >&- 2>&-", "text")],
    ids=["input and output", "errors, text", "errors, JSON", "all"],
)
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
