"""The limits of requests: every element that a client can repeat, enlarge or leave unread, with its limit.

A limit is a number, or a setting. `counted` says who counts the element: `held` is the memory budget of `memory`, whose
limit `max_held_bytes` applies to all of its elements together. The table of the guide (deploy/SETTINGS.md) is checked
against `TABLE`, and `make hostile` drives every element to its limit.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limit:
    """One element.

    Attributes
    ----------
    element : str
        What a client can repeat, enlarge or leave unread.
    limit : int | str
        The largest number, or the name of the setting that has it.
    reaction : str
        What happens beyond it.
    counted : str
        Who counts it.
    """

    element: str
    limit: int | str
    reaction: str
    counted: str

    def __int__(self) -> int:
        """Return the limit, if it is a number."""
        return int(self.limit)


HEADERS = Limit("headers of a request", 100, "431", "connection")
WAITING = Limit("bytes that wait on a connection", 65_536, "the server reads later", "connection, `held`")
NAMES = Limit("groups in a message", 10_000, "400", "decoder")
NAME_LENGTH = Limit("characters of a group's name", 1024, "400", "decoder")
FIELDS = Limit("colons in a JSON message", 20_000, "413", "before decoding")
SESSION_BYTES = Limit("bytes of a session in Redis, for each ms of its timeout", 2048, "413", "Redis")
BASE_RATES = Limit("stored base rates", 256, "the oldest is removed; each after a minute", "server")
BASE_RATE_BYTES = Limit("bytes of a stored base rate", 16_384, "it is not stored", "server")
INLINE = Limit(
    *("numbers of an answer made at once", 2000, "a worker thread makes it; 503 if it would be late"),
    "worker, `held` while it is open",
)
PAGES = Limit("requests for `/models...`, the console and `/docs` that wait for their thread", 64, "503", "server")
OPEN_OF_CONNECTION = Limit("open predictions of a WebSocket", 1024, "503", "connection")
IDS = Limit("ids that a WebSocket remembers", 1024, "the oldest is removed; each after 10 s", "connection")

TABLE = (
    Limit("connections", "max_connections", "503 and close; 16 more for probes", "server"),
    Limit("bytes of a head", "max_header_bytes", "431", "connection, `held`"),
    HEADERS,
    WAITING,
    Limit("bytes of a body or message", "max_body_bytes", "413", "`held`"),
    Limit("bytes of JSON", "max_json_bytes", "413", "`held`"),
    Limit("values in lists of JSON", "max_json_values", "413", "before decoding"),
    FIELDS,
    NAMES,
    NAME_LENGTH,
    Limit("rows", "max_rows", "422", "prediction"),
    Limit("messages a second of a connection", "max_message_rate", "the server reads later", "connection"),
    OPEN_OF_CONNECTION,
    IDS,
    Limit("open predictions", "max_open", "503", "server, and key"),
    Limit("sessions", "max_sessions", "503", "server, and key"),
    SESSION_BYTES,
    INLINE,
    PAGES,
    BASE_RATES,
    BASE_RATE_BYTES,
)
