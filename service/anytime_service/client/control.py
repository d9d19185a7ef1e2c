"""HTTP requests to the service, except predictions with a deadline; descriptions of the server's models.

The client ignores unknown fields of model cards, descriptions and plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from ssl import SSLContext
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec
import numpy as np

from anytime.inference.prediction import Answer
from anytime.model.model import affordable, checked_budget
from anytime.types import Policy
from anytime_service.client.errors import (
    ClientError,
    ClosedError,
    ConnectionLostError,
    NoAnswerError,
    ProblemError,
    ReplyError,
)
from anytime_service.client.messages import answer_of, decode, problem_of, seconds_of, shortened
from anytime_service.client.transport import MAX_REPLY_BYTES, Address

__all__ = [
    "MESSAGEPACK",
    "Control",
    "ModelCard",
    "ModelDescription",
    "ModelGroup",
    "ModelStep",
    "Plan",
    "PlannedStep",
    "described",
]

Described = TypeVar("Described")


@dataclass(frozen=True)
class ModelCard:
    """The short description of a model; `total_cost` is the cost of all its steps, in `cost_unit`."""

    name: str
    version: str
    task: str
    steps: int
    groups: int
    cost_unit: str
    total_cost: float


@dataclass(frozen=True)
class ModelStep:
    """A step of the sequence: the groups that it adds, in order, their total cost, and the quality of the prefix."""

    group: str
    adds: tuple[str, ...]
    cost: float
    cumulative_cost: float
    explained_variance: float
    r2: float | None
    cv_error: float | None = None
    deviance: float | None = None


@dataclass(frozen=True)
class ModelGroup:
    """A feature group: its columns in the order of its values, its cost, and the groups that it requires."""

    name: str
    features: tuple[str, ...]
    cost: float
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelDescription:
    """The sequence and groups of a model; `steps` are in sequence order.

    `cv_error` of steps and `prior_error` are mean squared errors for least squares (family gaussian) and mean deviances
    for other families.
    """

    name: str
    version: str
    task: str
    responses: tuple[str, ...]
    cost_unit: str
    total_cost: float
    steps: tuple[ModelStep, ...]
    groups: tuple[ModelGroup, ...]
    policies: tuple[str, ...] = ("prefix",)
    classes: tuple[Any, ...] | None = None
    target: tuple[str, ...] = ()
    method: str | None = None
    family: str = "gaussian"
    link: str = "identity"
    prior_error: float | None = None
    prior_deviance: float | None = None
    guarantee: Any = None
    calibration: Any = None
    redundant: Any = None

    @cached_property
    def featured(self) -> tuple[str, ...]:
        """Groups with features, which therefore have values, in the order of the groups file."""
        return tuple(group.name for group in self.groups if group.features)

    def order(self, budget: float | None = None) -> tuple[str, ...]:
        """Return the groups to compute within a budget, in the model's cost unit, in sequence order.

        Raises
        ------
        ValuesError
            The budget is not a number >= 0.
        """
        costs = np.array([0.0, *(step.cumulative_cost for step in self.steps)])
        prefix = affordable(costs, checked_budget(budget, self.cost_unit))
        featured = frozenset(self.featured)
        return tuple(name for step in self.steps[:prefix] for name in step.adds if name in featured)


@dataclass(frozen=True)
class PlannedStep:
    """An incomplete step: the groups to compute for it, their cost, and the quality of the prefix after it.

    `spent` is the cost of the available groups and of this plan up to and including this step.
    """

    prefix: int
    group: str
    compute: tuple[str, ...]
    cost: float
    spent: float
    explained_variance: float
    r2: float | None
    cv_error: float | None = None
    deviance: float | None = None


@dataclass(frozen=True)
class Plan:
    """The groups to compute next, in order, within a budget; `prefix` is the number of complete steps."""

    model: str
    version: str
    cost_unit: str
    budget: float | None
    have: tuple[str, ...]
    prefix: int
    steps: tuple[PlannedStep, ...]


def described(content: bytes, kind: type[Described]) -> Described:
    """Decode a description of type `kind` from JSON.

    Raises
    ------
    ReplyError
        The content is not a valid description.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReplyError(f"the server sent {shortened(content)}, which is not a valid reply: {error}") from error


MESSAGEPACK = "application/msgpack"

KEEPALIVE_S = 2.0
"""Lifetime of idle connections. Servers close theirs after 5 s, so reusing an older one could fail."""


class Control:
    """HTTP client for one server; belongs to one event loop.

    Parameters
    ----------
    address, headers : address of the server, and headers of each request.
    timeout_s : timeout of each part of a request.
    ssl : context for `https`; None for the system default.
    """

    def __init__(
        self, address: Address, headers: Mapping[str, str], *, timeout_s: float, ssl: SSLContext | None = None
    ) -> None:
        self._address = address
        self._headers = dict(headers)
        self._timeout_s = timeout_s
        self._ssl = ssl
        self._http: httpx.AsyncClient | None = None
        self._closed = False

    async def models(self) -> list[ModelCard]:
        """Return the models of the server."""
        return described(await self.request("GET", "/models"), list[ModelCard])

    async def model(self, name: str) -> ModelDescription:
        """Return the description of a model."""
        return described(await self.request("GET", f"/models/{quote(name, safe='')}"), ModelDescription)

    async def plan(self, name: str, budget: float | None, have: Iterable[str]) -> Plan:
        """Return the plan of the next groups to compute."""
        params: dict[str, Any] = {"have": list(have)} if budget is None else {"have": list(have), "budget": budget}
        return described(await self.request("GET", f"/models/{quote(name, safe='')}/plan", params=params), Plan)

    async def session_answer(
        self, path: str, budget: float | None, deadline_ms: float | None, policy: Policy, *, ranking: bool
    ) -> Answer:
        """Request an answer of the session at a path; it may arrive a network delay after the deadline."""
        options = {"budget": budget, "deadline_ms": deadline_ms, "policy": policy, "ranking": ranking or None}
        content = await self.request(
            "GET",
            f"{path}/predict",
            params={name: _query_value(value) for name, value in options.items() if value is not None},
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
        """Send a request and return the body of its response.

        A reused connection may turn out to be closed. The client then sends the request again, unless `once` is set for
        a request that is not idempotent.

        Raises
        ------
        ProblemError
            The server refused the request.
        ConnectionLostError
            The server is unreachable, or the connection broke.
        NoAnswerError
            The reply took longer than the timeout plus `waits_s`, the time for which the server may wait.
        """
        headers = {} if content is None else {"Content-Type": media_type}
        timeout = httpx.Timeout(self._timeout_s, read=self._timeout_s + waits_s)
        request = self._client().build_request(
            method, self._address.http + path, params=params, content=content, headers=headers, timeout=timeout
        )
        try:
            try:
                response, body = await self._exchange(request)
            except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
                if once or isinstance(error, httpx.ConnectError):
                    raise
                response, body = await self._exchange(request)
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
        if self._http is not None:
            await self._http.aclose()

    async def _exchange(self, request: httpx.Request) -> tuple[httpx.Response, bytes]:
        response = await self._client().send(request, stream=True)
        try:
            return response, await _read(response)
        finally:
            await response.aclose()

    def _client(self) -> httpx.AsyncClient:
        """Return the HTTP client; create it on first use, since reading the system's certificates takes time."""
        if self._closed:
            raise ClosedError("this client is closed; create a new one")
        if self._http is None:
            self._http = httpx.AsyncClient(
                headers={"Accept": "application/json", **self._headers},
                verify=self._ssl or self._address.http.startswith("https"),
                limits=httpx.Limits(keepalive_expiry=KEEPALIVE_S),
                transport=None if self._address.uds is None else httpx.AsyncHTTPTransport(uds=self._address.uds),
            )
        return self._http


def _query_value(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


async def _read(response: httpx.Response) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.aiter_bytes():
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_REPLY_BYTES:
            raise ReplyError(f"the server sent a reply of more than {MAX_REPLY_BYTES} bytes; expected a smaller one")
    return b"".join(chunks)


def _problem(response: httpx.Response, body: bytes) -> ClientError:
    """Return the error for a response that refuses a request."""
    retry_after_s = seconds_of(response.headers.get("retry-after", ""))
    if "problem+json" in response.headers.get("content-type", ""):
        return problem_of(decode(body), response.status_code, retry_after_s)
    text = body[:200].decode("utf-8", "replace").strip()
    title = response.reason_phrase or "refused"
    return ProblemError(response.status_code, title, text or title, retry_after_s=retry_after_s)
