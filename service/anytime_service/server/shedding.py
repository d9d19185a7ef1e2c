"""Load shedding: refusal of predictions, or answers with the base rate, before any work is done for them.

With twice as many requests as the server can answer, refusing the second half must not use the time that answering the
first half needs. Therefore the server decides after it has read the head of a request and before it creates a task, and
sends a stored response, for a small part of the cost of an answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from anytime_service.clock import now_ms
from anytime_service.core.service import PredictionService
from anytime_service.http.auth import key_in
from anytime_service.http.exchange import Reply
from anytime_service.http.responses import problem_reply, response
from anytime_service.keys import KeyRing
from anytime_service.limits.costs import BASE_RATE_BYTES, BASE_RATES
from anytime_service.limits.memory import Account
from anytime_service.limits.queues import TTLCache
from anytime_service.models.registry import ModelRegistry
from anytime_service.telemetry.context import on_behalf_of

Headers = Sequence[tuple[bytes, bytes]]
DefaultHeaders = list[tuple[bytes, bytes]]
RequestKey = tuple[bytes, ...]

BASE_RATES_MS = 60_000.0  # age at which a stored base rate is removed

_RELEVANT_HEADERS = frozenset(
    b"accept authorization content-encoding content-type grpc-timeout host origin request-timeout-ms".split()
)
"""Headers on which the response with a base rate may depend."""


class LoadShedding:
    """Decisions and responses for predictions that the server does not begin."""

    def __init__(self, service: PredictionService, keys: KeyRing) -> None:
        self.service = service
        self.keys = keys
        self._priors: TTLCache[Reply] = TTLCache(int(BASE_RATES), BASE_RATES_MS)
        self._priors_for: tuple[ModelRegistry, tuple[object, ...]] | None = None
        self._refusals: dict[int, bytes] = {}
        self._default: DefaultHeaders | None = None

    def has_key(self, headers: Headers) -> bool:
        """Return whether a request has a valid key, or needs none; the authentication middleware refuses all others."""
        return not self.keys.needed or key_in(self.keys, headers) is not None

    def account(self, headers: Headers) -> Account:
        return self.service.accounts.of_key(key_in(self.keys, headers))

    def refusal(self, default: DefaultHeaders) -> bytes:
        """Return the response to a refused request; the same list `default` as before contains the same headers."""
        self.service.shed("refused")
        self.service.metrics.overloaded.inc()
        if default is not self._default:
            self._default = default
            self._refusals.clear()
        seconds = self.service.admission.retry_after_s(now_ms())
        content = self._refusals.get(seconds)
        if content is None:
            with on_behalf_of(None):  # it is counted above
                content = response(problem_reply(self.service.overloaded(seconds)), default)
            self._refusals[seconds] = content
        return content

    def prior(self, request: RequestKey, default: DefaultHeaders) -> bytes | None:
        registry, keys = self.service.registry, self.keys.current
        if self._priors_for is None or self._priors_for[0] is not registry or self._priors_for[1] is not keys:
            self._priors_for = registry, keys
            self._priors.clear()
        reply = self._priors.get(request)
        if reply is None:
            return None
        self.service.shed("prior")
        return response(reply, default)

    def store_prior(self, request: RequestKey, reply: Reply) -> None:
        """Store a base rate, unless it is large: those of many rows differ in their options, and seldom repeat."""
        if sum(map(len, request)) + len(reply.content) <= int(BASE_RATE_BYTES):
            self._priors.add(request, reply, now_ms())


def request_key(url: bytes, headers: Headers) -> RequestKey:
    """Return the URL and the headers on which the response with a base rate depends."""
    return url, *(part for header in headers if header[0] in _RELEVANT_HEADERS for part in header)
