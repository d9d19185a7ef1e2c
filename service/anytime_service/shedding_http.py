"""Requests whose predictions are not begun, answered before there is a task for them.

Those of the Open Inference Protocol may ask for the base rate in their bodies, which are looked through first.
"""

from __future__ import annotations

from typing import Any

from anytime_service.clock import now_ms
from anytime_service.errors import OverloadedError
from anytime_service.guarded_http import GuardedHttpProtocol
from anytime_service.shedding import ADMITTED, KEEP, Shedding, asks_for_prediction

__all__ = ["LOOKED_THROUGH", "SheddingHttpProtocol"]

LOOKED_THROUGH = 256 * 1024
"""Bytes of a body that may ask for the base rate; larger ones are refused unless the query does."""

_IN_QUERY = b"overload=prior"
_IN_BODY = b'"overload"'


class SheddingHttpProtocol(GuardedHttpProtocol):
    """The guarded protocol, with the decision which predictions are begun."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._looking: bytearray | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._looked()
        super().connection_lost(exc)

    def answer_head(self) -> None:
        """Have the request answered, if it asks for a prediction only if that is begun."""
        shedding = self.shared.shedding
        if shedding is None or not asks_for_prediction(self.parser.get_method(), self.url):
            super().answer_head()
        elif shedding.admission.admits(now_ms()):
            self.scope["state"][ADMITTED] = True
            super().answer_head()
            shedding.admission.waiting += 1
            self.loop.call_soon(shedding.had_turn)  # right after the request's own task has had it
        elif not self._told_at_once(shedding):
            self._leave_to_endpoint()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        if self._looking is None:
            super().on_body(body)
            return
        try:
            self.shared.held.check(len(body))
        except OverloadedError:
            self._refuse_inference()
            return
        self._looking += body
        self.shared.held.bytes += len(body)
        if len(self._looking) > LOOKED_THROUGH:
            self._refuse_inference()

    def on_message_complete(self) -> None:
        """End a request."""
        if self._looking is None:
            super().on_message_complete()
            return
        if _IN_BODY in self._looking:
            body = self._looked()
            self._leave_to_endpoint()
            super().on_body(body)
        else:
            self._refuse_inference()
        super().on_message_complete()

    def _told_at_once(self, shedding: Shedding) -> bool:
        """Tell that the prediction is not begun, if nothing stands in the way of doing so here."""
        busy = self.cycle is not None and not self.cycle.response_complete
        if busy or self.expect_100_continue or not self.parser.should_keep_alive():
            return False
        default = self.server_state.default_headers
        if _IN_QUERY in self.url:
            if not self.url.startswith(b"/predict") or self.parser.get_method() != b"POST":
                return False
            told = shedding.prior(self.url, self.headers, default)
            if not isinstance(told, bytes):
                self.scope["state"][KEEP] = told
                return False
        elif self.url.startswith(b"/v2"):
            self._looking = bytearray()
            self.shared.tails.begin(self)
            return True
        else:
            told = shedding.refusal(default)
        self.transport.write(told)
        self.outlive()
        return True

    def _leave_to_endpoint(self) -> None:
        self.scope["state"][ADMITTED] = False
        super().answer_head()

    def _refuse_inference(self) -> None:
        self._looked()
        if self.shared.shedding is not None and not self.transport.is_closing():
            self.transport.write(self.shared.shedding.refusal(self.server_state.default_headers, inference=True))
            self.outlive()

    def _looked(self) -> bytes:
        """Look no more; what has come of the body."""
        body, self._looking = bytes(self._looking or b""), None
        self.shared.held.bytes -= len(body)
        self.shared.tails.end(self)
        return body
