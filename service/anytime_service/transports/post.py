"""`POST /predict`: one prediction from one body, answered at the deadline even if the body has not ended by then.

A body of JSON or MessagePack counts when it is whole; of lines, each counts when it comes.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from starlette.types import Receive, Scope, Send

from anytime_service.clock import now_ms
from anytime_service.errors import FieldError
from anytime_service.exchange import Exchange
from anytime_service.handler import Handler, Live
from anytime_service.head import Head, read_head
from anytime_service.openapi import PREDICT_OPERATION
from anytime_service.shedding import decided
from anytime_service.transports.replies import answering, problem_reply
from anytime_service.wire.bodies import arrays, read_line, read_request
from anytime_service.wire.forms import Form
from anytime_service.wire.values import array_of

__all__ = ["LINES_AT_A_TIME", "PostPrediction"]

LINES_AT_A_TIME = 16
"""Lines read before others have their turn."""


class PostPrediction:
    """The hot route, a bare ASGI application: neither request objects nor validation models stand in its way."""

    operation: ClassVar[dict[str, Any]] = PREDICT_OPERATION

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        begun = now_ms()
        exchange = Exchange(receive, send, self.handler.settings.max_body_bytes, self.handler.held)
        admitted, keep = decided(scope)
        live: Live | None = None
        try:
            head = read_head(scope, self.handler.settings)
            told = answering(exchange, head.reply_form, keep)
            live = self.handler.open(head.ask, begun, *told, admitted=admitted)
            if not live.answered:
                await (self._lines(exchange, live) if head.lines else self._whole(exchange, live, head))
        except Exception as error:
            exchange.reply(problem_reply(error))
        finally:
            try:
                await exchange.finish()
            finally:
                if live is not None:
                    live.drop()

    async def _whole(self, exchange: Exchange, live: Live, head: Head) -> None:
        """Take a body that counts when it is whole."""
        content = await exchange.whole()
        if live.answered or not exchange.ended:
            return
        groups = self._read(head.form, content, live, head.ask.rows)
        # The groups came when the body ended, however long decoding them took.
        live.groups(groups, exchange.ended_ms)
        if not live.answered:
            live.end()

    def _read(self, form: Form, content: bytes, live: Live, rows: int | None) -> dict[str, Any]:
        request = read_request(form, content)
        most = self.handler.settings.max_rows
        told = request.rows
        if told is not None and rows is not None and told != rows:
            raise FieldError("rows", f"rows is {told} in the body and {rows} in the query; say it once")
        if told is not None and not 1 <= told <= most:
            raise FieldError("rows", f"rows is {told}; expected 1 to {most}, in several predictions if more")
        groups = arrays(form, live.model, request.groups, most)
        if told is not None:
            live.opened.expect_rows(told)
        return groups

    async def _lines(self, exchange: Exchange, live: Live) -> None:
        """Take a body of lines, each when it comes."""
        number, rest = 0, bytearray()
        async for chunk in exchange.body():
            rest += chunk
            if b"\n" not in chunk:
                exchange.keeps(len(rest))
                continue
            *lines, tail = bytes(rest).split(b"\n")
            rest = bytearray(tail)
            exchange.keeps(len(rest))
            for line in lines:
                number += 1
                self._line(live, line, number)
                if live.answered:
                    return
                if number % LINES_AT_A_TIME == 0:
                    await asyncio.sleep(0)
        if exchange.ended and not live.answered:
            self._line(live, bytes(rest), number + 1)
            if not live.answered:
                live.end()

    def _line(self, live: Live, content: bytes, number: int) -> None:
        if not content.strip():
            return
        line = read_line(content, number)
        try:
            array = array_of(live.model, line.group, line.values, None, self.handler.settings.max_rows)
            live.group(line.group, array)
        except FieldError as error:
            raise FieldError(error.field, f"line {number}: {error}") from error
