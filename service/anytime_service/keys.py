"""API keys: their syntax, and the ring of valid keys, which reloads the key file.

A key is given in clear or as its SHA-256, optionally with a scope before it:

    KEY        sha256:HEX        predict:KEY        admin:KEY        admin:sha256:HEX

Scope `predict`, the default, allows predictions and reading the descriptions of models; `admin` allows everything. Only
hashes are stored. No message contains a key, not even an invalid one: messages name a key by its position.

The server reads the key file every second, and reloads the keys when its content has changed.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Literal, TypeAlias

from anytime._files import is_pipe, read_text
from anytime.errors import AnytimeError
from anytime_service.errors import KeysError

KeyScope: TypeAlias = Literal["predict", "admin"]

KEY = "anytime_service.key"  # name in the ASGI scope of the key of a request, if one was required
MAX_KEY_BYTES = 1024  # largest size of a key in bytes; a longer one is not hashed
SHORT = 16  # length in characters below which a key in clear is accepted with a warning

_log = logging.getLogger("anytime_service")

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
    """The keys that are valid now: `given`, and those of a file, which can be reloaded; raises as `read`.

    `current` is a new object when the keys change; a reload then calls `changed`. `several` is whether they differ in
    more than their scopes.
    """

    def __init__(self, given: Iterable[Key] = (), file: Path | None = None) -> None:
        self.file = file
        self.changed: Callable[[], None] = lambda: None
        self._logged = ""
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
        return self._by_digest.get(sha256(presented).digest())

    def contains(self, key: Key) -> bool:
        """Return whether a key that was found before is still valid, in any scope."""
        return key.digest in self._by_digest

    def read(self) -> bool:
        """Reload the file and return whether the valid keys changed; raise AnytimeError and keep them if that fails.

        It is a KeysError if the file is missing or invalid.
        """
        if self.file is None:
            return False
        if is_pipe(self.file):  # reading one that nobody writes would stop the server
            raise KeysError(
                f"cannot read key file {str(self.file)!r}: it is a pipe or a device; expected a regular file"
            )
        content = read_text(self.file, f"key file {str(self.file)!r}", KeysError)
        read, before = sha256(content.encode()).digest(), self.current
        if read == self._read:
            return False
        self._set_current((*self._given, *_file_keys(content, self.file)))
        self._read = read
        return before != self.current

    async def watch(self, check_s: float) -> None:
        """Look for changes of the file until the task is cancelled."""
        self._warn()
        while self.file is not None:
            await asyncio.sleep(check_s)
            self.reload()

    def reload(self) -> None:
        """Reload the file; on an error log it once and leave the keys unchanged."""
        try:
            changed = self.read()
        except AnytimeError as error:
            if str(error) != self._logged:
                self._logged = str(error)
                _log.error("could not reload the keys; the previous ones stay valid: %s", error)
            return
        self._logged = ""
        if changed:
            _log.info("keys reloaded: %d are valid", len(self.current))
            self._warn()
            self.changed()

    def _warn(self) -> None:
        short = sum(key.short for key in self.current)
        if short:
            _log.warning("keys that are short enough to guess: %d; use at least %d characters", short, SHORT)

    def _set_current(self, keys: tuple[Key, ...]) -> None:
        self.current = keys
        # A key with both scopes has the widest.
        self._by_digest = {key.digest: key for key in sorted(keys, key=lambda each: each.scope == "admin")}
        self.several = len(self._by_digest) > 1


def entries(text: str) -> list[str]:
    """Return the entries of a setting; spaces and line ends around them, and a comma at its end, do not count."""
    return [each.strip() for each in text.strip().removesuffix(",").split(",")]


def read_keys(text: str) -> tuple[Key, ...]:
    """Read keys that are separated by commas; raise KeysError, which names an invalid key by its position."""
    return tuple(_numbered("entry", enumerate(entries(text), start=1)))


def _file_keys(content: str, path: Path) -> tuple[Key, ...]:
    """Read keys, one per line; `#` starts a comment, and empty lines are skipped.

    Raise KeysError, which names the file, if a line is not a valid key, or without any key.
    """
    lines = ((number, line.partition("#")[0].strip()) for number, line in enumerate(content.splitlines(), start=1))
    keys = tuple(_numbered(f"key file {str(path)!r}: line", ((number, text) for number, text in lines if text)))
    if not keys:
        raise KeysError(f"key file {str(path)!r} contains no key; expected one per line")
    return keys


def _numbered(what: str, texts: Iterable[tuple[int, str]]) -> Iterator[Key]:
    for number, text in texts:
        match = _KEY.fullmatch(text)
        if match is None:
            raise KeysError(f"{what} {number} {'is not a valid key' if text else 'is empty'}; {_EXPECTED}")
        prefix, digest, clear = match.groups()
        if clear is not None and len(clear) > MAX_KEY_BYTES:
            raise KeysError(f"{what} {number} has {len(clear)} characters; expected at most {MAX_KEY_BYTES}")
        hashed = sha256(clear.encode()).digest() if digest is None else bytes.fromhex(digest)
        yield Key(hashed, "admin" if prefix == "admin" else "predict", digest is None and len(clear) < SHORT)
