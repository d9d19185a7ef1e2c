"""Synchronous and asynchronous clients of the service.

`AsyncClient` is the client for event loops. `Client` is the client for threads: it runs the same `Core` in a background
event loop, through a `Portal`.

All predictions share one WebSocket: a round trip is faster than over HTTP, the client sends each group as soon as it is
computed, and an answer may arrive before all groups are sent. All other requests use HTTP.
"""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError
from dataclasses import replace
from ssl import SSLContext
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from anytime.inference.prediction import Answer
from anytime.inference.runner import Lateness, LatenessRecord, check_extractors
from anytime.inference.workers import Worker
from anytime.types import Overload, Policy
from anytime_service.client.control import Control, ModelCard, ModelDescription, Plan
from anytime_service.client.engine import Call, PredictionOptions, checked_options
from anytime_service.client.errors import ClientError, ClosedError, NoAnswerError
from anytime_service.client.messages import Encoded, encode_all
from anytime_service.client.running import KnownModel, KnownModels, Pool, WorkerCache, run
from anytime_service.client.sessions import AsyncSession, Progress
from anytime_service.client.throttle import Deadline, checked_ms
from anytime_service.client.transport import Address, Connection, authorization

__all__ = [
    "AsyncClient",
    "Client",
    "Core",
    "Extractors",
    "Portal",
    "Session",
]

P = ParamSpec("P")
Result = TypeVar("Result")


class Portal:
    """A background thread with an event loop, which runs coroutines for other threads until it is closed.

    Parameters
    ----------
    at_end : awaited in the loop on closing.

    Notes
    -----
    The thread is a daemon, so a program can end without closing the portal.
    """

    def __init__(self, at_end: Callable[[], Awaitable[None]]) -> None:
        self._at_end = at_end
        self._process = os.getpid()
        self._lock = Lock()
        self._stopped = False
        self._ready = Event()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._thread = Thread(target=lambda: asyncio.run(self._main()), name="anytime-client", daemon=True)
        self._thread.start()
        self._ready.wait()

    def call(self, function: Callable[P, Coroutine[Any, Any, Result]], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Run a coroutine function in the loop, and return its result or raise its exception.

        Raises
        ------
        ClosedError
            The portal is closed, was closed during the call, or belongs to the parent process of a fork.
        """
        if self._process != os.getpid():
            raise ClosedError("this client was created before a fork; create a new one in this process")
        with self._lock:
            if self._stopped:
                raise ClosedError("this client is closed; create a new one")
            future = asyncio.run_coroutine_threadsafe(function(*args, **kwargs), self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ClosedError("this client was closed during the call; create a new one") from None
        except BaseException:  # Ctrl-C while waiting: the coroutine ends too
            future.cancel()
            raise

    def stop(self) -> None:
        """Signal the loop and its thread to end; do nothing in a forked process. Idempotent."""
        if self._process != os.getpid():
            return
        with self._lock:
            stopped, self._stopped = self._stopped, True
        if not stopped:
            self._loop.call_soon_threadsafe(self._stop.set)

    def close(self) -> None:
        """End the loop and its thread, and wait until they have ended. Idempotent."""
        self.stop()
        if self._process == os.getpid():
            self._thread.join()

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._stop.wait()
        await self._at_end()


Extractors = Mapping[str, Callable[[Any], Any]]


class Core:
    """The connections, cached models and workers of a client; `Client` documents the parameters and methods.

    Any thread may create it. All methods except `note_lateness` run in one event loop.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        max_workers: int = 4,
        ssl: SSLContext | None = None,
    ) -> None:
        address, headers = Address.of(url), authorization(api_key)
        if not timeout_s > 0:
            raise ClientError(f"timeout_s is {timeout_s!r}; expected a number of seconds > 0")
        if ssl is not None and not address.http.startswith("https"):
            raise ClientError(f"the ssl context does not apply to {url}; expected an https:// address")
        self.url = url
        self.late = LatenessRecord()
        self.connection = Connection(address, headers, timeout_s=timeout_s, ssl=ssl)
        self._timeout_s = timeout_s
        self._control = Control(address, headers, timeout_s=timeout_s, ssl=ssl)
        self._known = KnownModels(self.connection, self._control, timeout_s)
        self._workers = WorkerCache(max_workers)
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def run(
        self,
        begun: float,
        extractors: Extractors,
        x: Any,
        deadline_ms: float,
        options: PredictionOptions,
        worker: Worker,
    ) -> tuple[Answer, Deadline]:
        """Run extractors under a deadline that counts from `begun`, in seconds of `time.perf_counter`."""
        self.check()
        length_ms = checked_ms(deadline_ms)
        known, pool = self._known.cached(options.model), self._workers.cached(extractors, worker)
        if known is None or pool is None:
            known, pool = await self._prepared(extractors, options.model, worker)
            begun = time.perf_counter()
        else:
            _check(known, extractors)
        deadline = Deadline(begun, length_ms, self.late)
        base = known.base_rate(options)
        if base.complete or length_ms == 0:
            return deadline.with_elapsed(replace(base, reason="budget" if base.complete else "deadline")), deadline
        call = Call(self.connection, options, deadline.until, self.connection.margin.server_deadline_ms)
        answer = await run(call, pool, known, x)
        self._known.check_version(options.model, answer)
        return deadline.with_elapsed(answer), deadline

    async def predict(
        self, begun: float, groups: Mapping[str, Encoded], deadline_ms: float | None, options: PredictionOptions
    ) -> tuple[Answer, Deadline | None]:
        """Answer from available groups; a deadline counts from `begun`, in seconds of `time.perf_counter`."""
        self.check()
        if deadline_ms is None:
            answer = await self._answered(Call(self.connection, options, time.perf_counter() + self._timeout_s), groups)
            if answer is None:
                raise NoAnswerError(f"{self.url} did not answer within {self._timeout_s:g} s; is it overloaded?")
            return answer, None
        length_ms, known = checked_ms(deadline_ms), self._known.cached(options.model)
        if known is None:
            known, begun = await self._known.learn(options.model), time.perf_counter()
        deadline = Deadline(begun, length_ms, self.late)
        if length_ms == 0:
            return deadline.with_elapsed(replace(known.base_rate(options), reason="deadline")), deadline
        call = Call(self.connection, options, deadline.until, self.connection.margin.server_deadline_ms)
        answer = await self._answered(call, groups) or call.fallback(known.base_rate(options))
        self._known.check_version(options.model, answer)
        return deadline.with_elapsed(answer), deadline

    def note_lateness(self, answer: Answer, deadline: Deadline | None) -> None:
        """Record the lateness of an answer that a deadline interrupted and the caller receives now; thread-safe."""
        if deadline is not None and answer.reason == "deadline" and deadline.at > deadline.begun:
            self.late.add((time.perf_counter() - deadline.at) * 1e3)

    def session(self, model: str | None, rows: int | None) -> AsyncSession:
        """Return a session that has not begun."""
        return AsyncSession(self._control, model, rows)

    async def models(self) -> list[ModelCard]:
        """Return the models of the server."""
        self.check()
        return await self._control.models()

    async def model(self, name: str | None) -> ModelDescription:
        """Return the description of a model, or of the only one."""
        self.check()
        return await self._control.model(name or await self._only())

    async def plan(self, name: str | None, budget: float | None, have: Iterable[str]) -> Plan:
        """Return the plan of the next groups to compute for a model, or the only one."""
        self.check()
        return await self._control.plan(name or await self._only(), budget, have)

    async def warm_up(self, extractors: Extractors | None, model: str | None, worker: Worker) -> None:
        """Prepare in advance what the first call with a deadline prepares before its clock starts."""
        self.check()
        if extractors is None:
            await self._known.learn(model)
        else:
            await self._prepared(extractors, model, worker)

    async def close(self) -> None:
        """Close the connections and end the workers."""
        self._closed = True
        if self._process == os.getpid():
            await self._known.close()
            await self.connection.close()
            await self._control.close()
            await self._workers.close()

    def check(self) -> None:
        """Raise ClosedError unless the client is usable in this event loop."""
        if self._closed:
            raise ClosedError("this client is closed; create a new one")
        if self._process != os.getpid():
            raise ClosedError("this client was created before a fork; create a new one in this process")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise ClosedError("this client belongs to another event loop; create one per event loop, or use Client")

    async def _prepared(self, extractors: Extractors, model: str | None, worker: Worker) -> tuple[KnownModel, Pool]:
        known = await self._known.learn(model)
        _check(known, extractors)
        return known, self._workers.cached(extractors, worker) or await self._workers.make(extractors, worker)

    async def _answered(self, call: Call, groups: Mapping[str, Encoded]) -> Answer | None:
        """Send available groups and wait for the answer; return None if it does not arrive."""
        try:
            for name, values in groups.items():
                call.send(name, values)
            call.end()
            await call.begin()
            return await call.answer()
        finally:
            call.close()

    async def _only(self) -> str:
        """Return the name of the only model; the server refuses the request if it has several."""
        return (await self._known.learn(None)).description.name


def _check(known: KnownModel, extractors: Extractors) -> None:
    """Raise ExtractorError if the extractors do not match the model's groups."""
    described = known.description
    check_extractors([group.name for group in described.groups], described.featured, extractors)


class AsyncClient:
    """A client of the service for one event loop; an asynchronous context manager.

    Parameters, methods and errors are those of `Client`, with `await`. A call from a second event loop raises
    ClosedError. Cancelling a task that waits for an answer releases all resources of the call.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        max_workers: int = 4,
        ssl: SSLContext | None = None,
    ) -> None:
        self._core = Core(url, api_key=api_key, timeout_s=timeout_s, max_workers=max_workers, ssl=ssl)

    def __repr__(self) -> str:
        return f"<AsyncClient {self._core.url}>"

    async def __aenter__(self) -> Self:
        self._core.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def lateness(self) -> Lateness:
        """Lateness of answers, see `Client.lateness`."""
        return self._core.late.summary()

    @property
    def network_ms(self) -> float:
        """Network margin in milliseconds, see `Client.network_ms`."""
        return self._core.connection.margin.ms

    async def run(
        self,
        extractors: Extractors,
        x: Any,
        deadline_ms: float,
        *,
        budget: float | None = None,
        model: str | None = None,
        rows: int = 1,
        ranking: bool = False,
        overload: Overload = "refuse",
        worker: Worker = "thread",
    ) -> Answer:
        """Compute groups of `x` in sequence order, send each when it is available, and answer at the deadline.

        See `Client.run`.
        """
        begun = time.perf_counter()
        options = checked_options(model, rows, budget, "prefix", ranking=ranking, overload=overload)
        answer, deadline = await self._core.run(begun, extractors, x, deadline_ms, options, worker)
        self._core.note_lateness(answer, deadline)
        return answer

    async def predict(
        self,
        groups: Mapping[str, Any],
        *,
        budget: float | None = None,
        deadline_ms: float | None = None,
        policy: Policy = "prefix",
        model: str | None = None,
        rows: int | None = None,
        ranking: bool = False,
        overload: Overload = "refuse",
    ) -> Answer:
        """Answer from available groups, see `Client.predict`."""
        begun = time.perf_counter()
        encoded = encode_all(groups, rows)
        rows = next((each.rows for each in encoded.values()), rows)
        options = checked_options(model, rows, budget, policy, ranking=ranking, overload=overload)
        answer, deadline = await self._core.predict(begun, encoded, deadline_ms, options)
        self._core.note_lateness(answer, deadline)
        return answer

    def session(self, model: str | None = None, rows: int | None = None) -> AsyncSession:
        """Return a session, an asynchronous context manager; see `Client.session`."""
        self._core.check()
        return self._core.session(model, rows)

    async def models(self) -> list[ModelCard]:
        """Return the models of the server."""
        return await self._core.models()

    async def model(self, name: str | None = None) -> ModelDescription:
        """Return the description of a model, see `Client.model`."""
        return await self._core.model(name)

    async def plan(self, model: str | None = None, budget: float | None = None, have: Iterable[str] = ()) -> Plan:
        """Return the plan of the next groups to compute, see `Client.plan`."""
        return await self._core.plan(model, budget, have)

    async def warm_up(
        self, extractors: Extractors | None = None, *, model: str | None = None, worker: Worker = "thread"
    ) -> None:
        """Connect, request the model, and start workers for extractors, before the first call needs them."""
        await self._core.warm_up(extractors, model, worker)

    async def close(self) -> None:
        """Close the connections, and end the workers and running predictions. Idempotent."""
        await self._core.close()


class Client:
    """A thread-safe client of the service; a context manager.

    Parameters
    ----------
    url : address of the server, like `http://127.0.0.1:8000`, `https://...`, or `unix:/path/of/socket`.
    api_key : sent as `Authorization: Bearer`, also with the handshake of the WebSocket; None without a key.
    timeout_s : timeout of connecting, and of a reply without a deadline.
    max_workers : largest number of threads or processes for each set of extractors.
    ssl : context for `https`; None for the system default.

    Raises
    ------
    ClientError
        The address or the key is invalid. The client connects on the first call.

    Notes
    -----
    A deadline counts from the call to the answer, at the caller. The client sends the server a deadline that is shorter
    by the measured network delay. If the answer does not arrive in time, the client returns the last update, or else
    the base rate, and its `note` says so. The first call with a deadline requests the model before its clock starts;
    `warm_up` does that in advance.

    After a connection breaks, the next call reconnects. The client repeats an interrupted prediction if there is time.
    Close a client, or use `with`; a garbage-collected client closes by itself. A forked process must not use the client
    of its parent: every call raises ClosedError there.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        max_workers: int = 4,
        ssl: SSLContext | None = None,
    ) -> None:
        self._core = Core(url, api_key=api_key, timeout_s=timeout_s, max_workers=max_workers, ssl=ssl)
        self._portal = Portal(self._core.close)
        # Dropping a client does not wait for it to close. At interpreter exit it does not close at all: closing needs
        # new threads, which Python no longer starts, and the thread of the portal is a daemon.
        weakref.finalize(self, self._portal.stop).atexit = False

    def __repr__(self) -> str:
        return f"<Client {self._core.url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def lateness(self) -> Lateness:
        """Lateness, at the caller, of answers that a deadline interrupted; it excludes deadlines of 0."""
        return self._core.late.summary()

    @property
    def network_ms(self) -> float:
        """Network margin: how much earlier than the caller's deadline the server must answer, in milliseconds."""
        return self._core.connection.margin.ms

    def run(
        self,
        extractors: Extractors,
        x: Any,
        deadline_ms: float,
        *,
        budget: float | None = None,
        model: str | None = None,
        rows: int = 1,
        ranking: bool = False,
        overload: Overload = "refuse",
        worker: Worker = "thread",
    ) -> Answer:
        """Compute groups of `x` in sequence order, send each when it is available, and answer at the deadline.

        Parameters
        ----------
        extractors : for every group with features, a callable that receives `x` and returns the group's values:
            (rows, features) numbers, or (features,) for one row. It must not change `x`.
        x : input of the extractors.
        deadline_ms : milliseconds from the call to the answer, at the caller; 0 returns the base rate at once.
        budget : limit on the cost of the groups, in the model's cost unit; None means no limit.
        model : name of the model; optional if the server has one model.
        rows : number of rows of `x`.
        ranking : whether the answer ranks the rows by their scores.
        overload : reply of an overloaded server. With "prior" it returns the base rate at once. With "refuse" it
            refuses, and the client returns the base rate itself. In both cases `reason` is "overload" and `note` says
            why. If the server refuses a prediction that had begun before, the answer is the last update.
        worker : "thread", or "process" for extractors that hold the interpreter lock, crash or hang; see
            `anytime.Runner`. The client keeps the workers for further calls with the same extractors.

        Returns
        -------
        Answer
            `reason` is the server's, or "deadline" with a `note` if the network was too slow or the connection broke.
            `note` also reports failed extractors. `unused_groups` names the computed groups that had not reached the
            server when it answered.

        Raises
        ------
        ValuesError
            The deadline, the budget or `rows` is invalid.
        ExtractorError
            Extractors are missing, belong to no group or do not start, or `x` is not picklable for a process.
        ConnectionLostError
            The server is unreachable.
        ProblemError
            The server refuses the prediction.
        """
        begun = time.perf_counter()
        options = checked_options(model, rows, budget, "prefix", ranking=ranking, overload=overload)
        answer, deadline = self._portal.call(self._core.run, begun, extractors, x, deadline_ms, options, worker)
        self._core.note_lateness(answer, deadline)
        return answer

    def predict(
        self,
        groups: Mapping[str, Any],
        *,
        budget: float | None = None,
        deadline_ms: float | None = None,
        policy: Policy = "prefix",
        model: str | None = None,
        rows: int | None = None,
        ranking: bool = False,
        overload: Overload = "refuse",
    ) -> Answer:
        """Answer from available groups.

        Parameters
        ----------
        groups : values of each group, (rows, features) or (features,) for one row; None or NaN for missing values.
            The client sends arrays as their bytes, 4 or 8 per number.
        budget : limit on the cost of the groups used, in the model's cost unit; None means no limit.
        deadline_ms : milliseconds from the call to the answer, at the caller, as for `run`; None waits for the server.
        policy : "prefix" for the longest complete prefix, or "arrived" for the optimum of the given set of groups.
        model : name of the model; optional if the server has one model.
        rows : number of rows; None counts them in the values.
        ranking : whether the answer ranks the rows by their scores.
        overload : reply of an overloaded server: "refuse" for a ProblemError that is `overloaded`, or "prior" for the
            base rate at once, with `reason` "overload".

        Raises
        ------
        ValuesError
            Values are not numbers or have different numbers of rows, or the deadline or the budget is invalid.
        ConnectionLostError
            The server is unreachable.
        ProblemError
            The server refuses the prediction: unknown model or group, or values with a wrong number of features.
        NoAnswerError
            Without a deadline: no answer arrived within `timeout_s`.
        """
        begun = time.perf_counter()
        encoded = encode_all(groups, rows)
        rows = next((each.rows for each in encoded.values()), rows)
        options = checked_options(model, rows, budget, policy, ranking=ranking, overload=overload)
        answer, deadline = self._portal.call(self._core.predict, begun, encoded, deadline_ms, options)
        self._core.note_lateness(answer, deadline)
        return answer

    def session(self, model: str | None = None, rows: int | None = None) -> Session:
        """Return a session, a context manager: it accepts groups over time and answers in between; its end deletes it.

        Parameters
        ----------
        model : name of the model; optional if the server has one model.
        rows : number of rows; None counts them in the first group.
        """
        return Session(self, self._portal, self._core.session(model, rows))

    def models(self) -> list[ModelCard]:
        """Return the models of the server."""
        return self._portal.call(self._core.models)

    def model(self, name: str | None = None) -> ModelDescription:
        """Return a model's sequence, groups and features; `name` is optional if the server has one model."""
        return self._portal.call(self._core.model, name)

    def plan(self, model: str | None = None, budget: float | None = None, have: Iterable[str] = ()) -> Plan:
        """Return the plan of the next groups to compute, with the quality after each step.

        Parameters
        ----------
        model : name of the model; optional if the server has one model.
        budget : limit on the cost of the complete prefix, including available groups, in the model's cost unit; None
            means no limit.
        have : available groups.
        """
        return self._portal.call(self._core.plan, model, budget, have)

    def warm_up(
        self, extractors: Extractors | None = None, *, model: str | None = None, worker: Worker = "thread"
    ) -> None:
        """Connect, request the model, and start workers for extractors, before the first call needs them."""
        self._portal.call(self._core.warm_up, extractors, model, worker)

    def close(self) -> None:
        """Close the connections, and end the workers and running calls. Idempotent."""
        self._portal.close()


class Session:
    """A session on the server, as a thread-safe context manager; created by `Client.session`.

    It begins on the server when it is entered or first used, and `close` deletes it.
    """

    def __init__(self, client: Client, portal: Portal, session: AsyncSession) -> None:
        self._client = client  # keeps the client alive: it closes when it is garbage-collected
        self._portal = portal
        self._session = session

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def id(self) -> str | None:
        """Session id on the server, which other programs can also use; None before the session begins."""
        return self._session.id

    @property
    def model(self) -> str | None:
        """Name of the model."""
        return self._session.model

    @property
    def version(self) -> str | None:
        """Version of the model, fixed for the session; None before the session begins."""
        return self._session.version

    @property
    def expires_in_s(self) -> float | None:
        """Seconds without use after which the server deletes the session; None before the session begins."""
        return self._session.expires_in_s

    def open(self) -> None:
        """Begin the session on the server, unless it has begun; raises like `AsyncSession.open`."""
        self._portal.call(self._session.open)

    def add(self, group: str, values: Any) -> Progress:
        """Send the values of one group; raises like `AsyncSession.add_many`."""
        return self._portal.call(self._session.add, group, values)

    def add_many(self, groups: Mapping[str, Any]) -> Progress:
        """Send the values of several groups; the server accepts all of them or none. See `AsyncSession.add_many`."""
        return self._portal.call(self._session.add_many, groups)

    def predict(
        self,
        *,
        budget: float | None = None,
        deadline_ms: float | None = None,
        policy: Policy = "prefix",
        ranking: bool = False,
    ) -> Answer:
        """Answer from the groups sent so far; the session stays open. See `AsyncSession.predict`."""
        return self._portal.call(
            self._session.predict, budget=budget, deadline_ms=deadline_ms, policy=policy, ranking=ranking
        )

    def close(self) -> None:
        """Delete the session on the server. Idempotent; does nothing if it has expired or the server is unreachable."""
        self._portal.call(self._session.close)
