"""Pages of other sites, kept out.

A browser lets any page send requests and open WebSockets to wherever it likes, the loopback interface too. It says in
`Origin` whose page it is: the request passes if that is the address that was asked, or one that the operator lists.

A name of another's can be made to lead to this machine, and its pages then are of the address that was asked. Where
keys are needed, they have none. Where they are not, only names that nobody can make are taken for this machine's own.

Where sessions live, as an operator writes it: checked at the start, and shown without its password.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import SplitResult, parse_qsl, urlsplit

from anytime_service.errors import OriginError

__all__ = [
    "MEMORY",
    "Origins",
    "checked_address",
    "origin_of",
    "shown_address",
]

_ORIGIN = re.compile(r"(https?)://([^\s/?#@,]+)")
_PORTS = {"http": ":80", "https": ":443"}
_SECURE = ("https", "wss")
_SHOWN = 100
MAX_HOSTS = 64


class Origins:
    """Checks whose page a request comes from.

    Parameters
    ----------
    allowed : origins of other sites whose pages may ask, each as `origin_of` writes it.
    local : whether only names of this machine may be asked: addresses, single words, and the hosts of those allowed.
    """

    def __init__(self, allowed: Iterable[str], *, local: bool) -> None:
        self._allowed = frozenset(allowed)
        self._local = local
        self._hosts = {_name(origin.partition("://")[2]) for origin in self._allowed}
        self._known: set[bytes] = set()

    def check(self, headers: Mapping[bytes, bytes], scheme: str) -> None:
        """Pass a request, or not.

        Raises
        ------
        OriginError
            It comes from a page of another site, or asks for this machine by a name that may be another's.
        """
        host = headers.get(b"host")
        if self._local and host is not None and host not in self._known:
            self._check_host(host)
        origin = headers.get(b"origin")
        if origin is not None:
            self._check_origin(origin.decode("latin-1"), (host or b"").decode("latin-1"), scheme)

    def _check_host(self, host: bytes) -> None:
        name = _name(host.decode("latin-1"))
        if not (_own(name) or name in self._hosts):
            raise OriginError(
                f"{name[:_SHOWN]!r} may be anybody's name for this machine, and no key is needed here; ask for "
                "localhost, or have the operator set keys, or list the name's origin in ANYTIME_ALLOWED_ORIGINS"
            )
        if len(self._known) < MAX_HOSTS:
            self._known.add(host)

    def _check_origin(self, told: str, host: str, scheme: str) -> None:
        origin = origin_of(told)
        if origin is not None:
            own = [origin_of(f"{each}://{host}") for each in (("https",) if scheme in _SECURE else ("http", "https"))]
            if origin in own or origin in self._allowed:
                return
        raise OriginError(
            f"the page that asks is of {told[:_SHOWN]!r}, the service is at {host[:_SHOWN]!r}; pages of other sites "
            "may not ask, unless the operator lists their origin in ANYTIME_ALLOWED_ORIGINS"
        )


def origin_of(text: str) -> str | None:
    """Write an origin as browsers do: scheme, host in small letters, a port that is not the scheme's own; else None."""
    match = _ORIGIN.fullmatch(text.lower())
    return f"{match[1]}://{match[2].removesuffix(_PORTS[match[1]])}" if match else None


def _name(place: str) -> str:
    """Host without its port."""
    name, colon, port = place.lower().rpartition(":")
    return name if colon and port.isdigit() else place.lower()


def _own(name: str) -> bool:
    """Whether a name cannot be one that somebody has registered: an address, a single word, or below `localhost`.

    Browsers take what ends in a number for an address.
    """
    last = name.rpartition(".")[2]
    return "." not in name or last.isdigit() or last == "localhost" or name.endswith("]")


MEMORY = "memory"
"""Sessions live in the process that began them."""

_EXPECTED = (
    "expected 'memory', 'redis://user:password@host:port/db', 'rediss://...' for TLS, or "
    "'unix://user:password@/path?db=0'; what is not a letter or digit in a password is percent-encoded"
)


def checked_address(text: str) -> str:
    """Address of a store, as it is.

    Raises
    ------
    ValueError
        It is no such address; the message has nothing of it in it, for there may be a password.
    """
    if text == MEMORY:
        return text
    try:
        parts = urlsplit(text)
        database = _database(parts)
        well = _leads_somewhere(parts) and (database is None or (database.isascii() and database.isdigit()))
    except ValueError:
        well = False
    if not well:
        raise ValueError(_EXPECTED)
    foreign = [name for name, _ in parse_qsl(parts.query) if name != "db" and not name.startswith("ssl_")]
    if foreign:
        raise ValueError("expected no parameters but db and those that begin with ssl_")
    return text


def shown_address(text: str) -> str:
    """Name a store for people: without user, password and parameters."""
    if text == MEMORY:
        return text
    parts = urlsplit(text)
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or 6379}/{_database(parts) or 0}"


def _database(parts: SplitResult) -> str | None:
    """Number of the database as written, None where it is not."""
    told = dict(parse_qsl(parts.query)).get("db")
    return told if told is not None or parts.scheme == "unix" else parts.path.removeprefix("/") or None


def _leads_somewhere(parts: SplitResult) -> bool:
    if parts.fragment:
        return False
    if parts.scheme == "unix":
        return parts.path.startswith("/") and not parts.hostname
    return parts.scheme in ("redis", "rediss") and bool(parts.hostname) and parts.port != 0
