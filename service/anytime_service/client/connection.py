"""The connection to a server: a link when there is one, another when it is lost.

    no link --link()--> connecting --> link, until it is lost
                            |
                            +--> refused: told to everyone who waits; the next attempt is not made before a pause

Who asks while an attempt is under way shares it. Pauses double from 50 ms to 1 s and vary by half, so that a server
that comes back is not met by all of its clients at once. Who has the time waits through a pause, who has not is told.
"""

from __future__ import annotations

import asyncio
import copy
import random
import time
from collections.abc import Mapping
from ssl import SSLContext
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from anytime_service.client.address import SUBPROTOCOL, Address
from anytime_service.client.errors import ClientError, ClosedError, ConnectionLostError, ReplyError
from anytime_service.client.link import Link
from anytime_service.client.margin import NetworkMargin
from anytime_service.client.replies import decode, problem_of, seconds_of
from anytime_service.client.throttle import Throttle

__all__ = ["MOST_REPLY_BYTES", "Connection"]

MOST_REPLY_BYTES = 64 * 1024 * 1024
"""Largest reply that is read: 10,000 rows of 100 classes, and as much again."""

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0

PING_INTERVAL_S = 5.0
PING_TIMEOUT_S = 10.0
"""A network that has gone silent is noticed after 15 s; until then answers are missed one by one."""

CLOSE_TIMEOUT_S = 1.0


class Connection:
    """Keeps a link to one server; belongs to one event loop.

    Parameters
    ----------
    address, headers : where and with what to connect.
    timeout_s : how long an attempt may take.
    ssl : context for `wss`; None for the system's own.
    """

    def __init__(
        self, address: Address, headers: Mapping[str, str], *, timeout_s: float, ssl: SSLContext | None = None
    ) -> None:
        self.margin = NetworkMargin()
        self.throttle = Throttle()
        self._address = address
        self._headers = dict(headers)
        self._timeout_s = timeout_s
        self._ssl = ssl
        self._link: Link | None = None
        self._attempt: asyncio.Task[Link | ClientError] | None = None
        self._refused: ClientError | None = None
        self._refusals = 0
        self._retry_at = 0.0
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def link(self, until: float | None = None) -> Link | None:
        """Find the link, or make one.

        Parameters
        ----------
        until : when to wait no longer, by `time.perf_counter`; None waits for as long as an attempt may take.

        Returns
        -------
        Link or None
            None when the moment came first; the attempt goes on.

        Raises
        ------
        ConnectionLostError
            The server cannot be reached.
        ProblemError
            It refuses the connection: the key is wrong, it is full.
        """
        if self._closed:
            raise ClosedError("this client is closed; make another")
        if self._link is not None and self._link.lost is None:
            return self._link
        if self._refused is not None and until is not None and until < self._retry_at:
            raise copy.copy(self._refused) from self._refused
        if self._attempt is None:
            self._attempt = asyncio.create_task(self._connect())
        attempt = self._attempt
        await asyncio.wait({attempt}, timeout=None if until is None else max(0.0, until - time.perf_counter()))
        if not attempt.done():
            return None
        if attempt.cancelled():
            raise ClosedError("this client was closed meanwhile; make another")
        made = attempt.result()
        if isinstance(made, ClientError):
            raise copy.copy(made) from made
        return made

    async def close(self) -> None:
        """Close the link, and give up an attempt at one."""
        self._closed = True
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.gather(self._attempt, return_exceptions=True)
        if self._link is not None:
            await self._link.close()
        await asyncio.gather(*self._closing)

    async def _connect(self) -> Link | ClientError:
        """Make a link; what goes wrong is returned, since perhaps nobody waits for it any more."""
        try:
            await asyncio.sleep(max(0.0, self._retry_at - time.perf_counter()))
            made = await self._open()
        finally:
            self._attempt = None
        if isinstance(made, Link):
            if self._link is not None:  # it is lost; what is left of it may take a second to close
                closing = asyncio.create_task(self._link.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            self._link, self._refused, self._refusals = made, None, 0
        else:
            self._refused, self._refusals = made, self._refusals + 1
            pause = min(FIRST_PAUSE_S * 2.0 ** min(self._refusals - 1, 16), LONGEST_PAUSE_S)
            self._retry_at = time.perf_counter() + pause * random.uniform(0.5, 1.0)  # noqa: S311  (no secret)
        return made

    async def _open(self) -> Link | ClientError:
        where: dict[str, Any] = {}
        if self._address.uds is not None:
            where = {"unix": True, "path": self._address.uds}
        elif self._ssl is not None:
            where = {"ssl": self._ssl}
        try:
            socket = await connect(
                self._address.stream,
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                compression=None,  # numbers do not shrink, and it takes time that nobody has
                additional_headers=self._headers,
                open_timeout=self._timeout_s,
                close_timeout=CLOSE_TIMEOUT_S,
                ping_interval=PING_INTERVAL_S,
                ping_timeout=PING_TIMEOUT_S,
                max_size=MOST_REPLY_BYTES,
                **where,
            )
        except InvalidStatus as error:
            return self._refusal(error)
        except (OSError, WebSocketException) as error:
            return ConnectionLostError(f"cannot connect to {self._address.shown}: {_reason(error)}")
        if socket.subprotocol != SUBPROTOCOL:
            await socket.close(1002)
            return ConnectionLostError(f"{self._address.shown} does not speak {SUBPROTOCOL}; is it an anytime server?")
        return Link(socket, self.margin)

    def _refusal(self, error: InvalidStatus) -> ClientError:
        """Read why the handshake was refused."""
        response = error.response
        status = response.status_code
        if "problem+json" in response.headers.get("Content-Type", "") and response.body:
            try:
                return problem_of(
                    decode(bytes(response.body)), status, seconds_of(response.headers.get("Retry-After", ""))
                )
            except ReplyError:
                pass
        return ConnectionLostError(f"{self._address.shown} refused the connection with HTTP status {status}")


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text or type(error).__name__
