"""Load shedding: refusal of predictions, or answers with the base rate, before any work is done for them.

With twice as many requests as the server can answer, refusing the second half must not use the time that answering the
first half needs. Therefore the server decides after it has read the head of a request and before it creates a task, and
sends a stored response, for a small part of the cost of an answer. Clients often repeat the same head: the server
recognises a known one by its bytes and does not parse it.
"""

from __future__ import annotations

from collections.abc import Sequence

from anytime_service.clock import now_ms
from anytime_service.core.service import PredictionService
from anytime_service.http.auth import has_key, key_in
from anytime_service.http.exchange import Reply
from anytime_service.http.responses import oip_problem_reply, problem_reply, response
from anytime_service.keys import KeyRing
from anytime_service.limits.memory import Account
from anytime_service.models.registry import ModelRegistry
from anytime_service.telemetry.context import on_behalf_of

__all__ = ["Key", "LoadShedding", "asks_for_prediction", "key_of"]


Headers = Sequence[tuple[bytes, bytes]]
DefaultHeaders = list[tuple[bytes, bytes]]
Key = tuple[bytes, ...]

MAX_KEPT = 256
"""Largest numbers of stored heads and of stored base rates; at the limit all of them are removed."""

LONGEST_HEAD = 2048
"""Size in bytes above which heads are not stored."""

_RELEVANT_HEADERS = frozenset(
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
"""Headers on which the response with a base rate may depend."""


class LoadShedding:
    """Decisions and responses for predictions that the server does not begin.

    Parameters
    ----------
    handler : the prediction service.
    keys : the valid keys; stored responses are removed when they change.
    """

    def __init__(self, handler: PredictionService, keys: KeyRing) -> None:
        self.handler = handler
        self.keys = keys
        self.admission = handler.admission
        self._priors: dict[Key, Reply] = {}
        self._priors_for: tuple[ModelRegistry, tuple[object, ...]] | None = None
        self._refusals: dict[tuple[bool, int], bytes] = {}
        self._heads: dict[bytes, tuple[int, Key | None]] = {}
        self._heads_for: tuple[object, ...] = ()
        self._default: DefaultHeaders | None = None

    def count(self, why: str, how: str = "refused") -> None:
        """Count a prediction or connection that was not served."""
        self.handler.signals.shed.labels(how, why).inc()

    def has_key(self, headers: Headers) -> bool:
        """Return whether a request has a valid key; the authentication middleware refuses all others."""
        return has_key(self.keys, headers)

    def account(self, headers: Headers) -> Account:
        """Return the account of a request, by its key."""
        return self.handler.accounts.of_key(key_in(self.keys, headers))

    def had_turn(self) -> None:
        """Report to the admission control that an admitted request has had its turn of the event loop."""
        self.admission.had_turn(now_ms())

    def known(self, data: bytes) -> tuple[Key | None] | None:
        """Look up a complete request by its head, among requests that were answered at once before.

        Returns
        -------
        A tuple with the key of the base rate, or with None if the request does not accept one; None if the request must
        be parsed.
        """
        heads = self._valid_heads()
        if not heads:
            return None
        end = data.find(b"\r\n\r\n") + 4
        known = heads.get(data[:end])
        return None if known is None or len(data) != end + known[0] else (known[1],)

    def learn(self, data: bytes, headers: Headers, key: Key | None) -> None:
        """Store the head of a request that was answered at once; `data` is exactly this request."""
        end = data.find(b"\r\n\r\n") + 4
        lengths = [int(value) for name, value in headers if name == b"content-length"]
        if end <= LONGEST_HEAD and lengths == [len(data) - end]:
            heads = self._valid_heads()
            if len(heads) >= MAX_KEPT:
                heads.clear()
            heads[data[:end]] = lengths[0], key

    def refusal(self, default: DefaultHeaders, *, inference: bool = False) -> bytes:
        """Return the response to a request whose prediction is refused.

        Parameters
        ----------
        default : headers of every response; the same list object as long as they are unchanged.
        inference : whether the request uses the Open Inference Protocol.
        """
        self.handler.shed("refused")
        self.handler.signals.overloaded.inc()
        if default is not self._default:
            self._default = default
            self._refusals.clear()
        seconds = self.admission.retry_after_s(now_ms())
        content = self._refusals.get((inference, seconds))
        if content is None:
            error = self.handler.overloaded(seconds)
            with on_behalf_of(None):  # it is counted above
                content = response(oip_problem_reply(error) if inference else problem_reply(error), default)
            self._refusals[inference, seconds] = content
        return content

    def prior(self, key: Key, default: DefaultHeaders) -> bytes | None:
        """Return the stored response with the base rate; None if it is not stored."""
        registry, keys = self.handler.registry, self.keys.current
        if self._priors_for is None or self._priors_for[0] is not registry or self._priors_for[1] is not keys:
            self._priors_for = registry, keys
            self._priors.clear()
        reply = self._priors.get(key)
        if reply is None:
            return None
        self.handler.shed("prior")
        return response(reply, default)

    def store_prior(self, key: Key, reply: Reply) -> None:
        """Store the response with a base rate."""
        if len(self._priors) >= MAX_KEPT:
            self._priors.clear()
        self._priors[key] = reply

    def _valid_heads(self) -> dict[bytes, tuple[int, Key | None]]:
        """Return the stored heads for the keys that are valid now."""
        if self._heads_for is not self.keys.current:
            self._heads_for = self.keys.current
            self._heads.clear()
        return self._heads


def key_of(url: bytes, headers: Headers) -> Key:
    """Return the URL and the headers on which the response with a base rate depends."""
    return url, *(part for header in headers if header[0] in _RELEVANT_HEADERS for part in header)


def asks_for_prediction(method: bytes, url: bytes) -> bool:
    """Return whether a request would begin a prediction."""
    if method == b"POST":
        path = url.partition(b"?")[0]
        return path == b"/predict" or (path.startswith(b"/v2/models/") and path.endswith(b"/infer"))
    if method == b"GET":
        path = url.partition(b"?")[0]
        return path == b"/predict" or (path.startswith(b"/sessions/") and path.endswith(b"/predict"))
    return False
