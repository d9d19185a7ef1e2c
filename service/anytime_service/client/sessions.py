"""Sessions: predictions that stay open on the server, for groups that arrive over minutes or from several programs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import msgspec

from anytime.inference.prediction import Answer
from anytime.types import Policy
from anytime_service.client.control import MESSAGEPACK, Control, described
from anytime_service.client.errors import ClosedError, ConnectionLostError, NoAnswerError, ProblemError
from anytime_service.client.messages import encode_all, encode_groups
from anytime_service.client.throttle import checked_ms

__all__ = ["AsyncSession", "Progress"]

_ENDED = (404, 410)


@dataclass(frozen=True)
class Progress:
    """The progress of a session: complete steps, all steps, and the groups that were sent more than once."""

    prefix: int
    steps: int
    replaced: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Opened:
    id: str
    model: str
    version: str
    expires_in_s: float | None = None


class AsyncSession:
    """A session on the server, as an asynchronous context manager; created by `AsyncClient.session`.

    It begins on the server when it is entered or first used, and `close` deletes it.
    """

    def __init__(self, control: Control, model: str | None, rows: int | None) -> None:
        self._control = control
        self._model = model
        self._rows = rows
        self._opened: _Opened | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def id(self) -> str | None:
        """Session id on the server, which other programs can also use; None before the session begins."""
        return None if self._opened is None else self._opened.id

    @property
    def model(self) -> str | None:
        """Name of the model."""
        return self._opened.model if self._opened else self._model

    @property
    def version(self) -> str | None:
        """Version of the model, fixed for the session; None before the session begins."""
        return None if self._opened is None else self._opened.version

    @property
    def expires_in_s(self) -> float | None:
        """Seconds without use after which the server deletes the session; None before the session begins."""
        return None if self._opened is None else self._opened.expires_in_s

    async def open(self) -> None:
        """Begin the session on the server, unless it has begun.

        Raises
        ------
        ProblemError
            The server has no such model, or too many sessions.
        ConnectionLostError
            The server is unreachable.
        """
        await self._begun()

    async def add(self, group: str, values: Any) -> Progress:
        """Send the values of one group, see `add_many`."""
        return await self.add_many({group: values})

    async def add_many(self, groups: Mapping[str, Any]) -> Progress:
        """Send the values of several groups; the server accepts all of them or none.

        Parameters
        ----------
        groups : for each group (rows, features) numbers, or (features,) for one row; None or NaN for missing values.

        Raises
        ------
        ValuesError
            Values are not numbers, or their number of rows is not that of the session.
        ProblemError
            The server refuses them, or the session has expired (status 410).
        """
        begun = await self._begun()
        content = encode_groups(encode_all(groups, self._rows))
        path = f"{_path(begun)}/groups"
        return described(await self._control.request("POST", path, content=content, media_type=MESSAGEPACK), Progress)

    async def predict(
        self,
        *,
        budget: float | None = None,
        deadline_ms: float | None = None,
        policy: Policy = "prefix",
        ranking: bool = False,
    ) -> Answer:
        """Answer from the groups sent so far; the session stays open.

        Parameters
        ----------
        budget : limit on the cost of the groups used, in the model's cost unit; None means no limit.
        deadline_ms : how long the server waits for groups of that budget after it reads the request; None means not at
            all. Network delays are extra: use `AsyncClient.run` for deadlines at the caller.
        policy, ranking : as in `AsyncClient.predict`.

        Raises
        ------
        ProblemError
            The server refuses, or the session has expired (status 410).
        """
        begun = await self._begun()
        if deadline_ms is not None:
            checked_ms(deadline_ms)
        return await self._control.session_answer(_path(begun), budget, deadline_ms, policy, ranking=ranking)

    async def close(self) -> None:
        """Delete the session on the server. Idempotent; does nothing if it has expired or the server is unreachable."""
        self._closed = True
        opened, self._opened = self._opened, None
        if opened is None:
            return
        try:
            await self._control.request("DELETE", _path(opened))
        except ProblemError as problem:
            if problem.status not in _ENDED:
                raise
        except (ConnectionLostError, NoAnswerError):
            return  # it expires by itself

    async def _begun(self) -> _Opened:
        if self._opened is None:
            async with self._opening:
                if self._closed:
                    raise ClosedError("this session is closed; begin a new one")
                if self._opened is None:
                    options = {"model": self._model, "rows": self._rows}
                    content = msgspec.json.encode({name: value for name, value in options.items() if value is not None})
                    reply = await self._control.request("POST", "/sessions", content=content, once=True)
                    self._opened = described(reply, _Opened)
        return self._opened


def _path(opened: _Opened) -> str:
    return f"/sessions/{quote(opened.id, safe='')}"
