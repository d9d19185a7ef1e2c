"""The server as a process: what it prints, where it listens, how it stops."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import typer
from typer.testing import CliRunner

import anytime_service
from anytime.cli.main import main
from anytime.errors import AnytimeError, ArtifactError
from anytime.model.model import Model
from anytime_service import cli
from anytime_service.app import create_app
from anytime_service.errors import AddressError, RegistryError
from anytime_service.models.registry import ModelRegistry
from anytime_service.server.run import SWITCH_S, bind
from anytime_service.settings import Settings
from service.serving import BASE_RATE, VALUES, Running, running, small_model
from waiting import until

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONWARNINGS": "error"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    small_model().save(tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


@contextmanager
def command(code: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", code], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"serving 'brake' on (\S+)", line):
            return found[1]
    raise AssertionError("the server stopped before it listened")


def test_the_command_serves_and_stops_on_a_signal(file: Path) -> None:
    code = f"from anytime_service.cli import serve; from pathlib import Path; serve([Path({str(file)!r})], port=0)"
    with command(code) as process:
        url = address(process)
        port = int(url.rpartition(":")[2])
        assert httpx.post(f"{url}/predict", json={"groups": VALUES}).json()["complete"]
        with Running(port).connect() as connection:
            connection.head("deadline_ms=10", 100)
            assert connection.response()[2]["prediction"] == BASE_RATE
            assert connection.at_end()
        with Running(port).connect() as connection:
            connection.head("deadline_ms=500", 100)
            process.send_signal(signal.SIGTERM)
            assert connection.response()[0] == 200, "what is open is answered first"
        _, errors = process.communicate(timeout=30)
    assert process.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in errors
    assert "ERROR" not in errors


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_removes_the_unix_socket(file: Path, tmp_path: Path, stop: signal.Signals) -> None:
    path = tmp_path / "s"
    code = f"""
from pathlib import Path
from anytime_service.cli import serve
serve([Path({str(file)!r})], uds=Path({str(path)!r}))
"""
    with command(code) as process:
        assert address(process) == f"unix:{path}"
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            assert client.get("http://test/livez").status_code == 200
        process.send_signal(stop)
        _, errors = process.communicate(timeout=30)
    assert "Traceback" not in errors
    assert process.returncode == (0 if stop is signal.SIGINT else -stop)
    assert not path.exists()


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", "<&- >&- 2>&-"])
def test_a_server_starts_without_standard_streams(file: Path, tmp_path: Path, closed: str, form: str) -> None:
    path = tmp_path / "s"
    line = f"exec {sys.executable} -m anytime serve {file} --uds {path} {closed}"
    process = subprocess.Popen(["sh", "-c", line], env=ENVIRONMENT | {"ANYTIME_LOG_FORMAT": form})

    def listens() -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(path)) == 0

    try:
        until(lambda: listens() or process.poll() is not None, "the server listens: its file is there before")
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            assert client.get("http://test/livez").status_code == 200
            assert client.post("http://test/predict", json={"groups": VALUES}).json()["complete"]
    finally:
        process.terminate()
        process.wait(30)


def test_one_blas_thread_serves_and_tracing_is_not_loaded_unless_set(file: Path) -> None:
    code = f"""
import anytime_service.server.run as server, sys, threadpoolctl
from anytime_service import load_registry, load_settings
def run(self, sockets):
    print({{pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}})
    assert not [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
server.uvicorn.Server.run = run
server.serve(load_registry([{str(file)!r}]), load_settings(port=0))
"""
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{1}"


def test_a_unix_socket_serves_and_is_removed_at_the_end(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "s"
    code = f"""
from anytime_service.cli import serve; from pathlib import Path
serve([Path({str(file)!r})], uds=Path({str(path)!r}))"""
    with command(code) as process:
        assert address(process) == f"unix:{path}"
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://test") as client:
            assert client.post("/predict", json={"groups": VALUES}).status_code == 200
        with pytest.raises(AddressError, match="in use"), bind(Settings(uds=path)):
            pass
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert not path.exists()


def test_a_socket_left_behind_is_replaced_and_a_file_is_not(tmp_path: Path) -> None:
    stale = tmp_path / "stale"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(stale))
    with bind(Settings(uds=stale)):
        assert stale.exists()
    kept = tmp_path / "kept"
    kept.write_text("something else")
    with pytest.raises(AddressError, match="in use"), bind(Settings(uds=kept)):
        pass
    assert kept.read_text() == "something else"


def test_a_port_in_use_is_one_line_and_exit_1(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bind(Settings(port=0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(file), "--port", str(port)]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"error: cannot listen on 127.0.0.1:{port}: address already in use" in told


def test_the_command_has_its_options() -> None:
    app = typer.Typer()
    app.command()(cli.serve)
    told = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
    assert told.exit_code == 0
    assert all(option in told.output for option in ("--host", "--port", "--uds", "127.0.0.1", "8000"))


def test_serving_without_models_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANYTIME_MODELS", raising=False)
    with pytest.raises(AnytimeError, match="no model to serve"):
        cli.serve([])
    with pytest.raises(RegistryError):
        cli.serve([tmp_path])
    (tmp_path / "m.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ArtifactError):
        cli.serve([tmp_path])


def test_without_its_requirements_the_command_names_what_to_install(file: Path) -> None:
    code = f"""
import sys
sys.modules["fastapi"] = None
from anytime import AnytimeError
from anytime_service.cli import serve
try:
    serve([{str(file)!r}])
except AnytimeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert "pip install 'anytime-linear[serve]'" in done.stdout


def test_importing_has_no_side_effects_and_loads_no_server() -> None:
    code = """
import logging, sys
import anytime_service, anytime_service.cli
assert not {"fastapi", "uvicorn", "msgspec", "pydantic_settings"} & set(sys.modules)
assert not logging.getLogger().handlers
assert not logging.getLogger("uvicorn").handlers
"""
    subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=True)


def test_exports_are_sorted_and_there() -> None:
    assert anytime_service.__all__ == sorted(anytime_service.__all__)
    assert all(hasattr(anytime_service, name) for name in anytime_service.__all__)
    with pytest.raises(AttributeError):
        _ = anytime_service.nothing


def test_other_threads_release_the_interpreter_soon_while_a_server_runs(model: Model) -> None:
    settings = Settings(port=0)
    app = create_app(ModelRegistry.of([model]), settings)
    before = sys.getswitchinterval()
    with running(app, settings), running(app, settings):
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    assert sys.getswitchinterval() == pytest.approx(before)
