"""What the endpoints share that are plain ASGI applications; for speed they use no request objects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.types import Receive, Scope, Send

from anytime_service.core.active_prediction import ActivePrediction
from anytime_service.core.service import PredictionService
from anytime_service.http.exchange import Exchange, Reply
from anytime_service.http.responses import problem_reply
from anytime_service.limits.queues import TimeoutQueue
from anytime_service.schemas.values import AT_ONCE

T = TypeVar("T")

AT_A_TIME = 16
"""Number of lines or messages that one client may send before the event loop serves other connections."""


class Endpoint:
    """Endpoint that sends errors as problems, reads every request to its end, and then drops its predictions."""

    problem: Callable[[Exception], Reply] = staticmethod(problem_reply)
    """Returns the response to an error."""
    bodies: TimeoutQueue[Exchange] | None = None
    """Timeout of bodies that must be complete before they count; None if only a deadline ends the wait."""

    def __init__(self, handler: PredictionService) -> None:
        self.handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self.handler
        account = handler.accounts.of(scope)
        exchange = Exchange(receive, send, handler.settings.max_body_bytes, account, self.bodies)
        opened: list[ActivePrediction] = []
        try:
            await self.answer(scope, exchange, opened)
        except Exception as error:
            _drop(opened)  # now: the client may go on sending its body for a while
            exchange.reply(self.problem(error))
        finally:
            try:
                await exchange.finish()
            finally:
                exchange.rest = None  # it refers to the exchange
                _drop(opened)

    async def answer(self, scope: Scope, exchange: Exchange, opened: list[ActivePrediction]) -> None:
        """Send the response, or open the prediction that sends it and add it to `opened`."""
        raise NotImplementedError


async def in_turn(handler: PredictionService, convert: Callable[[bytes], Awaitable[T]], content: bytes) -> T:
    """Convert a body: one long body at a time, and any number of short ones."""
    if len(content) <= AT_ONCE:
        return await convert(content)
    async with handler.converting:
        return await convert(content)


def _drop(opened: list[ActivePrediction]) -> None:
    for active in opened:
        active.drop()
