"""Where the server is: one address for its HTTP routes and its WebSocket."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from anytime_service.client.errors import ClientError

__all__ = ["SUBPROTOCOL", "Address", "authorization"]

SUBPROTOCOL = "anytime.v1"

_SECURE = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


@dataclass(frozen=True)
class Address:
    """Addresses of one server.

    Attributes
    ----------
    shown : what messages call it.
    http : base of the HTTP routes, without a slash at its end.
    stream : address of the WebSocket.
    uds : path of a Unix socket to connect to instead of the host that the addresses name; None over TCP.
    """

    shown: str
    http: str
    stream: str
    uds: str | None = None

    @classmethod
    def of(cls, url: str) -> Address:
        """Read `http://host:port`, `https://...`, with or without a path, or `unix:/path/of/socket`.

        Raises
        ------
        ClientError
            It is none of these.
        """
        if url.startswith("unix:") and len(url) > len("unix:"):
            # The host goes into the Host header, and nowhere else.
            return cls(url, "http://localhost", "ws://localhost/stream", url.removeprefix("unix:"))
        try:
            parts = urlsplit(url)
            known = parts.scheme in _SECURE and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:  # a port that is no number, a bracket that does not close
            known = False
        if not known or parts.query or parts.fragment:
            raise ClientError(f"the address of the server is {url!r}; expected one like http://127.0.0.1:8000")
        stream = _SECURE[parts.scheme]
        place = parts.netloc + parts.path.rstrip("/")
        return cls(url, f"{stream.replace('ws', 'http')}://{place}", f"{stream}://{place}/stream")


def authorization(api_key: str | None) -> dict[str, str]:
    """Headers that carry the key.

    Raises
    ------
    ClientError
        A header cannot carry it.
    """
    if api_key is None:
        return {}
    if not api_key or not api_key.isascii() or not api_key.isprintable() or " " in api_key:
        raise ClientError("the API key has characters that no header can carry; expected printable ASCII, no spaces")
    return {"Authorization": f"Bearer {api_key}"}
