"""Addresses to listen on; without API keys only addresses of the loopback interface, unless set to be insecure."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from anytime_service.errors import KeysError
from anytime_service.settings import Settings

__all__ = [
    "address_of",
    "metrics_address_of",
]


def address_of(settings: Settings) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Return the address to listen on, after resolving the host.

    Raises
    ------
    KeysError
        Other machines can reach the address, no API key is set, and the server is not set to be insecure.
    OSError
        The host is unknown.
    """
    family, host = _resolved(settings.host)
    if not (settings.keyed or settings.insecure or ip_address(host).is_loopback):
        found = "" if host == settings.host else f" ({host})"
        raise KeysError(
            f"host is {settings.host!r}{found}, which other machines can reach, but no API key is set; set "
            "ANYTIME_API_KEYS or ANYTIME_API_KEYS_FILE, or allow access without keys with --insecure "
            "(ANYTIME_INSECURE=true)"
        )
    return family, (host, settings.port)


def metrics_address_of(settings: Settings, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Return the address to listen on for metrics, which need no key.

    Raises
    ------
    OSError
        The host is unknown.
    """
    family, host = _resolved(settings.metrics_host or settings.host)
    return family, (host, port)


def _resolved(host: str) -> tuple[socket.AddressFamily, str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return found[0], str(found[4][0])
