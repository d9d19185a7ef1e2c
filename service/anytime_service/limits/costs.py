"""What a request may cost: every element that a client can repeat, enlarge or leave unread, with its limit.

A limit is a number, or a setting. `counted` says who counts the element: `held` is the memory budget of `memory`, whose
limit `max_held_bytes` applies to all of its elements together. The table of the guide (deploy/SETTINGS.md) is checked
against `TABLE`, and `make hostile` drives every element to its limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Cost:
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

    def of(self, settings: Any) -> float:
        """Return the limit under some settings."""
        limit: float = getattr(settings, self.limit) if isinstance(self.limit, str) else self.limit
        return limit

    @property
    def shown(self) -> str:
        """The limit as the guide shows it."""
        return f"`{self.limit.upper()}`" if isinstance(self.limit, str) else f"{self.limit:,}"


HEADERS = Cost("headers of a request", 100, "431", "connection")
PIPELINED = Cost("requests that wait on a connection", 128, "503", "connection, their heads `held`")
NAMES = Cost("groups in a message", 10_000, "400", "decoder")
NAME_LENGTH = Cost("characters of a group's name", 1024, "400", "decoder")
FIELDS = Cost("colons in a JSON message", 20_000, "413", "before decoding")
SESSION_BYTES = Cost("bytes of a session in Redis, for each ms of its timeout", 2048, "413", "Redis")
BASE_RATES = Cost("stored base rates", 256, "the oldest is removed; each after a minute", "server")
BASE_RATE_BYTES = Cost("bytes of a stored base rate", 16_384, "it is not stored", "server")
INLINE = Cost(
    *("numbers of an answer made at once", 2000, "a worker thread makes it; 503 if it would be late"),
    "worker, `held` while it is open",
)
PAGES = Cost("pages that wait for their worker thread", 64, "503", "server")
OPEN_OF_CONNECTION = Cost("open predictions of a WebSocket", 1024, "503", "connection")
IDS = Cost("ids that a WebSocket remembers", 1024, "the oldest is removed; each after 10 s", "connection")

TABLE = (
    Cost("connections", "max_connections", "503 and close; 16 more for probes", "server"),
    Cost("bytes of a head", "max_header_bytes", "431", "connection, `held` while it waits"),
    HEADERS,
    PIPELINED,
    Cost("bytes of a body or message", "max_body_bytes", "413", "`held`"),
    Cost("bytes of JSON", "max_json_bytes", "413", "`held`"),
    Cost("values in lists of JSON", "max_json_values", "413", "before decoding"),
    FIELDS,
    NAMES,
    NAME_LENGTH,
    Cost("rows", "max_rows", "422", "prediction"),
    Cost("messages a second of a connection", "max_message_rate", "the server reads later", "connection"),
    OPEN_OF_CONNECTION,
    IDS,
    Cost("open predictions", "max_open", "503", "server, and key"),
    Cost("sessions", "max_sessions", "503", "server, and key"),
    SESSION_BYTES,
    INLINE,
    PAGES,
    BASE_RATES,
    BASE_RATE_BYTES,
)
