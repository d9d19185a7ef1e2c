"""The server as a process: what it prints, where it listens, how it stops."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from anytime.errors import AnytimeError, ArtifactError
from anytime.model.model import Model
from anytime_service import cli
from anytime_service.app import create_app
from anytime_service.client import Client
from anytime_service.errors import AddressError, RegistryError
from anytime_service.models.registry import ModelRegistry
from anytime_service.server.run import SWITCH_S, bind
from anytime_service.settings import Settings
from models.commands import Capture, ran
from models.present import present
from service.commands import ENVIRONMENT, command
from service.serving import BASE_RATE, VALUES, running, small_model
from waiting import until


@pytest.fixture
def file(tmp_path: Path) -> Path:
    small_model().save(tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


def test_the_command_answers_what_is_open_and_stops_on_a_signal(file: Path) -> None:
    with command(file) as (served, service):
        assert service.post({"groups": VALUES}).json()["complete"]
        with service.connect() as connection:
            connection.head("deadline_ms=10", 100)
            assert connection.response()[2]["prediction"] == BASE_RATE
            assert connection.at_end()
        with service.connect() as connection:
            connection.head("deadline_ms=9000", 100)
            until(lambda: service.metric("anytime_open_predictions") == 1)
            served.process.send_signal(signal.SIGTERM)
            assert connection.response()[0] == 200, "what is open is answered first"
        errors = served.stopped()
    assert served.process.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in errors
    assert "ERROR" not in errors


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_unix_socket_serves_until_a_signal_removes_it(file: Path, tmp_path: Path, stop: signal.Signals) -> None:
    path = tmp_path / "s"
    code = f"""
from pathlib import Path
from anytime_service.cli import serve
serve([Path({str(file)!r})], uds=Path({str(path)!r}))
"""
    with subprocess.Popen([sys.executable, "-c", code], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
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


def test_a_port_in_use_is_one_line_and_exit_1(file: Path, capsys: Capture) -> None:
    with bind(Settings(port=0)) as taken:
        port = taken.getsockname()[1]
        reported = ran(capsys, "serve", str(file), "--port", str(port), code=1).err
    assert reported.count("\n") == 1
    assert f"error: cannot listen on 127.0.0.1:{port}: address already in use" in reported


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


def test_other_threads_release_the_interpreter_soon_while_a_server_runs(model: Model) -> None:
    settings = Settings(port=0)
    app = create_app(ModelRegistry.of([model]), settings)
    before = sys.getswitchinterval()
    with running(app, settings), running(app, settings):
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    assert sys.getswitchinterval() == pytest.approx(before)
