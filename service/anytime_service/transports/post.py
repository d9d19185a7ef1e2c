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
from anytime_service.handler import Handler
from anytime_service.head import Head, body_limit, read_head
from anytime_service.live import Live
from anytime_service.openapi import PREDICT_OPERATION
from anytime_service.shedding import decided
from anytime_service.transports.lines import Lines
from anytime_service.transports.replies import answering, problem_reply
from anytime_service.wire.bodies import arrays, read_request
from anytime_service.wire.forms import Form
from anytime_service.wire.long_values import AT_ONCE

__all__ = ["PostPrediction"]


class PostPrediction:
    """The hot route, a bare ASGI application: neither request objects nor validation models stand in its way."""

    operation: ClassVar[dict[str, Any]] = PREDICT_OPERATION

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        begun = now_ms()
        account = self.handler.accounts.of(scope)
        exchange = Exchange(receive, send, self.handler.settings.max_body_bytes, account)
        admitted, keep = decided(scope)
        live: Live | None = None
        try:
            head = read_head(scope, self.handler.settings)
            exchange.limit_to(*body_limit(head.form, self.handler.settings, lines=head.lines))
            told = answering(exchange, head.reply_form, keep)
            live = self.handler.open(head.ask, begun, *told, admitted=admitted, account=account)
            if head.lines:  # answered or not: lines that come too late are looked at too
                await Lines(exchange, live, self.handler).read()
            elif not live.answered:
                await self._whole(exchange, live, head)
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
        if len(content) > AT_ONCE:
            async with self.handler.converting:
                groups = await self._read(head.form, content, live, head.ask.rows)
        else:
            groups = await self._read(head.form, content, live, head.ask.rows)
        if live.answered:  # its deadline expired while a long body was converted
            return
        # The groups came when the body ended, however long converting them took.
        live.groups(groups, exchange.ended_ms)
        if not live.answered:
            live.end()

    async def _read(self, form: Form, content: bytes, live: Live, rows: int | None) -> dict[str, Any]:
        request = read_request(form, content, self.handler.settings.max_json_bytes)
        most = self.handler.settings.max_rows
        if len(content) > AT_ONCE:
            await asyncio.sleep(0)
        told = request.rows
        if told is not None and rows is not None and told != rows:
            raise FieldError("rows", f"rows is {told} in the body and {rows} in the query; say it once")
        if told is not None and not 1 <= told <= most:
            raise FieldError("rows", f"rows is {told}; expected 1 to {most}, in several predictions if more")
        groups = await arrays(form, live.model, request.groups, most)
        if told is not None and not live.answered:
            live.opened.expect_rows(told)
        return groups
