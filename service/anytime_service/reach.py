"""How far the server is heard: no further than this machine, as long as it cannot tell who asks."""

from __future__ import annotations

import logging
import socket
from ipaddress import ip_address

from anytime_service.settings import Settings

__all__ = ["address_of"]

_log = logging.getLogger("anytime_service")


def address_of(settings: Settings) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Address to listen on: the one that was told or, without keys, its like on the loopback interface.

    Names are resolved first; what they lead to counts.

    Raises
    ------
    OSError
        The host cannot be resolved.
    """
    found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    family, host = found[0], str(found[4][0])
    if settings.keyed or settings.insecure or ip_address(host).is_loopback:
        return family, (host, settings.port)
    near = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    _log.warning(
        "NO KEY IS SET, so only this machine is served, at %s instead of %s. Set ANYTIME_API_KEYS or "
        "ANYTIME_API_KEYS_FILE to be asked from elsewhere; --insecure (ANYTIME_INSECURE=true) serves whoever asks",
        near,
        settings.host,
    )
    return family, (near, settings.port)
