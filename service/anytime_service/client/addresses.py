"""Connect to any address of a name (RFC 8305, "happy eyeballs"), on every event loop, as httpx does for HTTP.

A name often has an IPv6 and an IPv4 address, and packets to one of them may be lost. The next address is tried when the
one before has failed, or has not answered for `NEXT_AFTER_S`; the first that answers is used.
"""

from __future__ import annotations

import asyncio
import socket
from asyncio.staggered import staggered_race
from functools import partial
from itertools import chain, zip_longest
from typing import Any

NEXT_AFTER_S = 0.25


async def connected(host: str, port: int) -> socket.socket:
    """Return a socket that is connected to the first address of a name that answers; raise OSError if none does."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    first = [each for each in found if each[0] == found[0][0]]
    others = [each for each in found if each[0] != found[0][0]]
    ordered = [each for each in chain(*zip_longest(first, others)) if each is not None]
    made, _, errors = await staggered_race([partial(_attempt, *each) for each in ordered], NEXT_AFTER_S)
    if made is None:
        raise OSError("; ".join(dict.fromkeys(map(str, errors))))
    return made


async def _attempt(family: int, kind: int, protocol: int, _: str, address: Any) -> socket.socket:
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, address)
    except BaseException:
        made.close()
        raise
    return made
