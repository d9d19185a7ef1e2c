"""How far a server is heard that cannot tell who asks: no further than its own machine, unless it is told so."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from typer.testing import CliRunner

from anytime_service import cli
from anytime_service.server import bind
from anytime_service.settings import Settings
from service.doors import PREDICTING, bearer, keyed
from service.serving import Running, logged, small_model

KEY = "0123456789abcdef"


def heard_at(**told: Any) -> tuple[Any, list[str]]:
    """Where a server listens, and what it warns of."""
    with logged("anytime_service") as records, bind(Settings(port=0, **told)) as listening:
        name = listening.getsockname()
        return name if isinstance(name, str) else name[0], [record.getMessage() for record in records]


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize(("host", "heard"), [("0.0.0.0", "127.0.0.1"), ("::", "::1")])
def test_without_a_key_only_this_machine_is_served_and_the_log_says_how_to_mend_it(host: str, heard: str) -> None:
    if ":" in host and not has_ipv6():
        pytest.skip("no IPv6 on this machine")
    where, (warning,) = heard_at(host=host)
    assert where == heard
    for words in ("NO KEY", heard, host, "ANYTIME_API_KEYS", "--insecure"):
        assert words in warning


def test_with_a_key_or_told_to_every_address_is_served(tmp_path: Path) -> None:
    assert heard_at(host="0.0.0.0", api_keys=KEY) == ("0.0.0.0", [])
    assert heard_at(host="0.0.0.0", api_keys_file=tmp_path / "keys") == ("0.0.0.0", [])
    assert heard_at(host="0.0.0.0", insecure=True) == ("0.0.0.0", [])


def test_a_name_is_what_it_leads_to(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"here": "127.0.0.7", "localhost": "0.0.0.0"}
    real = socket.getaddrinfo
    monkeypatch.setattr("socket.getaddrinfo", lambda host, *rest, **more: real(known.get(host, host), *rest, **more))
    assert heard_at(host="here") == ("127.0.0.7", [])
    where, warnings = heard_at(host="localhost")
    assert (where, len(warnings)) == ("127.0.0.1", 1)
    assert heard_at(host="localhost", api_keys=KEY) == ("0.0.0.0", [])


def test_a_unix_socket_is_of_this_machine(tmp_path: Path) -> None:
    assert heard_at(uds=tmp_path / "s", host="0.0.0.0") == (str(tmp_path / "s"), [])


def other_address() -> str:
    """An address of this machine that is not of the loopback interface; nothing is sent for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has the loopback interface only")
        found: str = probe.getsockname()[0]
    return found


def status(service: Running, **headers: str) -> int:
    return httpx.get(f"http://{other_address()}:{service.port}/models", headers=headers).status_code


def test_from_elsewhere_there_is_no_service_without_a_key() -> None:
    with keyed(api_keys=(), host="0.0.0.0") as service:
        with pytest.raises(httpx.ConnectError):
            status(service)
        assert service.get("/models").status_code == 200
    with keyed(host="0.0.0.0") as service:
        assert status(service) == 401
        assert status(service, **bearer(PREDICTING)) == 200


def test_whoever_asks_is_served_when_the_server_is_told_that_it_is_insecure() -> None:
    with keyed(api_keys=(), host="0.0.0.0", insecure=True) as service:
        assert status(service) == 200


def test_flags_of_the_command_are_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_model().save(tmp_path / "m.safetensors")
    given: list[Settings] = []
    monkeypatch.setattr("anytime_service.server.serve", lambda _registry, settings: given.append(settings))
    app = typer.Typer()
    app.command()(cli.serve)
    names = ("certfile", "keyfile", "keyfile-password", "ca-certs")
    told = [word for name in names for word in (f"--ssl-{name}", name)]
    assert CliRunner().invoke(app, [str(tmp_path), "--insecure", *told]).exit_code == 0
    assert CliRunner().invoke(app, [str(tmp_path)], env={"ANYTIME_INSECURE": "true"}).exit_code == 0
    assert CliRunner().invoke(app, [str(tmp_path)]).exit_code == 0
    first, second, third = given
    assert (first.ssl_certfile, first.ssl_keyfile, first.ssl_ca_certs) == (
        Path("certfile"),
        Path("keyfile"),
        Path("ca-certs"),
    )
    assert first.ssl_keyfile_password is not None
    assert first.ssl_keyfile_password.get_secret_value() == "keyfile-password"
    assert [each.insecure for each in (first, second, third)] == [True, True, False]
    assert third.ssl_certfile is None
