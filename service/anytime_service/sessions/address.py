"""Where sessions live, as an operator writes it: checked at the start, and shown without its password."""

from __future__ import annotations

from urllib.parse import SplitResult, parse_qsl, urlsplit

__all__ = ["MEMORY", "checked_address", "shown_address"]

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
