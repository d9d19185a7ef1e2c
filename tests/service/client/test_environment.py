"""Proxy variables, certificates and passwords: the client's two protocols treat the environment alike."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from anytime_service.client import Client
from anytime_service.client.errors import ClientError
from anytime_service.client.transport import Network, certificates, proxy_of, without_password
from service.serving import VALUES, Running

PROXY = "http://proxy.test:3128"
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ssl_cert_file", "ssl_cert_dir")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("url", "no_proxy", "excepted"),
    [
        ("http://a.test", "", False),
        ("http://a.test", "*", True),
        ("http://a.test", "b.test, a.test", True),
        ("http://a.test", "b.test a.test", True),
        ("http://a.test", ".a.test", True),
        ("http://A.Test", "a.TEST", True),
        ("http://x.a.test", "a.test", True),
        ("http://x.a.test", "*.a.test", True),
        ("http://xa.test", "a.test", False),
        ("http://a.test:8000", "a.test:8000", True),
        ("http://a.test:8000", "a.test:8001", False),
        ("http://a.test", "a.test:80", True),
        ("http://10.1.2.3", "10.0.0.0/8", True),
        ("http://11.1.2.3", "10.0.0.0/8", False),
        ("http://10.1.2.3", "10.1.2.3", True),
        ("http://[fd07:b51a::1]:8000", "127.0.0.1,fd07:b51a::/64", True),
        ("http://[fd08::1]", "fd07:b51a::/64", False),
        ("http://[::1]", "[::1]", True),
        ("http://[::1]", "::1", True),
        ("http://[::1]:8000", "[::1]:8000", True),
        ("http://[::1]:8000", "[::1]:80", False),
        ("http://10.1.2.3", "300.0.0.0/8,1.2.3", False),
    ],
)
def test_no_proxy_lists_hosts_domains_addresses_and_ranges(
    monkeypatch: pytest.MonkeyPatch, url: str, no_proxy: str, excepted: bool
) -> None:
    monkeypatch.setenv("ALL_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert proxy_of(url) == (None if excepted else PROXY)


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])
def test_the_variable_of_the_scheme_names_the_proxy(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "proxy.test:3128")
    assert proxy_of("https://a.test") == PROXY
    assert proxy_of("http://a.test") == (PROXY if name.lower() == "all_proxy" else None)


@pytest.mark.parametrize("proxy", ["socks4://h:1", "ftp://h", "http://", "http://h:x", "http://h:0", "http://[::1"])
@pytest.mark.parametrize("password", ["", "user:secret@"])
def test_an_invalid_proxy_is_an_error_of_the_client_in_every_call(
    monkeypatch: pytest.MonkeyPatch, server: Running, proxy: str, password: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy.replace("://", f"://{password}"))
    with Client(server.url) as client:
        for call in (client.models, lambda: client.predict(VALUES), lambda: client.predict(VALUES, deadline_ms=500)):
            with pytest.raises(ClientError, match=r"^ALL_PROXY is ") as caught:
                call()
            assert "secret" not in str(caught.value)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Client(server.url) as client:
        assert client.predict(VALUES).complete
        assert client.models()[0].name == "brake"


@pytest.mark.parametrize(("name", "makes"), [("SSL_CERT_FILE", None), ("SSL_CERT_FILE", "x"), ("SSL_CERT_DIR", None)])
def test_unreadable_certificates_are_an_error_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, makes: str | None
) -> None:
    path = tmp_path / "certificates"
    if makes is not None:
        path.write_text(makes)
    monkeypatch.setenv(name, str(path))
    with pytest.raises(ClientError, match=f"^{name} is "):
        certificates()
    with Client("https://127.0.0.1:9") as client:
        for call in (client.models, lambda: client.predict(VALUES)):
            with pytest.raises(ClientError, match=f"^{name} is "):
                call()


def test_a_password_in_the_address_is_sent_once_and_never_shown() -> None:
    network = Network("http://user:p%40ss@host.test:8000/x/", None, 1.0)
    assert network.headers == {"Authorization": f"Basic {base64.b64encode(b'user:p@ss').decode()}"}
    assert (network.url, network.http) == ("http://host.test:8000/x/", "http://host.test:8000/x")
    assert "p%40ss" not in repr(network) + network.stream
    for url, key in (
        ("http://user:secret@host.test", "key"),
        ("ftp://user:secret@h", None),
        ("http://u:secret@h:x", None),
    ):
        with pytest.raises(ClientError) as caught:
            Network(url, key, 1.0)
        assert "secret" not in str(caught.value)
    assert without_password("user:a@b@host/x@y") == "host/x@y"


@pytest.mark.parametrize("url", ["http://exa mple.test", "http://\u2603\u2603.invalid", "http://a..b", "http://%zz"])
def test_a_strange_host_is_an_error_of_the_client(url: str) -> None:
    with Client(url, timeout_s=2) as client:
        for call in (client.models, lambda: client.predict(VALUES)):
            with pytest.raises(ClientError):
                call()
