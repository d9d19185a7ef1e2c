"""Load shedding: refusal of predictions, or answers with the base rate, before any work is done for them.

With twice as many requests as the server can answer, refusing the second half must not use the time that answering the
first half needs. Therefore the server decides when it has read the head of a request, before it creates a task and
reads the body, and sends a stored response, for a small part of the cost of an answer. Requests wait nowhere before
that decision: what waits in the server's queues counts in it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from anytime.errors import AnytimeError
from anytime_service.clock import now_ms
from anytime_service.core.service import PredictionService
from anytime_service.http.auth import identified
from anytime_service.http.exchange import ADMITTED, STORE_REPLY, Reply
from anytime_service.http.responses import problem_reply, response
from anytime_service.keys import KEY, KeyRing
from anytime_service.limits.table import BASE_RATE_BYTES, BASE_RATES
from anytime_service.limits.turns import AT_ONCE, TTLCache
from anytime_service.models.registry import ModelRegistry
from anytime_service.routes import RouteSpec
from anytime_service.telemetry.context import on_behalf_of

DefaultHeaders = list[tuple[bytes, bytes]]

BASE_RATES_MS = 60_000.0  # age at which a stored base rate is removed

_RELEVANT_HEADERS = frozenset(
    b"accept content-encoding content-type grpc-timeout host origin request-timeout-ms".split()
)
"""Headers on which the response with a base rate may depend, as it does on the key."""


class LoadShedding:
    """Decisions and responses for predictions that the server does not begin."""

    def __init__(self, service: PredictionService, keys: KeyRing) -> None:
        self.service = service
        self.keys = keys
        self._priors: TTLCache[Reply] = TTLCache(int(BASE_RATES), BASE_RATES_MS)
        self._priors_for: tuple[ModelRegistry, tuple[object, ...]] | None = None
        self._refusals: dict[int, bytes] = {}
        self._default: DefaultHeaders | None = None

    def admits(self, scope: dict[str, Any], length: int) -> bool | None:
        """Return whether the prediction of a request begins, whose body has a length; a long one waits for its turn.

        Return None without a valid key: the authentication middleware refuses the request.
        """
        if self.keys.needed:
            try:
                identified(self.keys, scope)
            except AnytimeError:
                return None
        service = self.service
        is_late = length > AT_ONCE and service.turns.long_ms > service.settings.max_lateness_ms
        admitted = scope["state"][ADMITTED] = service.admits(now_ms()) and not is_late
        return admitted

    def reply(self, scope: dict[str, Any], route: RouteSpec, default: DefaultHeaders) -> bytes | None:
        """Return the response to a request whose prediction is not admitted; None if its endpoint must answer.

        The same list `default` as before contains the same headers.
        """
        if route.shed == "endpoint":  # the body may request the base rate
            return None
        if b"overload=prior" not in scope["query_string"]:
            return self._refusal(default)
        return self._prior(scope, default) if route.shed == "stored" else None

    def _refusal(self, default: DefaultHeaders) -> bytes:
        self.service.shed("refused")
        self.service.metrics.overloaded.inc()
        if default is not self._default:
            self._default = default
            self._refusals.clear()
        seconds = self.service.admission.retry_after_s()
        content = self._refusals.get(seconds)
        if content is None:
            with on_behalf_of(None):  # it is counted above
                content = response(problem_reply(self.service.overloaded(seconds)), default)
            self._refusals[seconds] = content
        return content

    def _prior(self, scope: dict[str, Any], default: DefaultHeaders) -> bytes | None:
        """Return the stored response with the base rate; without one return None, and store the next answer."""
        registry, keys = self.service.registry, self.keys.current
        if self._priors_for is None or self._priors_for[0] is not registry or self._priors_for[1] is not keys:
            self._priors_for = registry, keys
            self._priors.clear()
        relevant = (part for header in scope["headers"] if header[0] in _RELEVANT_HEADERS for part in header)
        request = (scope["raw_path"], scope["query_string"], getattr(scope.get(KEY), "digest", b""), *relevant)
        reply = self._priors.find(request)
        if reply is None:
            scope["state"][STORE_REPLY] = partial(self._store, request)
            return None
        self.service.shed("prior")
        return response(reply, default)

    def _store(self, request: tuple[bytes, ...], reply: Reply) -> None:
        """Store a base rate, unless it is large: those of many rows differ in their options, and seldom repeat."""
        if sum(map(len, request)) + len(reply.content) <= int(BASE_RATE_BYTES):
            self._priors.add(request, reply, now_ms())
