"""Checks of request origins, and addresses of session stores.

A browser lets any page send requests and open WebSockets to any address, including the loopback interface. The header
`Origin` names the site of the page. A request is accepted if its origin is the requested host or is in the operator's
list.

An attacker can point a domain name at this machine (DNS rebinding), so that the origin of the attacker's pages equals
the requested host. Where keys are required, such pages have no key. Where keys are not required, the server accepts
only host names that nobody can register.

The operator sets the address of the session store. It is validated at the start, and shown without its password.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from urllib.parse import SplitResult, parse_qsl, urlsplit

from anytime_service.errors import OriginError

_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([^\s/?#@,]+)")
_LISTED = re.compile(r"(?!wss?:|file:)[^:]+://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[1-9][0-9]{0,4})?")
_PORTS = {"http": ":80", "https": ":443"}
_SECURE = ("https", "wss")
_SHOWN = 100


class Origins:
    """Check of requests: pages of other sites must be in `allowed`, as `origin_of` writes them.

    If `local`, only these hosts are accepted: addresses, single words, and the hosts of `allowed`.
    """

    def __init__(self, allowed: Iterable[str], *, local: bool) -> None:
        self._allowed = frozenset(allowed)
        self._local = local
        self._accepted: bytes | None = None  # the last host: parsing it again takes 2 us a request
        self._hosts = {_name(origin.partition("://")[2]) for origin in self._allowed}

    def check(self, headers: Mapping[bytes, bytes], scheme: str) -> None:
        """Raise OriginError for a page of another site, or a host name that anyone can register."""
        host = headers.get(b"host")
        shown = (host or b"").decode("latin-1")
        if self._local and host is not None and host != self._accepted:
            name = _name(shown)
            if not (_own(name) or name in self._hosts):
                raise OriginError(
                    f"host {name[:_SHOWN]!r} is not accepted: the server requires no key, and anyone can register a "
                    "name for this machine; use localhost, or have the operator set API keys or list the origin in "
                    "ANYTIME_ALLOWED_ORIGINS"
                )
            self._accepted = host
        received = headers.get(b"origin")
        if received is not None:
            origin, schemes = origin_of(received.decode("latin-1")), ("https",) if scheme in _SECURE else tuple(_PORTS)
            accepted = {origin_of(f"{each}://{shown}") for each in schemes} | self._allowed
            if origin is None or origin not in accepted:
                raise OriginError(
                    f"the page's origin is {received.decode('latin-1')[:_SHOWN]!r}, but the service is at "
                    f"{shown[:_SHOWN]!r}; for pages of other sites the operator must list the origin in "
                    "ANYTIME_ALLOWED_ORIGINS"
                )


def origin_of(text: str) -> str | None:
    """Return an origin as browsers write it: scheme, lowercase host, port unless it is the default. None if invalid.

    Apps and extensions have schemes of their own, like `tauri://localhost` and `chrome-extension://ID`.
    """
    match = _ORIGIN.fullmatch(text.lower())
    return f"{match[1]}://{match[2].removesuffix(_PORTS.get(match[1], ' '))}" if match else None


def listed_origin(text: str) -> str | None:
    """Return an origin of the operator's list as `origin_of` does; None if no page or app has such an origin."""
    origin = origin_of(text)
    return origin if origin is not None and _LISTED.fullmatch(origin) else None


def _name(host: str) -> str:
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdigit() else host.lower()


def _own(name: str) -> bool:
    """Return whether nobody can register a name: an address, a single word, or a name below `localhost`.

    Browsers treat a name whose last label is a number as an address.
    """
    last = name.rpartition(".")[2]
    return "." not in name or last.isdigit() or last == "localhost" or name.endswith("]")


def server_url(text: str, schemes: Collection[str]) -> SplitResult | None:
    """Return the parts of the URL of a server, with one of these schemes and a host; None if it is invalid."""
    try:
        parts = urlsplit(text)
        valid = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port, an unclosed bracket
        return None
    return parts if valid else None


MEMORY = "memory"  # setting that stores sessions in the process that creates them

_EXPECTED = (
    "expected 'memory', 'redis://user:password@host:port/db', 'rediss://...' for TLS, or "
    "'unix://user:password@/path?db=0'; percent-encode all characters of a password except letters and digits"
)


def checked_address(text: str) -> str:
    """Return the address of a session store unchanged; raise ValueError if it is invalid.

    The message contains no part of the address, since it may contain a password.
    """
    if text == MEMORY:
        return text
    try:
        parts = urlsplit(text)
        in_file = parts.scheme == "unix" and parts.path.startswith("/") and not parts.hostname
        has_target = in_file or server_url(text, ("redis", "rediss")) is not None
        valid = has_target and not parts.fragment and bool(re.fullmatch("[0-9]*", _database(parts)))
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(_EXPECTED)
    if any(name != "db" and not name.startswith("ssl_") for name, _ in parse_qsl(parts.query)):
        raise ValueError("expected only the parameter db and parameters that begin with ssl_")
    return text


def shown_address(text: str) -> str:
    """Return the address of a session store for messages, without user, password and parameters."""
    parts = urlsplit(text)
    if text == MEMORY or parts.scheme == "unix":
        return text if text == MEMORY else f"unix://{parts.path}"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or 6379}/{_database(parts) or 0}"


def _database(parts: SplitResult) -> str:
    """Return the number of the database as written; "" if the address has none."""
    return dict(parse_qsl(parts.query)).get("db", "" if parts.scheme == "unix" else parts.path.removeprefix("/"))
