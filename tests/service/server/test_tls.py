"""Encrypted connections: the same behaviour as of plain ones, and errors about invalid files."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from anytime_service.client import Client
from anytime_service.errors import CertificateError
from anytime_service.server.run import Server, TLSContext, reload_certificates, tls_context
from anytime_service.settings import Settings
from models.present import present
from service.certificates import Certificate, certificate
from service.commands import command
from service.doors import PREDICTING, bearer, exchanged, keyed
from service.serving import VALUES, Connection, Running
from waiting import until

DOCKERFILE = Path(__file__).parents[3] / "Dockerfile"
PASSWORD = "a password that nobody knows"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificate(tmp_path_factory.mktemp("other"), "other")


@pytest.fixture(scope="module")
def secure(own: Certificate) -> Iterator[Running]:
    with keyed(ssl_certfile=own.file, ssl_keyfile=own.key) as service:
        yield service


def test_every_binding_answers_over_tls(secure: Running, own: Certificate) -> None:
    base = f"https://127.0.0.1:{secure.port}"
    with httpx.Client(base_url=base, verify=own.trusted(), headers=bearer(PREDICTING)) as client:
        assert client.post("/predict", json={"groups": VALUES}).json()["complete"]
        session = client.post("/sessions").headers["location"]
        assert client.post(f"{session}/groups", json=VALUES).json()["prefix"] == 3
        assert client.get("/models", headers={"Origin": base}).status_code == 200
        assert client.get("/models", headers={"Origin": base.replace("https", "http")}).status_code == 403


def test_the_health_check_of_the_image_connects_over_tls(secure: Running, own: Certificate) -> None:
    found = re.search(r"^HEALTHCHECK .*\\\n\s+CMD (\[.*\])$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    _, *code = json.loads(found[1])
    for reported, status in (({"ANYTIME_SSL_CERTFILE": str(own.file)}, 0), ({}, 1)):
        environment = {**os.environ, "ANYTIME_PORT": str(secure.port), **reported}
        done = subprocess.run([sys.executable, *code], env=environment, capture_output=True, timeout=60, check=False)
        assert done.returncode == status


def test_an_endless_handshake_times_out(own: Certificate) -> None:
    with keyed(ssl_certfile=own.file, ssl_keyfile=own.key, header_timeout_s=0.5) as service:
        for begun in (b"", b"\x16\x03\x01\x02"):
            with service.connect() as connection:
                connection.send(begun)
                assert connection.at_end()


def test_a_client_without_tls_receives_no_reply(secure: Running) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        secure.get("/livez")


def test_with_authorities_a_client_needs_a_certificate_of_theirs(own: Certificate, other: Certificate) -> None:
    with keyed(ssl_certfile=own.file, ssl_keyfile=own.key, ssl_ca_certs=other.file) as service:
        none, known, wrong = (own.trusted() for _ in range(3))
        known.load_cert_chain(other.file, other.key)
        wrong.load_cert_chain(own.file, own.key)
        assert [is_served(context, service.port) for context in (none, known, wrong)] == [False, True, False]


def test_an_invalid_file_is_a_one_line_error_before_the_server_listens(
    own: Certificate, other: Certificate, tmp_path: Path
) -> None:
    nothing, empty = tmp_path / "nothing", tmp_path / "empty"
    empty.touch()
    locked = certificate(tmp_path, "locked", PASSWORD)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"ssl_certfile": nothing}, f"ANYTIME_SSL_CERTFILE: cannot read '{nothing}': no such file"),
        ({"ssl_certfile": own.file, "ssl_keyfile": nothing}, f"ANYTIME_SSL_KEYFILE: cannot read '{nothing}'"),
        ({"ssl_certfile": own.file, "ssl_keyfile": other.key}, f"'{other.key}': key values mismatch"),
        ({"ssl_certfile": own.file}, f"'{own.file}' alone: "),
        ({"ssl_certfile": empty, "ssl_keyfile": own.key}, "cannot load a certificate and its key from"),
        ({"ssl_certfile": own.key, "ssl_keyfile": own.file}, "cannot load a certificate and its key from"),
        ({"ssl_certfile": locked.file, "ssl_keyfile": locked.key}, "ANYTIME_SSL_KEYFILE_PASSWORD"),
        (
            {"ssl_certfile": locked.file, "ssl_keyfile": locked.key, "ssl_keyfile_password": PASSWORD + "x"},
            "ANYTIME_SSL_KEYFILE_PASSWORD",
        ),
        ({"ssl_keyfile": own.key}, "ANYTIME_SSL_KEYFILE is set without ANYTIME_SSL_CERTFILE"),
        ({"ssl_keyfile_password": PASSWORD}, "ANYTIME_SSL_KEYFILE_PASSWORD is set without ANYTIME_SSL_CERTFILE"),
        ({"ssl_ca_certs": own.file}, "ANYTIME_SSL_CA_CERTS is set without ANYTIME_SSL_CERTFILE"),
        (
            {"ssl_certfile": own.file, "ssl_keyfile": own.key, "ssl_ca_certs": empty},
            f"ANYTIME_SSL_CA_CERTS: cannot load certificates from '{empty}'",
        ),
    ]
    for reported, words in wrong:
        with pytest.raises(CertificateError) as refused:
            Server(small_app, Settings(**reported))
        assert words in str(refused.value)
        assert not any(never in repr(refused.value) for never in ("\\n", PASSWORD))
    unlocked: dict[str, Any] = {"ssl_keyfile_password": PASSWORD}
    assert tls_context(Settings(ssl_certfile=locked.file, ssl_keyfile=locked.key, **unlocked)) is not None


async def small_app(_scope: Any, _receive: Any, _send: Any) -> None:
    """Do nothing."""


def test_a_pair_that_cannot_be_used_leaves_the_current_one_in_use(
    own: Certificate, other: Certificate, tmp_path: Path
) -> None:
    """Reading a pipe that nobody writes would stop the server on SIGHUP."""
    pair = Certificate(tmp_path / "c.pem", tmp_path / "k.pem")
    shutil.copy(own.file, pair.file)
    shutil.copy(own.key, pair.key)
    settings = Settings(ssl_certfile=pair.file, ssl_keyfile=pair.key)
    context = present(tls_context(settings))
    shutil.copy(other.file, pair.file)
    with pytest.raises(CertificateError, match="mismatch"):
        reload_certificates(context, settings)
    pair.key.unlink()
    os.mkfifo(pair.key)
    with pytest.raises(CertificateError, match=r"ANYTIME_SSL_KEYFILE: '.*k.pem' is a pipe or a device; expected a reg"):
        reload_certificates(context, settings)
    assert shaken(context, own)
    pair.key.unlink()
    shutil.copy(other.key, pair.key)
    reload_certificates(context, settings)
    assert shaken(context, other)


def shaken(context: TLSContext, shown: Certificate) -> bool:
    """Whether a client that trusts a certificate alone shakes hands with a context."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        shown.trusted().wrap_bio(to_client, to_server, server_hostname="localhost"),
        context.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ends[0].version() is not None


def test_the_command_prints_https_and_uses_a_new_certificate_after_sighup(
    own: Certificate, other: Certificate, tmp_path: Path, model_file: Path
) -> None:
    pair = tmp_path / "c.pem"  # certificate and key in one file
    pair.write_bytes(own.file.read_bytes() + own.key.read_bytes())
    with command(model_file, "--ssl-certfile", pair) as (served, service):
        assert own.seen_by(service.port)
        pair.write_bytes(own.file.read_bytes() + other.key.read_bytes())
        served.process.send_signal(signal.SIGHUP)
        served.said("could not reload the certificate; .*mismatch")
        assert own.seen_by(service.port)
        pair.write_bytes(other.file.read_bytes() + other.key.read_bytes())
        served.process.send_signal(signal.SIGHUP)
        served.said("certificate reloaded")
        with Client(f"https://127.0.0.1:{service.port}", ssl=other.trusted()) as client:
            assert client.predict(VALUES).complete
            assert client.models()[0].name == "brake"


def test_after_sighup_only_the_new_authorities_are_accepted(
    own: Certificate, other: Certificate, tmp_path: Path, model_file: Path
) -> None:
    kept = certificate(tmp_path, "kept")
    visitors = {ca: own.trusted() for ca in (kept, other)}
    for ca, context in visitors.items():
        client = certificate(tmp_path, f"of-{ca.file.stem}", signed_by=ca)
        context.load_cert_chain(client.file, client.key)
    authorities = tmp_path / "authorities.pem"
    authorities.write_bytes(kept.file.read_bytes() + other.file.read_bytes())
    options = ["--ssl-certfile", own.file, "--ssl-keyfile", own.key, "--ssl-ca-certs", authorities]
    with command(model_file, *options) as (served, service):
        old = {ca: opened(context, service.port) for ca, context in visitors.items()}
        assert all(is_answered(connection) for connection in old.values())
        session = old[other].sock.session  # type: ignore[attr-defined]
        with opened(visitors[other], service.port, session) as resumed:
            assert is_answered(resumed)
            assert resumed.sock.session_reused  # type: ignore[attr-defined]
        for content in (b"", b"no certificate"):
            authorities.write_bytes(content)
            served.process.send_signal(signal.SIGHUP)
            served.said("could not reload the certificate; .*cannot load certificates")
            assert all(is_served(context, service.port) for context in visitors.values())
        authorities.write_bytes(kept.file.read_bytes())
        served.process.send_signal(signal.SIGHUP)
        until(lambda: not is_served(visitors[other], service.port))
        assert not is_served(visitors[other], service.port, session), "nor by resuming"
        assert is_served(visitors[kept], service.port)
        for connection in old.values():
            with connection:
                assert is_answered(connection), "connections from before stay"


def opened(context: ssl.SSLContext, port: int, session: ssl.SSLSession | None = None) -> Connection:
    plain = socket.create_connection(("127.0.0.1", port), timeout=60)
    return Connection(context.wrap_socket(plain, server_hostname="localhost", session=session))


def is_answered(connection: Connection) -> bool:
    return exchanged(connection, "GET /livez")[0] == 200


def is_served(context: ssl.SSLContext, port: int, session: ssl.SSLSession | None = None) -> bool:
    """Whether a new connection is answered: with TLS 1.3 a client learns of a refusal only when it reads."""
    try:
        with opened(context, port, session) as connection:
            return is_answered(connection)
    except (ssl.SSLError, ConnectionError, IndexError):  # or closed without a word
        return False
