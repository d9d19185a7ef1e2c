"""How many bytes clients have the server hold: values of groups, bodies and messages half read, replies not taken.

Whoever keeps bytes for a client adds them here and subtracts them when it lets go of them.

Shares of the limits: what each API key has in use, so that one key cannot use everything.

With several keys configured, a key gets at most the share `max_share_per_key` of open predictions, sessions and held
bytes. Requests without a key use the account `Accounts.nobody`, which has no share of its own. An account lives for as
long as something is counted on it or a request or connection uses it: a key that is removed while it has things open
keeps its account until the last of them ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any
from weakref import WeakValueDictionary

from anytime_service.errors import OverloadedError
from anytime_service.keys import KEY, Key, KeyRing

__all__ = [
    "Account",
    "Accounts",
    "Held",
]


class Held:
    """One number, and the most that it may be.

    Parameters
    ----------
    most : bytes that may be held at once.
    refused : called when more would have been.
    """

    __slots__ = ("bytes", "most", "refused")

    def __init__(self, most: int, refused: Callable[[], None] = lambda: None) -> None:
        self.bytes = 0
        self.most = most
        self.refused = refused

    def fits(self, more: int) -> bool:
        """Whether so many bytes more may be held."""
        return self.bytes + more <= self.most

    def check(self, more: int, field: str | None = None) -> None:
        """Check that so many bytes more may be held.

        Raises
        ------
        OverloadedError
            They may not; `field` is what they belong to.
        """
        if self.bytes + more > self.most:
            self.refused()
            raise OverloadedError(
                f"{self.bytes} bytes are held already, and {more} more would be over the limit of {self.most};"
                " ask again in a second, or another replica",
                field,
            )


class Account(Held):
    """What one API key has in use; its bytes count among those of all keys too.

    Parameters
    ----------
    whole : counts the bytes of all keys.
    key : whose account it is; None without a key.
    share : returns how much of a limit the key may use.

    Attributes
    ----------
    live : open predictions.
    sessions : how many sessions in this process the key has begun.
    """

    __slots__ = ("__weakref__", "_bytes", "_key", "_share", "_whole", "live", "sessions")

    def __init__(self, whole: Held, key: Key | None = None, share: Callable[[int], int] = lambda most: most) -> None:
        self._whole = whole
        self._key = key
        self._share = share
        self._bytes = 0
        self.most = whole.most
        self.refused = whole.refused
        self.live: set[object] = set()
        self.sessions = 0

    @property
    def bytes(self) -> int:
        """Bytes that are held for this key."""
        return self._bytes

    @bytes.setter  # noqa: A003  (the name that `Held` has)
    def bytes(self, value: int) -> None:
        self._whole.bytes += value - self._bytes
        self._bytes = value

    @property
    def owner(self) -> str:
        """A name on which replicas agree, and which does not reveal the key; empty without a key."""
        return "" if self._key is None else sha256(b"anytime account " + self._key.digest).hexdigest()[:16]

    def share(self, most: int) -> int:
        """Return how much of a limit this key may use."""
        return self._share(most)

    def fits(self, more: int) -> bool:
        """Whether so many bytes more may be held."""
        return self._bytes + more <= self._share(self.most) and self._whole.fits(more)

    def check(self, more: int, field: str | None = None) -> None:
        """Check that so many bytes more may be held.

        Raises
        ------
        OverloadedError
            They may not, as for `Held.check`, or this key would exceed its share.
        """
        share = self._share(self.most)
        if self._bytes + more > share and share < self.most:
            self.refused()
            raise OverloadedError(
                f"this API key has {self._bytes} bytes held, and {more} more would exceed its share, {share} of"
                f" {self.most} bytes; retry in a second, or use another replica",
                field,
            )
        self._whole.check(more, field)

    def has_share(self, used: int, most: int) -> bool:
        """Whether this key, which uses so much of a limit, uses its share of it; False where its share is all."""
        return used >= self._share(most) < most

    def over_share(self, used: int, most: int, what: str) -> OverloadedError:
        """Return the error for a key that uses its share of a limit and wants more."""
        return OverloadedError(
            f"this API key has {used} {what}, and its share is {self._share(most)} of {most}; end some of them, retry"
            " in a second, or use another replica"
        )


class Accounts:
    """The accounts of all keys.

    Parameters
    ----------
    held : counts the bytes of all keys together.
    share : how much of each limit one key may use, in (0, 1].
    keys : the configured keys; a single one may use everything. None without keys.
    """

    def __init__(self, held: Held, share: float, keys: KeyRing | None = None) -> None:
        self.nobody = Account(held)
        self._held = held
        self._part = share
        self._keys = keys
        self._all: WeakValueDictionary[bytes, Account] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._all)

    def of(self, scope: Mapping[str, Any]) -> Account:
        """Return the account of a request or WebSocket, by the key that `AuthenticationMiddleware` found."""
        return self.of_key(scope.get(KEY))

    def of_key(self, key: Key | None) -> Account:
        """Return the account of a key: the same one for as long as it is in use."""
        if key is None:
            return self.nobody
        account = self._all.get(key.digest)
        if account is None:
            account = self._all[key.digest] = Account(self._held, key, self._share)
        return account

    def _share(self, most: int) -> int:
        several = self._keys is not None and self._keys.several
        return max(int(most * self._part), 1) if several else most
