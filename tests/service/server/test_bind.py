"""Addresses: a server without keys listens on the loopback interface only, unless it is set to be insecure."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from anytime.errors import AnytimeError
from anytime_service import cli
from anytime_service.errors import AddressError, KeysError
from anytime_service.server.run import bind
from anytime_service.settings import Settings
from models.commands import Capture, ran, refusal
from models.refusals import assert_refused
from service.doors import keyed
from service.serving import logged

KEY = "0123456789abcdef"


def heard_at(**reported: Any) -> tuple[Any, list[str]]:
    """Where a server listens, and what it warns of."""
    with logged("anytime_service") as records, bind(Settings(port=0, **reported)) as listening:
        name = listening.getsockname()
        return name if isinstance(name, str) else name[0], [record.getMessage() for record in records]


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_without_a_key_a_reachable_address_is_an_error_with_a_remedy(host: str) -> None:
    if ":" in host and not has_ipv6():
        pytest.skip("no IPv6 on this machine")
    words = (f"host is {host!r}", "no API key is set", "ANYTIME_API_KEYS", "--insecure")
    assert_refused(lambda: heard_at(host=host), *words, error=KeysError)


def test_a_server_without_a_key_does_not_start_where_others_reach_it(
    model_file: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANYTIME_HOST", "0.0.0.0")
    reported = refusal(capsys, "serve", str(model_file), "--port", "0")
    assert reported.startswith("error: host is '0.0.0.0', which other machines can reach")


def test_with_a_key_or_insecure_every_address_is_served_and_a_unix_socket_always(tmp_path: Path) -> None:
    for reported in ({"api_keys": KEY}, {"api_keys_file": tmp_path / "keys"}, {"insecure": True}):
        assert heard_at(host="0.0.0.0", **reported) == ("0.0.0.0", [])
    assert heard_at(uds=tmp_path / "s", host="0.0.0.0") == (str(tmp_path / "s"), []), "a file needs no key"


def test_a_host_name_is_judged_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"here": "127.0.0.7", "localhost": "0.0.0.0"}
    real = socket.getaddrinfo
    monkeypatch.setattr("socket.getaddrinfo", lambda host, *rest, **more: real(known.get(host, host), *rest, **more))
    assert heard_at(host="here") == ("127.0.0.7", [])
    with pytest.raises(KeysError, match=r"host is 'localhost' \(0\.0\.0\.0\)"):
        heard_at(host="localhost")
    assert heard_at(host="localhost", api_keys=KEY) == ("0.0.0.0", [])


def test_all_addresses_of_ipv6_include_those_of_ipv4() -> None:
    if not has_ipv6():
        pytest.skip("no IPv6 on this machine")
    with keyed(host="::", metrics_port=0, metrics_host="::") as service:
        for port in (service.port, service.metrics_port):
            for host in ("127.0.0.1", "[::1]"):
                assert httpx.get(f"http://{host}:{port}/livez").status_code == 200


@pytest.mark.parametrize(
    ("name", "why"), [("s" * 200, "af_unix path too long;"), ("none/s", "no such file or directory;")]
)
def test_a_path_that_no_unix_socket_can_have_is_an_error_that_says_why(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(AddressError, match=f": {why}"), bind(Settings(uds=tmp_path / name)):
        pass


def test_a_unix_socket_is_removed_unless_it_is_that_of_another_server(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with bind(Settings(uds=path)):
        assert path.exists()
    assert not path.exists()
    with bind(Settings(uds=path)) as first:
        first.close()  # it stops, and a newer server takes the address over
        with bind(Settings(uds=path)):
            assert path.exists()
        path.touch()
    assert path.exists(), "not the socket of this server"


def test_an_invalid_flag_of_the_command_is_refused(tmp_path: Path, capsys: Capture) -> None:
    for wrong in (["--log-level", "loud"], ["--metrics-port", "99999"]):
        ran(capsys, "serve", str(tmp_path), *wrong, code=2)
    with pytest.raises(AnytimeError, match="ANYTIME_SESSION_STORE"):
        cli.serve([tmp_path], session_store="mysql://here")
