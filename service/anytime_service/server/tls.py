"""Encrypted connections that close in time.

To close one properly, both ends say goodbye. The event loop waits 30 s for a client to, and takes apart and drops what
it sends meanwhile: gigabytes, if the client would rather send. Here it gets a second, after all has gone out to it.

TLS: certificate, key and client authorities are read before anything listens, and again on SIGHUP.

OpenSSL can add certificates to a context and cannot remove any. So each reading makes a new context, which also has new
keys for session tickets: a client cannot resume a session that the removed authority allowed.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any, cast

from anytime_service.errors import CertificateError
from anytime_service.settings import Settings

__all__ = [
    "TLSContext",
    "closing_in_time",
    "read_again",
    "tls_context",
]

GOODBYE_S = 1.0
MAX_WAITS = 30


class _InTime:
    """A transport that is cut off when its client does not see to its end; everything else is the transport's own."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waits = 0
        self.write = transport.write
        self.is_closing = transport.is_closing

    def close(self) -> None:
        """Close, in time."""
        self._transport.close()
        if not self._waits:
            self._wait()

    def _wait(self) -> None:
        self._waits += 1
        self._loop.call_later(GOODBYE_S, self._cut)

    def _cut(self) -> None:
        if self._transport.get_write_buffer_size() and self._waits < MAX_WAITS:  # it is still being told something
            self._wait()
        else:
            self._transport.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def closing_in_time(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> asyncio.Transport:
    """Give a transport back as one that closes in time, if it is encrypted; as it is, if it is not."""
    if transport.get_extra_info("sslcontext") is None:
        return transport
    return cast(asyncio.Transport, _InTime(transport, loop))


class TLSContext(ssl.SSLContext):
    """The context that a listening socket keeps: each connection uses `current` as it is when it is accepted."""

    current: ssl.SSLContext

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Begin a handshake, as asyncio does for each connection."""
        return self.current.wrap_bio(*args, **options)


def tls_context(settings: Settings) -> TLSContext | None:
    """Make the context for encrypted connections; None if no certificate is set.

    Raises
    ------
    CertificateError
        A file is missing or cannot be read, or certificate and key do not fit.
    """
    if settings.ssl_certfile is None:
        for name in ("ssl_keyfile", "ssl_keyfile_password", "ssl_ca_certs"):
            if getattr(settings, name) is not None:
                raise CertificateError(f"ANYTIME_{name.upper()} is set without ANYTIME_SSL_CERTFILE; set both")
        return None
    context = TLSContext(ssl.PROTOCOL_TLS_SERVER)
    read_again(context, settings)
    return context


def read_again(context: TLSContext, settings: Settings) -> None:
    """Read the files for new connections; raises as `tls_context` does, and then nothing changes."""
    if settings.ssl_certfile is not None:
        current = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _load(current, settings.ssl_certfile, settings)
        if settings.ssl_ca_certs is not None:
            current.verify_mode = ssl.CERT_REQUIRED
        context.current = current


def _load(context: ssl.SSLContext, certificate: Path, settings: Settings) -> None:
    key, authorities, password = settings.ssl_keyfile, settings.ssl_ca_certs, settings.ssl_keyfile_password
    for name, path in (("ssl_certfile", certificate), ("ssl_keyfile", key), ("ssl_ca_certs", authorities)):
        _check_file(name, path)
    try:
        # Without a password of ours OpenSSL would ask for one at the terminal.
        context.load_cert_chain(certificate, key, lambda: password.get_secret_value() if password else "")
    except (ssl.SSLError, ValueError) as error:
        pair = f"{str(certificate)!r} and {str(key)!r} are" if key else f"{str(certificate)!r} alone is"
        raise CertificateError(
            f"ANYTIME_SSL_CERTFILE: {pair} no certificate with its key: {_reason(error)}; expected PEM, a pair that "
            "fits, in one file or with ANYTIME_SSL_KEYFILE, and ANYTIME_SSL_KEYFILE_PASSWORD where the key is encrypted"
        ) from None
    if authorities is not None:
        try:
            context.load_verify_locations(authorities)
        except ssl.SSLError as error:
            raise CertificateError(
                f"ANYTIME_SSL_CA_CERTS: {str(authorities)!r} has no certificates: {_reason(error)}"
            ) from None


def _check_file(name: str, path: Path | None) -> None:
    if path is not None:
        try:
            path.read_bytes()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise CertificateError(f"ANYTIME_{name.upper()}: {str(path)!r} cannot be read: {reason}") from None


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error).lower().replace("_", " ")
