"""A body of lines, each a group that counts when it comes; after the answer they still tell what groups cost."""

from __future__ import annotations

import asyncio
from collections import deque

from anytime_service.clock import now_ms
from anytime_service.errors import FieldError, OverloadedError
from anytime_service.exchange import Exchange
from anytime_service.handler import Handler
from anytime_service.live import Live
from anytime_service.wire.bodies import GroupLine, LongLine, read_line, read_long_line, read_took
from anytime_service.wire.forms import too_large
from anytime_service.wire.long_values import AT_ONCE
from anytime_service.wire.values import array_of

__all__ = ["AT_A_TIME", "Lines"]

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

    def __init__(self, exchange: Exchange, live: Live, handler: Handler) -> None:
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
