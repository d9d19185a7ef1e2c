"""Keys of those who may ask: how they are written, and the ring of those that hold.

A key is told in clear or as its SHA-256, its scope perhaps before it:

    KEY        sha256:HEX        predict:KEY        admin:KEY        admin:sha256:HEX

Scope `predict`, which a key has that tells none, is to predict and to read what models are; `admin` is everything. Only
hashes are kept, and no message has a key in it, not even one that is wrong: it says which one, by its place.

Keys that change while the server runs: the file is looked at every second, and read again when it is another.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Literal, TypeAlias

from anytime_service.errors import KeysError

__all__ = [
    "KEY",
    "LOOK_S",
    "MAX_KEY_BYTES",
    "SHORT",
    "Key",
    "KeyFileWatcher",
    "KeyRing",
    "Right",
    "read_key_file",
    "read_keys",
]

Right: TypeAlias = Literal["predict", "admin"]

KEY = "anytime_service.key"
"""Where the scope of a request or WebSocket has its key, if it needed one."""

MAX_KEY_BYTES = 1024
"""Bytes that a key may have; what is longer is not even hashed."""

SHORT = 16
"""Characters below which a key in clear is taken, and warned of."""

SETTLED_S = 2.0
"""Age from which a file's times tell that it is the one that was read: clocks of file systems are coarse."""

_KEY = re.compile(r"(?:(predict|admin):)?(?:sha256:([0-9a-fA-F]{64})|([A-Za-z0-9._~+/-]+=*))")
_EXPECTED = (
    "expected KEY, admin:KEY, sha256:HEX or admin:sha256:HEX, a key of letters, digits and - . _ ~ + / (= at its end), "
    "HEX the 64 hexadecimal digits of its SHA-256"
)


@dataclass(frozen=True, slots=True)
class Key:
    """A key that may ask.

    Attributes
    ----------
    digest : SHA-256 of the key.
    right : what it may ask for.
    short : whether it was told in clear and can be guessed.
    """

    digest: bytes = field(repr=False)
    right: Right = "predict"
    short: bool = field(default=False, compare=False)


class KeyRing:
    """The keys that hold now.

    Parameters
    ----------
    given : those that hold as long as the process runs.
    file : has more of them, one a line; may be read again.

    Raises
    ------
    KeysError
        The file cannot be read, or is not one of keys.
    """

    def __init__(self, given: Iterable[Key] = (), file: Path | None = None) -> None:
        self.file = file
        self._given = tuple(given)
        self._keys = self._given
        self._several = _differ(self._keys)
        self._seen: tuple[int, ...] | None = None
        if file is not None:
            self.read()

    @property
    def needed(self) -> bool:
        """Whether who asks has to have a key. What was a ring of keys once never lets everybody in."""
        return bool(self._keys) or self.file is not None

    @property
    def current(self) -> tuple[Key, ...]:
        """The keys that hold now; another object when others do."""
        return self._keys

    @property
    def several(self) -> bool:
        """Whether more than one key is valid now."""
        return self._several

    @property
    def short(self) -> int:
        """How many keys can be guessed."""
        return sum(key.short for key in self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, presented: bytes) -> Key | None:
        """Find the key that was presented, among equal ones that of the wider scope.

        Hashes are compared, all of them and each in the same time, so that how long it takes tells nothing.
        """
        if len(presented) > MAX_KEY_BYTES:
            return None
        digest = sha256(presented).digest()
        found: Key | None = None
        for key in self._keys:
            if compare_digest(key.digest, digest) and (found is None or key.right == "admin"):
                found = key
        return found

    def holds(self, key: Key) -> bool:
        """Whether a key that was found once is still here, in whatever scope."""
        return any(compare_digest(each.digest, key.digest) for each in self._keys)

    def changed(self) -> bool:
        """Whether the file may be another than the one that was read; one look at its times."""
        return self.file is not None and (self._seen is None or self._seen != _signature(self.file))

    def read(self) -> bool:
        """Read the file again; whether other keys hold now. If it raises, those that hold still do.

        Raises
        ------
        KeysError
            It cannot be read, or is not one of keys.
        """
        if self.file is None:
            return False
        seen = _signature(self.file)  # before it is read: what is written meanwhile is then seen the next time
        settled = bool(seen) and time.time_ns() - seen[0] > SETTLED_S * 1e9
        self._seen = seen if settled else None
        before, self._keys = self._keys, (*self._given, *read_key_file(self.file))
        self._several = _differ(self._keys)
        return before != self._keys


def read_keys(text: str) -> tuple[Key, ...]:
    """Read keys that are separated by commas.

    Raises
    ------
    KeysError
        One of them is no key; it is told by its place.
    """
    return tuple(_numbered("entry", enumerate(text.split(","), start=1)))


def read_key_file(path: Path) -> tuple[Key, ...]:
    """Read a file of keys, one a line; what follows a `#` is a comment, and empty lines are passed over.

    Raises
    ------
    KeysError
        It cannot be read, has no key, or a line is none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else "it is no text in UTF-8"
        raise KeysError(f"the file of keys {str(path)!r} cannot be read: {reason}") from None
    told = ((number, line.partition("#")[0].strip()) for number, line in enumerate(lines, start=1))
    try:
        keys = tuple(_numbered("line", ((number, text) for number, text in told if text)))
    except KeysError as error:
        raise KeysError(f"the file of keys {str(path)!r}: {error}") from None
    if not keys:
        raise KeysError(f"the file of keys {str(path)!r} has no key; expected one a line")
    return keys


def _numbered(what: str, told: Iterable[tuple[int, str]]) -> Iterator[Key]:
    for number, text in told:
        try:
            yield _key(text)
        except KeysError as error:
            raise KeysError(f"{what} {number} {error}") from None


def _key(text: str) -> Key:
    match = _KEY.fullmatch(text)
    if match is None:
        raise KeysError(f"{'is no key' if text else 'is empty'}; {_EXPECTED}")
    right, digest, clear = match.groups()
    told: Right = "admin" if right == "admin" else "predict"
    if digest is not None:
        return Key(bytes.fromhex(digest), told)
    if len(clear) > MAX_KEY_BYTES:
        raise KeysError(f"has {len(clear)} characters; expected at most {MAX_KEY_BYTES}")
    return Key(sha256(clear.encode()).digest(), told, len(clear) < SHORT)


def _differ(keys: tuple[Key, ...]) -> bool:
    """Whether there are several keys, not one in several scopes."""
    return len({key.digest for key in keys}) > 1


def _signature(path: Path) -> tuple[int, ...]:
    """When a file was last written to, and which one it is; empty where there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (max(found.st_mtime_ns, found.st_ctime_ns), found.st_size, found.st_ino)


LOOK_S = 1.0

_log = logging.getLogger("anytime_service")


class KeyFileWatcher:
    """Keeps a ring of keys as its file has them; belongs to one event loop.

    Parameters
    ----------
    keys : the ring.
    changed : called when other keys hold than before.
    """

    def __init__(self, keys: KeyRing, changed: Callable[[], None]) -> None:
        self._keys = keys
        self._changed = changed
        self._told = ""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look, from inside the event loop."""
        self._warn()
        if self._keys.file is not None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def read(self) -> None:
        """Read the file again; where that cannot be done the keys stay as they are, and the log says so once."""
        try:
            changed = self._keys.read()
        except KeysError as error:
            if str(error) != self._told:
                self._told = str(error)
                _log.error("keys stay as they were: %s", error)
            return
        self._told = ""
        if changed:
            _log.info("keys read again: %d hold", len(self._keys))
            self._warn()
            self._changed()

    def _look(self) -> None:
        if self._keys.changed():
            self.read()
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _warn(self) -> None:
        if self._keys.short:
            _log.warning("%d of the keys can be guessed: they have fewer than %d characters", self._keys.short, SHORT)
