"""API keys: their syntax, the ring of valid keys, and the watcher that reloads the key file.

A key is given in clear or as its SHA-256, optionally with a scope before it:

    KEY        sha256:HEX        predict:KEY        admin:KEY        admin:sha256:HEX

Scope `predict`, the default, allows predictions and reading the descriptions of models; `admin` allows everything. Only
hashes are stored. No message contains a key, not even an invalid one: messages name a key by its position.

The watcher reads the key file every second, and reloads the keys when its content has changed.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Literal, TypeAlias

from anytime._files import is_pipe
from anytime.errors import reason_of
from anytime_service.errors import KeysError

KeyScope: TypeAlias = Literal["predict", "admin"]

KEY = "anytime_service.key"  # name in the ASGI scope of the key of a request, if one was required
MAX_KEY_BYTES = 1024  # largest size of a key in bytes; a longer one is not hashed
SHORT = 16  # length in characters below which a key in clear is accepted with a warning

_KEY = re.compile(r"(?:(predict|admin):)?(?:sha256:([0-9a-fA-F]{64})|([A-Za-z0-9._~+/-]+=*))")
_EXPECTED = (
    "expected KEY, admin:KEY, sha256:HEX or admin:sha256:HEX, where KEY has letters, digits and - . _ ~ + / (= at its "
    "end) and HEX is the 64 hexadecimal digits of its SHA-256"
)


@dataclass(frozen=True, slots=True)
class Key:
    """A valid key: its SHA-256, its scope, and whether it was given in clear and is short enough to guess."""

    digest: bytes = field(repr=False)
    scope: KeyScope = "predict"
    short: bool = field(default=False, compare=False)


class KeyRing:
    """The keys that are valid now: `given`, and those of a file, which can be reloaded; raise KeysError as `read`.

    `current` is a new object when the keys change. `several` is whether they differ in more than their scopes.
    """

    def __init__(self, given: Iterable[Key] = (), file: Path | None = None) -> None:
        self.file = file
        self._given = tuple(given)
        self._set_current(self._given)
        self._read = b""  # SHA-256 of the file
        self.read()

    @property
    def needed(self) -> bool:
        """Return whether clients need a key; a ring with a key file requires one even if the file becomes invalid."""
        return bool(self.current) or self.file is not None

    def find(self, presented: bytes) -> Key | None:
        """Return the key that a client presented, with its widest scope; None if it is invalid.

        It is looked up by its hash. Nobody can choose a part of a hash, so the duration reveals nothing about keys.
        """
        if len(presented) > MAX_KEY_BYTES:
            return None
        digest = sha256(presented).digest()
        found = self._by_digest.get(digest)
        return found if found is not None and compare_digest(found.digest, digest) else None

    def contains(self, key: Key) -> bool:
        """Return whether a key that was found before is still valid, in any scope."""
        return key.digest in self._by_digest

    def read(self) -> bool:
        """Reload the file and return whether the valid keys changed; raise KeysError and keep them if it is invalid."""
        if self.file is None:
            return False
        if is_pipe(self.file):  # reading one that nobody writes would stop the server
            raise KeysError(
                f"cannot read key file {str(self.file)!r}: it is a pipe or a device; expected a regular file"
            )
        try:
            content = self.file.read_text(encoding="utf-8-sig")  # without the mark with which some editors begin a file
        except (OSError, UnicodeDecodeError) as error:
            reason = reason_of(error) if isinstance(error, OSError) else "it is not UTF-8 text"
            raise KeysError(f"cannot read key file {str(self.file)!r}: {reason}") from None
        read, before = sha256(content.encode()).digest(), self.current
        if read == self._read:
            return False
        self._set_current((*self._given, *_file_keys(content, self.file)))
        self._read = read
        return before != self.current

    def _set_current(self, keys: tuple[Key, ...]) -> None:
        self.current = keys
        # A key with both scopes has the widest.
        self._by_digest = {key.digest: key for key in sorted(keys, key=lambda each: each.scope == "admin")}
        self.several = len(self._by_digest) > 1


def read_keys(text: str) -> tuple[Key, ...]:
    """Read keys that are separated by commas; raise KeysError, which names an invalid key by its position."""
    return tuple(_numbered("entry", enumerate(text.split(","), start=1)))


def _file_keys(content: str, path: Path) -> tuple[Key, ...]:
    """Read keys, one per line; `#` starts a comment, and empty lines are skipped.

    Raise KeysError, which names the file, if a line is not a valid key, or without any key.
    """
    entries = ((number, line.partition("#")[0].strip()) for number, line in enumerate(content.splitlines(), start=1))
    try:
        keys = tuple(_numbered("line", ((number, text) for number, text in entries if text)))
    except KeysError as error:
        raise KeysError(f"key file {str(path)!r}: {error}") from None
    if not keys:
        raise KeysError(f"key file {str(path)!r} contains no key; expected one per line")
    return keys


def _numbered(what: str, entries: Iterable[tuple[int, str]]) -> Iterator[Key]:
    for number, text in entries:
        try:
            yield _key(text)
        except KeysError as error:
            raise KeysError(f"{what} {number} {error}") from None


def _key(text: str) -> Key:
    match = _KEY.fullmatch(text)
    if match is None:
        raise KeysError(f"{'is not a valid key' if text else 'is empty'}; {_EXPECTED}")
    prefix, digest, clear = match.groups()
    scope: KeyScope = "admin" if prefix == "admin" else "predict"
    if digest is not None:
        return Key(bytes.fromhex(digest), scope)
    if len(clear) > MAX_KEY_BYTES:
        raise KeysError(f"has {len(clear)} characters; expected at most {MAX_KEY_BYTES}")
    return Key(sha256(clear.encode()).digest(), scope, len(clear) < SHORT)


_log = logging.getLogger("anytime_service")


class KeyFileWatcher:
    """Watcher that reloads a key ring when its file changes, and then calls `changed`."""

    def __init__(self, keys: KeyRing, changed: Callable[[], None], check_s: float) -> None:
        self._keys = keys
        self._changed = changed
        self._check_s = check_s
        self._logged = ""

    async def watch(self) -> None:
        """Look for changes until the task is cancelled."""
        self._warn()
        while self._keys.file is not None:
            await asyncio.sleep(self._check_s)
            self.read()

    def read(self) -> None:
        """Reload the file; on an error log it once and leave the keys unchanged."""
        try:
            changed = self._keys.read()
        except KeysError as error:
            if str(error) != self._logged:
                self._logged = str(error)
                _log.error("could not reload the keys; the previous ones stay valid: %s", error)
            return
        self._logged = ""
        if changed:
            _log.info("keys reloaded: %d are valid", len(self._keys.current))
            self._warn()
            self._changed()

    def _warn(self) -> None:
        short = sum(key.short for key in self._keys.current)
        if short:
            _log.warning("keys that are short enough to guess: %d; use at least %d characters", short, SHORT)
