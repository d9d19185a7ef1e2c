"""How far the server is heard: no further than this machine, as long as it cannot tell who asks."""

from __future__ import annotations

import logging
import socket
from ipaddress import ip_address

from anytime_service.settings import Settings

__all__ = ["address_of", "metrics_address_of"]

_log = logging.getLogger("anytime_service")


def address_of(settings: Settings) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Address to listen on: the one that was told or, without keys, its like on the loopback interface.

    Names are resolved first; what they lead to counts.

    Raises
    ------
    OSError
        The host cannot be resolved.
    """
    family, told = _resolved(settings.host)
    host = _near(settings, family, told)
    if host != told:
        _log.warning(
            "NO KEY IS SET, so only this machine is served, at %s instead of %s. Set ANYTIME_API_KEYS or "
            "ANYTIME_API_KEYS_FILE to be asked from elsewhere; --insecure (ANYTIME_INSECURE=true) serves whoever asks",
            host,
            settings.host,
        )
    return family, (host, settings.port)


def metrics_address_of(settings: Settings, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Address to listen on for metrics: the one told for them, else as `address_of`, which raises the same."""
    family, host = _resolved(settings.metrics_host or settings.host)
    return family, (host if settings.metrics_host else _near(settings, family, host), port)


def _resolved(host: str) -> tuple[socket.AddressFamily, str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return found[0], str(found[4][0])


def _near(settings: Settings, family: socket.AddressFamily, host: str) -> str:
    """The host itself where it may be asked from elsewhere, else the loopback interface of its family."""
    if settings.keyed or settings.insecure or ip_address(host).is_loopback:
        return host
    return "::1" if family == socket.AF_INET6 else "127.0.0.1"
