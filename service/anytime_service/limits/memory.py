"""Memory budget of the server, and the share of each API key in its limits.

Code that stores bytes for a client (values of groups, partially received bodies and messages, replies that are not sent
yet) adds them to an account, and subtracts them when it releases them. With several keys configured, a key gets at most
the share `max_share_per_key` of open predictions, sessions and stored bytes, so one key cannot use everything. Requests
without a key use the account `Accounts.anonymous`, which has no share of its own and counts the bytes of all keys too.
An account lives as long as something is counted on it or a request or connection uses it, also after its key has been
removed.

An open prediction of many rows also reserves the memory in which its answer is made. What does not fit is refused when
the prediction begins, or when its groups arrive: a begun prediction is answered. Answers are made one at a time, so the
largest answer of a key counts.
"""

from __future__ import annotations

import sys
from bisect import insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from weakref import WeakValueDictionary

from anytime_service.errors import OverloadedError
from anytime_service.keys import KEY, Key, KeyRing


@dataclass(slots=True, eq=False, weakref_slot=True)
class Account:
    """The resources in use by one API key, or by all requests: an account without `total`.

    Attributes
    ----------
    most : int
        Largest number of stored bytes, those of all keys together.
    refused : Callable[[], None]
        Called when a request would exceed a limit.
    total : Account | None
        The account that counts the bytes of all keys.
    key : Key | None
        None for requests without a key.
    share : Callable[[int], int]
        Returns how much of a limit the key may use.
    bytes : int
        Stored bytes.
    active : set[object]
        Open predictions.
    sessions : int
        Number of sessions in this process that the key has begun.
    """

    most: int = sys.maxsize
    refused: Callable[[], None] = lambda: None
    total: Account | None = None
    key: Key | None = None
    share: Callable[[int], int] = lambda most: most
    bytes: int = 0
    active: set[object] = field(default_factory=set)
    sessions: int = 0
    _answers: list[int] = field(default_factory=lambda: [0])
    """Bytes that each answer needs while it is made, ascending, after a 0."""

    @property
    def owner(self) -> str:
        """Owner id, the same on every replica, which does not reveal the key; empty without a key."""
        return "" if self.key is None else sha256(b"anytime account " + self.key.digest).hexdigest()[:16]

    def add(self, more: int) -> None:
        """Count `more` stored bytes, fewer if negative, without a check."""
        self.bytes += more
        if self.total is not None:
            self.total.bytes += more

    def fits(self, more: int) -> bool:
        total = self.total or self
        return self.bytes + more <= self.share(self.most) and total.bytes + more <= total.most

    def check(self, more: int, field: str | None = None) -> None:
        """Raise OverloadedError if `more` additional bytes do not fit into the budget or the share of this key.

        `field` names their field in the request.
        """
        total = self.total or self
        share = self.most if self.total is None else self.share(self.most)
        if self.bytes + more > share and share < self.most:
            why = (
                f"this API key has {self.bytes} bytes stored, and {more} more would exceed its share, {share} of"
                f" {self.most} bytes"
            )
        elif total.bytes + more > total.most:
            why = f"the server stores {total.bytes} bytes, and {more} more would exceed its limit of {total.most}"
        else:
            return
        self.refused()
        raise OverloadedError(f"{why}; retry in a second, or use another replica", field)

    def check_answer(self, size: int, more: int = 0, field: str | None = None) -> None:
        """Raise OverloadedError as `check` if an answer that needs `size` bytes, and `more` bytes, do not fit."""
        self.check(max(size - self._answers[-1], 0) + more, field)

    def reserve_answer(self, size: int, before: int = 0) -> None:
        """Reserve the memory of an answer instead of what it needed `before`; 0 stands for no answer."""
        largest = self._answers[-1]
        if before:
            self._answers.remove(before)
        if size:
            insort(self._answers, size)
        self.add(self._answers[-1] - largest)

    def share_exhausted(self, used: int, most: int) -> bool:
        """Return whether `used` exhausts this key's share of the limit `most`; False if its share is the full limit."""
        return self.total is not None and used >= self.share(most) < most

    def share_error(self, used: int, most: int, what: str) -> OverloadedError:
        """Return the error for a key that has exhausted its share of the limit `most` and requests more."""
        return OverloadedError(
            f"this API key has {used} {what}, and its share is {self.share(most)} of {most}; end some of them, retry"
            " in a second, or use another replica"
        )


class Accounts:
    """The accounts of all keys, each with the share `share` of every limit; a single key may use the full limits."""

    def __init__(self, anonymous: Account, share: float, keys: KeyRing | None = None) -> None:
        self.anonymous = anonymous
        self._part = share
        self._keys = keys
        self._all: WeakValueDictionary[bytes, Account] = WeakValueDictionary()

    def of(self, scope: Mapping[str, Any]) -> Account:
        """Return the account of a request or WebSocket, by the key that authentication identified."""
        return self.of_key(scope.get(KEY))

    def of_key(self, key: Key | None) -> Account:
        """Return the account of a key: the same object as long as it is in use."""
        if key is None:
            return self.anonymous
        account = self._all.get(key.digest)
        if account is None:
            total = self.anonymous
            account = self._all[key.digest] = Account(total.most, total.refused, total, key, self._share)
        return account

    def _share(self, most: int) -> int:
        several = self._keys is not None and self._keys.several
        return max(int(most * self._part), 1) if several else most
