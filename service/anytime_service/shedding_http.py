"""Requests whose predictions are not begun, answered before there is a task for them.

Those of the Open Inference Protocol may ask for the base rate in their bodies, which are looked through first, for as
long as a body may go on after its answer.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from anytime_service.clock import now_ms
from anytime_service.errors import OverloadedError
from anytime_service.guarded_http import GuardedHttpProtocol
from anytime_service.held import Held
from anytime_service.shedding import ADMITTED, KEEP, Key, Shedding, asks_for_prediction, key_of

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
        self._looking_held: Held = self.shared.held
        self._decided: bool | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._looked()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what has been read; a request that is known, and its prediction not begun, is told so unread."""
        shedding = self.shared.shedding
        if shedding is not None and self.resting and isinstance(data, bytes) and not self.clogged:
            known = shedding.known(data)
            if known is not None:
                self._decided = shedding.admission.admits(now_ms())
                if not self._decided and self._told_unread(shedding, known[0]):
                    return
        super().data_received(data)
        self._decided = None

    def answer_head(self) -> None:
        """Have the request answered, if it asks for a prediction only if that is begun."""
        shedding = self.shared.shedding
        if shedding is None or not asks_for_prediction(self.parser.get_method(), self.url):
            super().answer_head()
            return
        decided, self._decided = self._decided, None
        if decided is None:
            if not shedding.has_key(self.headers):
                super().answer_head()
                return
            decided = shedding.admission.admits(now_ms())
        if decided:
            self.scope["state"][ADMITTED] = True
            super().answer_head()
            shedding.admission.waiting += 1
            self.loop.call_soon(shedding.had_turn)  # right after the request's own task has had it
        elif not self._told_at_once(shedding):
            self._leave_to_endpoint()

    def take_body(self, body: bytes) -> None:
        """Pass a piece of the body on to the request, or look through it."""
        if self._looking is None:
            super().take_body(body)
            return
        try:
            self._looking_held.check(len(body))
        except OverloadedError:
            self._refuse_inference()
            return
        self._looking += body
        self._looking_held.bytes += len(body)
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
            super().take_body(body)
        else:
            self._refuse_inference()
        super().on_message_complete()

    def overdue(self) -> None:
        """Take no more; whoever sends slowly what is looked through is told what it would have been told at its end."""
        if self._looking is None:
            super().overdue()
        else:
            self._refuse_inference()
            self.shared.tails.begin(self)

    def _told_unread(self, shedding: Shedding, key: Key | None) -> bool:
        default = self.server_state.default_headers
        told = shedding.refusal(default) if key is None else shedding.prior(key, default)
        if told is not None:
            self._decided = None
            self.transport.write(told)
            self.rest()
        return told is not None

    def _told_at_once(self, shedding: Shedding) -> bool:
        """Tell that the prediction is not begun, if nothing stands in the way of doing so here."""
        busy = self.cycle is not None and not self.cycle.response_complete
        if busy or self.clogged or self.expect_100_continue or not self.parser.should_keep_alive():
            return False
        default, key = self.server_state.default_headers, None
        if _IN_QUERY in self.url:
            if not self.url.startswith(b"/predict") or self.parser.get_method() != b"POST":
                return False
            key = key_of(self.url, self.headers)
            told = shedding.prior(key, default)
            if told is None:
                self.scope["state"][KEEP] = partial(shedding.keep, key)
                return False
        elif self.url.startswith(b"/v2"):
            self._looking, self._looking_held = bytearray(), shedding.account(self.headers)
            self.shared.looks.begin(self)
            return True
        else:
            told = shedding.refusal(default)
        self.transport.write(told)
        self.outlive()
        if self.alone_here:
            shedding.learn(bytes(self.slice), self.headers, key)
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
        self._looking_held.bytes -= len(body)
        self.shared.looks.end(self)
        return body
