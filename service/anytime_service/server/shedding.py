"""Predictions that are not begun, told so before anything is done for them.

With twice as many requests as can be answered, refusing the second half must not take what answering the first half
needs. So it is decided when the head of a request has been read and before there is a task for it, and told in bytes
that are at hand, for a small part of what an answer costs. Clients send the same head again and again: one that has
been read before is known by its bytes, and not even read.
"""

from __future__ import annotations

from collections.abc import Sequence

from anytime_service.clock import now_ms
from anytime_service.core.service import PredictionService
from anytime_service.http.auth import has_key, key_in
from anytime_service.http.exchange import Reply
from anytime_service.http.responses import problem_reply, refusal, response
from anytime_service.keys import KeyRing
from anytime_service.limits.memory import Account
from anytime_service.models.registry import ModelRegistry
from anytime_service.telemetry.context import on_behalf_of

__all__ = ["Key", "LoadShedding", "asks_for_prediction", "key_of"]


Headers = Sequence[tuple[bytes, bytes]]
DefaultHeaders = list[tuple[bytes, bytes]]
Key = tuple[bytes, ...]

MAX_KEPT = 256
"""Heads that are known, and base rates that are at hand; beyond them all are forgotten."""

LONGEST_HEAD = 2048
"""Longer heads are not known by themselves."""

_TELLING = frozenset(
    (
        b"accept",
        b"authorization",
        b"content-encoding",
        b"content-type",
        b"grpc-timeout",
        b"host",
        b"origin",
        b"request-timeout-ms",
    )
)
"""Headers that a base rate may depend on, or whether it may be told."""


class LoadShedding:
    """What is told instead of an answer.

    Parameters
    ----------
    handler : whose predictions they are.
    keys : those that hold; what one of them was told is not told again when others hold.
    """

    def __init__(self, handler: PredictionService, keys: KeyRing) -> None:
        self.handler = handler
        self.keys = keys
        self.admission = handler.admission
        self._kept: dict[Key, Reply] = {}
        self._kept_by: tuple[ModelRegistry, tuple[object, ...]] | None = None
        self._told: dict[tuple[bool, int], bytes] = {}
        self._heads: dict[bytes, tuple[int, Key | None]] = {}
        self._heads_by: tuple[object, ...] = ()
        self._default: DefaultHeaders | None = None

    def count(self, why: str, how: str = "refused") -> None:
        """Count what was not begun."""
        self.handler.signals.shed.labels(how, why).inc()

    def has_key(self, headers: Headers) -> bool:
        """Whether a request may be told anything here; who has no key that holds is for the guard to refuse."""
        return has_key(self.keys, headers)

    def account(self, headers: Headers) -> Account:
        """Return the account of a request, by its key."""
        return self.handler.accounts.of_key(key_in(self.keys, headers))

    def had_turn(self) -> None:
        """Hear that a request which was let in has had its turn."""
        self.admission.had_turn(now_ms())

    def known(self, data: bytes) -> tuple[Key | None] | None:
        """What is known of a request that has come whole, if one with the same head has been told at once before.

        Returns
        -------
        The key of its base rate, None where it does not ask for one; or None for a request that is to be looked at.
        """
        heads = self._heads_now()
        if not heads:
            return None
        end = data.find(b"\r\n\r\n") + 4
        known = heads.get(data[:end])
        return None if known is None or len(data) != end + known[0] else (known[1],)

    def learn(self, data: bytes, headers: Headers, key: Key | None) -> None:
        """Know a request by its head that was told at once; `data` begins with it, and has nothing after its body."""
        end = data.find(b"\r\n\r\n") + 4
        lengths = [int(value) for name, value in headers if name == b"content-length"]
        if end <= LONGEST_HEAD and lengths == [len(data) - end]:
            heads = self._heads_now()
            if len(heads) >= MAX_KEPT:
                heads.clear()
            heads[data[:end]] = lengths[0], key

    def refusal(self, default: DefaultHeaders, *, inference: bool = False) -> bytes:
        """Response to a request whose prediction is not begun.

        Parameters
        ----------
        default : headers that every response has; the same list for as long as they are the same.
        inference : whether it is one of the Open Inference Protocol.
        """
        self.handler.shed("refused")
        self.handler.signals.overloaded.inc()
        if default is not self._default:
            self._default = default
            self._told.clear()
        seconds = self.admission.retry_after_s(now_ms())
        told = self._told.get((inference, seconds))
        if told is None:
            error = self.handler.overloaded(seconds)
            with on_behalf_of(None):  # it has been counted
                told = response(refusal(error) if inference else problem_reply(error), default)
            self._told[inference, seconds] = told
        return told

    def prior(self, key: Key, default: DefaultHeaders) -> bytes | None:
        """Response with the base rate, if it is at hand."""
        registry, keys = self.handler.registry, self.keys.current
        if self._kept_by is None or self._kept_by[0] is not registry or self._kept_by[1] is not keys:
            self._kept_by = registry, keys
            self._kept.clear()
        reply = self._kept.get(key)
        if reply is None:
            return None
        self.handler.shed("prior")
        return response(reply, default)

    def keep(self, key: Key, reply: Reply) -> None:
        """Have a base rate at hand."""
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        self._kept[key] = reply

    def _heads_now(self) -> dict[bytes, tuple[int, Key | None]]:
        """Heads that are known, of those keys that hold now."""
        if self._heads_by is not self.keys.current:
            self._heads_by = self.keys.current
            self._heads.clear()
        return self._heads


def key_of(url: bytes, headers: Headers) -> Key:
    """All that a base rate depends on, or whether there is one."""
    return url, *(part for header in headers if header[0] in _TELLING for part in header)


def asks_for_prediction(method: bytes, url: bytes) -> bool:
    """Whether a request would begin a prediction."""
    if method == b"POST":
        path = url.partition(b"?")[0]
        return path == b"/predict" or (path.startswith(b"/v2/models/") and path.endswith(b"/infer"))
    if method == b"GET":
        path = url.partition(b"?")[0]
        return path == b"/predict" or (path.startswith(b"/sessions/") and path.endswith(b"/predict"))
    return False
