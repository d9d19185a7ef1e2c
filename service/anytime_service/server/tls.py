"""TLS contexts that can be reloaded.

Certificate, key and client certificate authorities are read before the server listens, and again on SIGHUP. OpenSSL can
add certificates to a context but not remove them. Therefore each reload makes a new context. It also has new keys for
session tickets, so a client is unable to resume a session that a removed authority allowed.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, cast

from anytime._files import is_pipe
from anytime.errors import reason_of
from anytime_service.errors import CertificateError
from anytime_service.settings import Settings


class TLSContext(ssl.SSLContext):
    """Context of a listening socket; each connection uses `current` at the time when it is accepted."""

    current: ssl.SSLContext

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Begin a handshake; asyncio calls this for each connection."""
        return self.current.wrap_bio(*args, **options)


def tls_context(settings: Settings) -> TLSContext | None:
    """Return the context for encrypted connections; None if no certificate is set.

    Raise CertificateError if a file is missing, unreadable or invalid, or certificate and key do not match.
    """
    if settings.ssl_certfile is None:
        for name in ("ssl_keyfile", "ssl_keyfile_password", "ssl_ca_certs"):
            if getattr(settings, name) is not None:
                raise CertificateError(f"ANYTIME_{name.upper()} is set without ANYTIME_SSL_CERTFILE; set both")
        return None
    context = TLSContext(ssl.PROTOCOL_TLS_SERVER)
    reload_certificates(context, settings)
    return context


def reload_certificates(context: TLSContext, settings: Settings) -> None:
    """Reload the files for new connections; raises as `tls_context`, and an error changes nothing."""
    current = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate, key, authorities = cast(Path, settings.ssl_certfile), settings.ssl_keyfile, settings.ssl_ca_certs
    password = settings.ssl_keyfile_password
    for name, path in (("SSL_CERTFILE", certificate), ("SSL_KEYFILE", key), ("SSL_CA_CERTS", authorities)):
        try:
            if path is None:
                continue
            if is_pipe(path):  # on SIGHUP, reading one that nobody writes would stop the server
                raise CertificateError(f"ANYTIME_{name}: {str(path)!r} is a pipe or a device; expected a regular file")
            path.read_bytes()
        except OSError as error:
            raise CertificateError(f"ANYTIME_{name}: cannot read {str(path)!r}: {reason_of(error)}") from None
    try:
        # Without a password callback OpenSSL would prompt at the terminal.
        current.load_cert_chain(certificate, key, lambda: password.get_secret_value() if password else "")
    except (ssl.SSLError, ValueError) as error:
        pair = f"{str(certificate)!r} and {str(key)!r}" if key else f"{str(certificate)!r} alone"
        raise CertificateError(
            f"ANYTIME_SSL_CERTFILE: cannot load a certificate and its key from {pair}: {_reason(error)}; expected a "
            "matching pair in PEM format, in one file or with ANYTIME_SSL_KEYFILE, and ANYTIME_SSL_KEYFILE_PASSWORD if "
            "the key is encrypted"
        ) from None
    if authorities is not None:
        try:
            current.load_verify_locations(authorities)
        except ssl.SSLError as error:
            raise CertificateError(
                f"ANYTIME_SSL_CA_CERTS: cannot load certificates from {str(authorities)!r}: {_reason(error)}; "
                "expected PEM"
            ) from None
        current.verify_mode = ssl.CERT_REQUIRED
    context.current = current


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error).lower().replace("_", " ")
