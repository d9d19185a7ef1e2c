"""A body of lines, each a group that counts when it comes; after the answer they still tell what groups cost.

`POST /predict`: one prediction from one body, answered at the deadline even if the body has not ended by then.

A body of JSON or MessagePack counts when it is whole; of lines, each counts when it comes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, ClassVar

from starlette.types import Receive, Scope, Send

from anytime_service.api.openapi import PREDICT_OPERATION
from anytime_service.clock import now_ms
from anytime_service.core.active_prediction import ActivePrediction
from anytime_service.core.service import PredictionService
from anytime_service.errors import FieldError, OverloadedError
from anytime_service.http.exchange import Exchange, decided
from anytime_service.http.options import Head, body_limit, read_head
from anytime_service.http.responses import answering, problem_reply
from anytime_service.schemas.codecs import Form, too_large
from anytime_service.schemas.predict import (
    GroupLine,
    LongLine,
    arrays,
    read_line,
    read_long_line,
    read_request,
    read_took,
)
from anytime_service.schemas.values import AT_ONCE, array_of

__all__ = [
    "AT_A_TIME",
    "Lines",
    "PostPrediction",
]

AT_A_TIME = 16
"""Lines read before others have their turn."""


class Lines:
    """Reads the lines of one request.

    Parameters
    ----------
    exchange : the request.
    live : its prediction.
    handler : has the limits.
    """

    def __init__(self, exchange: Exchange, live: ActivePrediction, handler: PredictionService) -> None:
        self._exchange = exchange
        self._live = live
        self._handler = handler
        self._number = 0
        self._rest = bytearray()
        self._late_left = len(live.model.places)  # a client that sends on and on teaches nothing more

    async def read(self) -> None:
        """Take lines as they come, until the prediction is answered or the body ends."""
        exchange, live = self._exchange, self._live
        exchange.rest = self._missed
        async for chunk in exchange.body():
            lines = deque(self._split(chunk))
            while lines and not live.answered:
                await self._take(lines.popleft())
                if self._number % AT_A_TIME == 0:
                    await asyncio.sleep(0)
            for line in lines:
                self._miss(line)
            self._check_length(self._rest)
        if exchange.ended and not live.answered:
            await self._take(bytes(self._rest))
            if not live.answered:
                live.end()

    def _split(self, chunk: bytes) -> list[bytes]:
        """Lines that are whole with this chunk."""
        self._rest += chunk
        lines: list[bytes] = []
        if b"\n" in chunk:
            *lines, tail = bytes(self._rest).split(b"\n")
            self._rest = bytearray(tail)
        self._exchange.keeps(len(self._rest))
        return lines

    async def _take(self, content: bytes) -> None:
        self._number += 1
        self._check_length(content)
        if not content.strip():
            return
        live, most = self._live, self._handler.settings.max_rows
        line: GroupLine | LongLine
        try:
            if len(content) <= AT_ONCE:
                line = read_line(content, self._number)
                array = array_of(live.model, line.group, line.values, None, most)
            else:
                async with self._handler.converting:
                    line, array = await read_long_line(content, self._number, live.model, most)
            if live.answered:  # its deadline expired while the line was converted
                live.trail.laps.missed(line.group, now_ms(), line.took_ms)
            else:
                live.group(line.group, array, line.took_ms)
        except FieldError as error:
            raise FieldError(error.field, f"line {self._number}: {error}") from error

    def _check_length(self, line: bytes | bytearray) -> None:
        most = self._handler.settings.max_json_bytes
        if len(line) > most:
            raise too_large(f"a line has more than {most} bytes", most)

    def _missed(self, chunk: bytes) -> None:
        """Look at what comes after the answer."""
        if self._late_left:
            try:
                lines = self._split(chunk)
            except OverloadedError:  # no room for what is not needed for the answer
                self._late_left = 0
                self._rest.clear()
                return
            for line in lines:
                self._miss(line)
            if len(self._rest) > self._handler.settings.max_json_bytes:
                self._late_left = 0
                self._rest.clear()
            if self._exchange.ended:
                self._miss(bytes(self._rest))

    def _miss(self, content: bytes) -> None:
        if self._late_left and content.strip():
            self._late_left -= 1
            line = read_took(content)
            if line is not None:
                self._live.trail.laps.missed(line.group, now_ms(), line.took_ms)


class PostPrediction:
    """The hot route, a bare ASGI application: neither request objects nor validation models stand in its way."""

    operation: ClassVar[dict[str, Any]] = PREDICT_OPERATION

    def __init__(self, handler: PredictionService) -> None:
        self.handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        begun = now_ms()
        account = self.handler.accounts.of(scope)
        exchange = Exchange(receive, send, self.handler.settings.max_body_bytes, account)
        admitted, keep = decided(scope)
        live: ActivePrediction | None = None
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

    async def _whole(self, exchange: Exchange, live: ActivePrediction, head: Head) -> None:
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

    async def _read(self, form: Form, content: bytes, live: ActivePrediction, rows: int | None) -> dict[str, Any]:
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
