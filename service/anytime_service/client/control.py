"""HTTP requests to the service: what is not a prediction under a deadline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ssl import SSLContext
from typing import Any
from urllib.parse import quote

import httpx

from anytime.inference.answer import Answer
from anytime.types import Policy
from anytime_service.client.address import Address
from anytime_service.client.connection import MOST_REPLY_BYTES
from anytime_service.client.descriptions import ModelCard, ModelDescription, Plan, described
from anytime_service.client.errors import (
    ClientError,
    ClosedError,
    ConnectionLostError,
    NoAnswerError,
    ProblemError,
    ReplyError,
)
from anytime_service.client.replies import answer_of, decode, problem_of, seconds_of

__all__ = ["MESSAGEPACK", "Control"]

MESSAGEPACK = "application/msgpack"

KEEPALIVE_S = 2.0
"""An idle connection is not used after that: servers close theirs after 5 s, and a request may meet the closing."""


class Control:
    """HTTP requests to one server; belongs to one event loop.

    Parameters
    ----------
    address, headers : where to ask, and with what.
    timeout_s : how long each part of a request may take.
    ssl : context for `https`; None for the system's own.
    """

    def __init__(
        self, address: Address, headers: Mapping[str, str], *, timeout_s: float, ssl: SSLContext | None = None
    ) -> None:
        self._address = address
        self._headers = dict(headers)
        self._timeout_s = timeout_s
        self._ssl = ssl
        self._made: httpx.AsyncClient | None = None
        self._closed = False

    async def models(self) -> list[ModelCard]:
        """List the models."""
        return described(await self.request("GET", "/models"), list[ModelCard])

    async def model(self, name: str) -> ModelDescription:
        """Describe a model."""
        return described(await self.request("GET", f"/models/{quote(name, safe='')}"), ModelDescription)

    async def plan(self, name: str, budget: float | None, have: Iterable[str]) -> Plan:
        """Plan what to compute next."""
        asked: dict[str, Any] = {"have": list(have)} if budget is None else {"have": list(have), "budget": budget}
        return described(await self.request("GET", f"/models/{quote(name, safe='')}/plan", params=asked), Plan)

    async def session_answer(
        self, path: str, budget: float | None, deadline_ms: float | None, policy: Policy, *, ranking: bool
    ) -> Answer:
        """Ask the session at a path for an answer; it may take until the deadline, and then the way back."""
        asked = {"budget": budget, "deadline_ms": deadline_ms, "policy": policy, "ranking": ranking or None}
        content = await self.request(
            "GET",
            f"{path}/predict",
            params={name: _written(value) for name, value in asked.items() if value is not None},
            waits_s=(deadline_ms or 0.0) / 1e3,
        )
        return answer_of(decode(content))

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        media_type: str = "application/json",
        waits_s: float = 0.0,
        once: bool = False,
    ) -> bytes:
        """Send a request and read the body of its response.

        A connection that was kept may turn out to be closed: the request is then sent once more, unless `once` says
        that it would not mean the same.

        Raises
        ------
        ProblemError
            The server refused.
        ConnectionLostError
            It cannot be reached, or went away.
        NoAnswerError
            It took too long, the `waits_s` that it may take on purpose aside.
        """
        headers = {} if content is None else {"Content-Type": media_type}
        timeout = httpx.Timeout(self._timeout_s, read=self._timeout_s + waits_s)
        asked = self._client().build_request(
            method, self._address.http + path, params=params, content=content, headers=headers, timeout=timeout
        )
        try:
            try:
                response, body = await self._exchange(asked)
            except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
                if once or isinstance(error, httpx.ConnectError):
                    raise
                response, body = await self._exchange(asked)
        except (httpx.ConnectTimeout, httpx.ConnectError) as error:
            raise ConnectionLostError(f"cannot connect to {self._address.shown}: {error}") from error
        except httpx.TimeoutException as error:
            late = f"{self._address.shown} did not reply within {timeout.read:g} s"
            raise NoAnswerError(f"{late} to {method} {path}") from error
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise ConnectionLostError(f"{method} {path} at {self._address.shown} broke: {reason}") from error
        if response.is_success:
            return body
        raise _problem(response, body)

    async def close(self) -> None:
        """Close the connections."""
        self._closed = True
        if self._made is not None:
            await self._made.aclose()

    async def _exchange(self, asked: httpx.Request) -> tuple[httpx.Response, bytes]:
        response = await self._client().send(asked, stream=True)
        try:
            return response, await _read(response)
        finally:
            await response.aclose()

    def _client(self) -> httpx.AsyncClient:
        """Make it when it is first needed: reading the system's certificates takes time."""
        if self._closed:
            raise ClosedError("this client is closed; make another")
        if self._made is None:
            self._made = httpx.AsyncClient(
                headers={"Accept": "application/json", **self._headers},
                verify=self._ssl or self._address.http.startswith("https"),
                limits=httpx.Limits(keepalive_expiry=KEEPALIVE_S),
                transport=None if self._address.uds is None else httpx.AsyncHTTPTransport(uds=self._address.uds),
            )
        return self._made


def _written(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


async def _read(response: httpx.Response) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.aiter_bytes():
        chunks.append(chunk)
        size += len(chunk)
        if size > MOST_REPLY_BYTES:
            raise ReplyError(f"the server sent more than {MOST_REPLY_BYTES} bytes")
    return b"".join(chunks)


def _problem(response: httpx.Response, body: bytes) -> ClientError:
    """Read why a request was refused."""
    retry_after_s = seconds_of(response.headers.get("retry-after", ""))
    if "problem+json" in response.headers.get("content-type", ""):
        return problem_of(decode(body), response.status_code, retry_after_s)
    text = body[:200].decode("utf-8", "replace").strip()
    title = response.reason_phrase or "refused"
    return ProblemError(response.status_code, title, text or title, retry_after_s=retry_after_s)
