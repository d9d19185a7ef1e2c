"""Connect to any address of a name (RFC 8305, "happy eyeballs"), on every event loop, as httpx does for HTTP.

A name often has an IPv6 and an IPv4 address, and packets to one of them may be lost. The next address is tried when the
one before has failed, or has not answered for `NEXT_AFTER_S`; the first that answers is used.
"""

from __future__ import annotations

import asyncio
import socket
from asyncio.staggered import staggered_race
from functools import partial
from typing import Any

NEXT_AFTER_S = 0.25


async def connected(host: str, port: int) -> socket.socket:
    """Return a socket that is connected to the first address of a name that answers; raise OSError if none does."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # The first address of each family, then the second of each, and so on.
    ordered = sorted(found, key=lambda each: [other for other in found if other[0] == each[0]].index(each))
    made, _, errors = await staggered_race([partial(_attempt, each) for each in ordered], NEXT_AFTER_S)
    if isinstance(made, socket.socket):
        return made
    raise OSError("; ".join(dict.fromkeys(map(str, errors))))


async def _attempt(found: tuple[int, int, int, str, Any]) -> socket.socket:
    family, kind, protocol, _, address = found
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, address)
    except BaseException:
        made.close()
        raise
    return made
