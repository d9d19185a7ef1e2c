"""Synchronous and asynchronous clients of the service, and their sessions.

`Client` is a facade for threads: a `Portal` runs an `AsyncClient` in a background event loop. All predictions share one
WebSocket: a round trip is faster than over HTTP, the client sends each group as soon as it is computed, and an answer
may arrive before all groups are sent. All other requests use HTTP. A session is a prediction that stays open on the
server, for groups that arrive over minutes or from several programs.
"""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, closing, suppress
from dataclasses import dataclass, replace
from functools import wraps
from ssl import SSLContext
from threading import Lock, Thread
from typing import Any, Concatenate, ParamSpec, Self, TypeAlias, TypeVar, Unpack
from urllib.parse import quote

import msgspec
from pydantic import TypeAdapter

from anytime.errors import ValuesError, summary
from anytime.inference.deadline import Lateness, LatenessRecord, checked_seconds, early_ms
from anytime.inference.prediction import Answer
from anytime.inference.values import LabelledError
from anytime.inference.workers import Worker
from anytime_service.client.engine import Call, Connection, call_options
from anytime_service.client.errors import ClientError, ClosedError, ConnectionLostError, NoAnswerError, ProblemError
from anytime_service.client.messages import Columns, Encoded, answer_of, encode_all, parsed
from anytime_service.client.running import KnownModel, KnownModels, Run, WorkerCache
from anytime_service.client.transport import ASGIApp, InProcess, Lifetime, Network, Transport
from anytime_service.limits.turns import finished
from anytime_service.schemas.catalogue import ModelCard, ModelSummary, Plan
from anytime_service.schemas.codecs import JSON, MSGPACK
from anytime_service.schemas.messages import SessionCreated, SessionRequest, SessionTook
from anytime_service.schemas.options import PredictionOptions, PredictOptions, RunOptions, SessionOptions

P = ParamSpec("P")
Result = TypeVar("Result")
Extractors: TypeAlias = Mapping[str, Callable[[Any], Any]]


class AsyncClient(AbstractAsyncContextManager["AsyncClient"]):
    """A client of the service for one event loop; an asynchronous context manager.

    Parameters, methods and errors are those of `Client`, with `await`. A call from a second event loop raises
    ClosedError. Cancelling a task that waits for an answer releases all resources of the call.
    """

    def __init__(
        self,
        url: str = "http://localhost",
        *,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        max_workers: int | None = None,
        ssl: SSLContext | None = None,
        transport: ASGIApp | None = None,
    ) -> None:
        if transport is not None and ssl is not None:
            raise ClientError("an application in this process needs no ssl; omit ssl, or transport")
        self._transport: Transport = (
            Network(url, api_key, timeout_s, ssl)
            if transport is None
            else InProcess(url, api_key, timeout_s, transport)
        )
        self._late = LatenessRecord()
        self._connection = Connection(self._transport)
        self._known = KnownModels(self._connection)
        self._workers = WorkerCache(self._transport.lifetime, max_workers)
        self._portal: Portal | None = None

    def __repr__(self) -> str:
        return f"<AsyncClient {self._transport.url}>"

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def lateness(self) -> Lateness:
        """Lateness of answers, see `Client.lateness`."""
        return self._late.summary()

    @property
    def network_ms(self) -> float:
        """Network margin in milliseconds, see `Client.network_ms`."""
        return self._connection.margin.ms

    async def run(
        self,
        extractors: Extractors,
        x: Any,
        deadline_ms: float,
        *,
        worker: Worker = "thread",
        **options: Unpack[RunOptions],
    ) -> Answer:
        """Compute groups of `x` in sequence order, send each when it is available, and answer at the deadline.

        Parameters
        ----------
        extractors : Extractors
            For every group with features, a callable that receives `x` and returns the group's values: (rows, features)
            numbers, or (features,) for one row. It must not change `x`.
        x
            Input of the extractors.
        deadline_ms : float
            Milliseconds from the call to the answer, at the caller; 0 returns the base rate at once.
        budget
            Limit on the cost of the groups, in the model's cost unit; None means no limit.
        policy
            "prefix" or "best", which computes no group after the prefix of least cross-validated error, where that is
            better by one standard error.
        model
            Name of the model; optional if the server has one model.
        rows
            Number of rows of `x`.
        ranking
            Whether the answer ranks the rows by their scores.
        overload
            Reply of an overloaded server. With "prior" it returns the base rate at once. With "refuse" it refuses, and
            the client returns the base rate itself. In both cases `reason` is "overload" and `note` says why. If the
            server refuses a prediction that had begun before, the answer is the last update.
        explain
            Whether the answer has contributions.
        worker : Worker
            "thread", or "process" for extractors that hold the interpreter lock, crash or hang; see `anytime.Runner`.
            The client keeps the workers for further calls with the same extractors.

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
        length_s = checked_seconds(deadline_ms)
        checked = call_options({"rows": 1, **options, "deadline_ms": deadline_ms})
        if checked.policy == "arrived":
            raise ValuesError(
                "policy is 'arrived'; expected 'prefix' or 'best': groups after one that fails count anyway"
            )
        answer, begun = await self._in_loop(self._run, begun, extractors, x, checked, worker)
        return self._received(answer, begun, length_s)

    async def predict(self, groups: Mapping[str, Any], **options: Unpack[PredictOptions]) -> Answer:
        """Answer from available groups.

        Parameters
        ----------
        groups : Mapping[str, Any]
            Values of each group, (rows, features) or (features,) for one row; None or NaN for missing values. Masked
            elements and `pandas.NA` are missing, too. The columns of a frame or of a structured array go by their
            names. The client sends arrays as their bytes, 4 or 8 per number. A category is its level in lists, in
            frames and in arrays of text or objects; in an array of numbers it is the index of its level in
            `model().columns`.
        budget
            Limit on the cost of the groups used, in the model's cost unit; None means no limit.
        deadline_ms
            Milliseconds from the call to the answer, at the caller, as for `run`; None waits for the server.
        policy
            "prefix" for the longest complete prefix; "best" for that or a shorter one whose cross-validated error is
            less by one standard error; or "arrived" for the optimum of the given set of groups.
        model
            Name of the model; optional if the server has one model.
        rows
            Number of rows; None counts them in the values.
        ranking
            Whether the answer ranks the rows by their scores.
        overload
            Reply of an overloaded server: "refuse" for a ProblemError that is `overloaded`, or "prior" for the base
            rate at once, with `reason` "overload".
        explain
            Whether the answer has contributions: what each group used and each of its columns adds to the score.

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
        begun, checked = time.perf_counter(), call_options(options)
        try:
            encoded = encode_all(groups, checked.rows)
        except LabelledError:
            model = await self._in_loop(self._described, checked.model)
            encoded = encode_all(groups, checked.rows, model.columns_by_group)
            begun = time.perf_counter()
        answer, begun = await self._in_loop(self._predict, begun, encoded, checked)
        return answer if checked.deadline_ms is None else self._received(answer, begun, checked.deadline_ms / 1e3)

    def session(self, model: str | None = None, rows: int | None = None) -> AsyncSession:
        """Return a session, an asynchronous context manager; see `Client.session`."""
        self._transport.lifetime.check()
        return AsyncSession(self._transport, model, rows)

    async def models(self) -> list[ModelCard]:
        """Return the models of the server."""
        return parsed(await self._transport.request("GET", "/models"), TypeAdapter(list[ModelCard]).validate_json)

    async def model(self, name: str | None = None) -> ModelSummary:
        """Return a model's sequence, groups and features; `name` is optional if the server has one model."""
        return await self._transport.model(name or (await self._described(None)).name)

    async def plan(
        self,
        model: str | None = None,
        budget: float | None = None,
        have: Iterable[str] = (),
        *,
        rows: int | None = None,
    ) -> Plan:
        """Return the plan of the next groups to compute, with the quality after each step.

        Parameters
        ----------
        model : str | None
            Name of the model; optional if the server has one model.
        budget : float | None
            Limit on the cost of the complete prefix, including available groups, in the model's cost unit; None means
            no limit.
        have : Iterable[str]
            Available groups.
        rows : int | None
            Rows of the prediction, for `cost_total` and `spent_total`; None means the number that the model's costs are
            stated for.
        """
        limits = {"budget": budget, "rows": rows}
        params: dict[str, Any] = {"have": list(have)} | {k: v for k, v in limits.items() if v is not None}
        path = f"/models/{quote(model or (await self._described(None)).name, safe='')}/plan"
        return parsed(await self._transport.request("GET", path, params=params), Plan.model_validate_json)

    async def warm_up(
        self,
        extractors: Extractors | None = None,
        *,
        model: str | None = None,
        worker: Worker = "thread",
        example: Any = None,
    ) -> None:
        """Connect, request the model, and start workers for extractors, before the first call needs them.

        Parameters
        ----------
        extractors : Extractors | None
            Extractors of later calls of `run`; None starts no workers.
        model : str | None
            Name of the model; optional if the server has one model.
        worker : Worker
            "thread" or "process", as for `run`.
        example
            An input of one row whose groups are computed once by every worker, as for `anytime.Runner`; None computes
            nothing.

        Raises
        ------
        ExtractorError
            Extractors are missing, belong to no group or do not start, or `example` is not picklable for a process.
        ClientError
            The server is unreachable, or refuses.
        """
        known = await self._known.learn(model)
        if extractors is not None:
            known.check(extractors)
            pool = await self._workers.pool(extractors, worker)
            if example is not None and pool is not None:
                await pool.warm_up(known.description, example)

    async def close(self) -> None:
        """Close the connections, and end the workers and running predictions. Idempotent."""
        if self._transport.lifetime.process == os.getpid():
            self._connection.close()
            self._workers.close()
            await self._transport.close()

    async def _in_loop(
        self, function: Callable[P, Coroutine[Any, Any, Result]], *args: P.args, **kwargs: P.kwargs
    ) -> Result:
        """Run a coroutine function in the event loop: this one, or that of a portal, for which this thread waits."""
        if self._portal is not None:
            return self._portal.call(function, *args, **kwargs)
        return await function(*args, **kwargs)

    async def _run(
        self, begun: float, extractors: Extractors, x: Any, options: PredictionOptions, worker: Worker
    ) -> tuple[Answer, float]:
        """Run extractors; return the answer, and when the deadline began to count, in s of `time.perf_counter`."""
        known, begun, until = await self._timed(begun, options)
        known.check(extractors)
        base = known.base_rate(options)
        if base.complete or not options.deadline_ms:
            return replace(base, reason="budget" if base.complete else "deadline"), begun
        pool = await self._workers.pool(extractors, worker, until)
        if pool is None:
            return replace(base, reason="deadline").with_note("the workers of these extractors are starting"), begun
        answer = await Run(self._connection, options, until, known, pool).compute(x)
        self._known.check_version(options.model, answer)
        return answer, begun

    async def _predict(
        self, begun: float, groups: Mapping[str, Encoded], options: PredictionOptions
    ) -> tuple[Answer, float]:
        options = msgspec.structs.replace(options, rows=next((each.rows for each in groups.values()), options.rows))
        if options.deadline_ms is None:
            until = time.perf_counter() + self._transport.timeout_s
            return await Call(self._connection, options, until).predict(groups), begun
        known, begun, until = await self._timed(begun, options)
        if options.deadline_ms == 0:
            return replace(known.base_rate(options), reason="deadline"), begun
        answer = await Call(self._connection, options, until, known.base_rate).predict(groups)
        self._known.check_version(options.model, answer)
        return answer, begun

    async def _timed(self, begun: float, options: PredictionOptions) -> tuple[KnownModel, float, float]:
        """Return the model, when the deadline begins to count, which is once the model is known, and when to answer."""
        was_known = options.model in self._known.models
        known = await self._known.learn(options.model)
        begun, length_ms = begun if was_known else time.perf_counter(), options.deadline_ms or 0.0
        return known, begun, begun + (length_ms - early_ms(self._late.margin_ms, length_ms)) / 1e3

    def _received(self, answer: Answer, begun: float, length_s: float) -> Answer:
        """Return an answer that is received now; record its lateness if the deadline interrupted it or it is late."""
        now, waited = time.perf_counter(), answer.reason == "deadline"
        if length_s > 0 and (waited or now > begun + length_s):
            self._late.add((now - begun - length_s) * 1e3, waited=waited)
        return replace(answer, elapsed_ms=(now - begun) * 1e3)

    async def _described(self, model: str | None) -> ModelSummary:
        """Return the cached description of a model; the server refuses None if it has several models."""
        return (await self._known.learn(model)).description


@dataclass
class _SessionState:
    model: str | None
    created: SessionCreated | None = None
    path: str = ""


class _SessionProperties:
    def __init__(self, state: _SessionState) -> None:
        self._state = state

    @property
    def id(self) -> str | None:
        """Session id on the server, which other programs can also use; None before the session begins."""
        return None if self._state.created is None else self._state.created.id

    @property
    def model(self) -> str | None:
        """Name of the model."""
        return self._state.model

    @property
    def version(self) -> str | None:
        """Version of the model, fixed for the session; None before the session begins."""
        return None if self._state.created is None else self._state.created.version

    @property
    def expires_in_s(self) -> float | None:
        """Seconds without use after which the server deletes the session; None before the session begins."""
        return None if self._state.created is None else self._state.created.expires_in_s


class AsyncSession(_SessionProperties):
    """A session on the server, as an asynchronous context manager; created by `AsyncClient.session`.

    It begins on the server when it is entered or first used, and `close` deletes it.
    """

    def __init__(self, transport: Transport, model: str | None, rows: int | None) -> None:
        super().__init__(_SessionState(model))
        self._transport = transport
        self._rows = rows
        self._columns: Columns | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Begin the session on the server, unless it has begun.

        Raises
        ------
        ProblemError
            The server has no such model, or too many sessions.
        ConnectionLostError
            The server is unreachable.
        """
        state = self._state
        async with self._opening:
            if self._closed:
                raise ClosedError("this session is closed; begin a new one")
            if state.created is None:
                reply = await self._transport.request(
                    "POST", "/sessions", content=JSON.encode(SessionRequest(state.model, self._rows)), once=True
                )
                state.created = parsed(reply, msgspec.json.Decoder(SessionCreated).decode)
                state.model = state.created.model
                state.path = f"/sessions/{quote(state.created.id, safe='')}"

    async def add(self, group: str, values: Any) -> SessionTook:
        """Send the values of one group, see `add_many`."""
        return await self.add_many({group: values})

    async def add_many(self, groups: Mapping[str, Any]) -> SessionTook:
        """Send the values of several groups; the server accepts all of them or none.

        Parameters
        ----------
        groups : Mapping[str, Any]
            Values of each group, as for `predict`.

        Raises
        ------
        ValuesError
            Values are not numbers, or their number of rows is not that of the session.
        ProblemError
            The server refuses them, or the session has expired (status 410).
        """
        await self.open()
        try:
            encoded = encode_all(groups, self._rows)
        except LabelledError:
            if self._columns is None:
                model = await self._transport.model(self._state.model or "")
                if self._state.created is None or model.version != self._state.created.version:
                    raise ClientError(
                        f"model {model.name!r} was reloaded after this session began; send arrays without names in the "
                        "order of its version's columns, or begin a new session"
                    ) from None
                self._columns = model.columns_by_group
            encoded = encode_all(groups, self._rows, self._columns)
        content = {
            name: each.values if each.dtype is None else {"dtype": each.dtype, "values": each.values}
            for name, each in encoded.items()
        }
        reply = await self._transport.request(
            "POST", f"{self._state.path}/groups", content=MSGPACK.encode(content), form=MSGPACK
        )
        return parsed(reply, msgspec.json.Decoder(SessionTook).decode)

    async def predict(self, **options: Unpack[SessionOptions]) -> Answer:
        """Answer from the groups sent so far; the session stays open.

        Parameters
        ----------
        budget
            Limit on the cost of the groups used, in the model's cost unit; None means no limit.
        deadline_ms
            How long the server waits for groups of that budget after it reads the request; None means not at all.
            Network delays are extra: use `Client.run` for deadlines at the caller.
        policy, ranking, overload, explain
            As in `Client.predict`.

        Raises
        ------
        ProblemError
            The server refuses, or the session has expired (status 410).
        """
        checked = call_options(options, "model", "rows")
        await self.open()
        reply = await self._transport.request(
            "GET",
            f"{self._state.path}/predict",
            params=msgspec.to_builtins(checked),  # without defaults
            waits_s=(checked.deadline_ms or 0.0) / 1e3,
        )
        return answer_of(parsed(reply, msgspec.json.decode))

    async def close(self) -> None:
        """Delete the session on the server. Idempotent; does nothing if it has expired or the server is unreachable."""
        self._closed = True
        if self._state.created is None:
            return
        self._state.created = None
        with suppress(ConnectionLostError, NoAnswerError):  # it expires by itself
            try:
                await self._transport.request("DELETE", self._state.path)
            except ProblemError as problem:
                if problem.status not in (404, 410):  # it has ended already
                    raise


class Portal:
    """A background thread with an event loop, which runs coroutines for other threads until it is closed.

    It awaits `at_end` in the loop on closing. The thread is a daemon, so a program can end without closing the portal.
    Raise ClientError if the thread or its loop does not start. If the thread ends by itself, the portal is closed.
    """

    def __init__(self, lifetime: Lifetime, at_end: Callable[[], Awaitable[None]]) -> None:
        self._lifetime = lifetime
        self._at_end = at_end
        self._lock = Lock()
        self._stop = asyncio.Event()
        self._calls: set[Future[Any]] = set()
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = Thread(target=self._run, args=(started,), name="anytime-client", daemon=True)
        try:
            self._thread.start()
            self._loop = started.result()
        except (OSError, RuntimeError) as error:  # no free descriptor or thread, or gevent's loop runs in its place
            raise ClientError(f"the client's event loop does not start in its thread: {summary(error)}") from error

    def call(self, function: Callable[P, Coroutine[Any, Any, Result]], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Return the result of a coroutine function that the loop runs; raise its exception.

        Raise ClosedError if the portal is or becomes closed, or belongs to the parent process of a fork.
        """
        self._lifetime.check_open()  # before the lock, which stays locked in the child of a fork during a call
        with self._lock:
            self._lifetime.check_open()
            future = asyncio.run_coroutine_threadsafe(function(*args, **kwargs), self._loop)
            self._calls.add(future)
        try:
            return future.result()
        except CancelledError:
            raise ClosedError("this client was closed during the call; create a new one") from None
        finally:
            future.cancel()  # after Ctrl-C while waiting the coroutine ends too
            self._calls.discard(future)

    def stop(self) -> None:
        """Signal the loop and its thread to end; do nothing in a forked process. Idempotent."""
        if self._lifetime.process == os.getpid():
            with self._lock:
                self._lifetime.closed = True
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._stop.set)

    def close(self) -> None:
        self.stop()
        self._thread.join()  # in a forked process it counts as ended

    def _run(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        try:
            with closing(self._main(started)) as main:
                asyncio.run(main)
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)
        finally:
            for future in tuple(self._calls):
                future.cancel()

    async def _main(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        started.set_result(asyncio.get_running_loop())
        try:
            await self._stop.wait()
        finally:  # also where SystemExit in a task ends the loop
            with self._lock:
                self._lifetime.closed = True
            await self._at_end()


def _in_thread(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Any, P], Result]:
    """Return a method that runs one of the twin `self._async` in this thread, up to its calls of the portal."""

    @wraps(method)
    def called(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        return finished(method(self._async, *args, **kwargs))

    return called


def _in_portal(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Any, P], Result]:
    """Return a method that runs one of the twin `self._async` in `self._portal`."""

    @wraps(method)
    def called(self: Client | Session, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        return self._portal.call(method, self._async, *args, **kwargs)

    return called


class Client(AbstractContextManager["Client"]):
    """A thread-safe client of the service; a context manager.

    Parameters
    ----------
    url : str
        Address of the server, like `http://127.0.0.1:8000`, `https://...`, or `unix:/path/of/socket`.
    api_key : str | None
        Sent as `Authorization: Bearer`, also with the handshake of the WebSocket; None without a key.
    timeout_s : float
        Timeout of connecting, and of a reply without a deadline.
    max_workers : int | None
        Largest number of threads or processes for each set of extractors; by default 64 threads, or as many processes
        as cores, at least four.
    ssl : SSLContext | None
        Context for `https`; None for the system default.
    transport : ASGIApp | None
        An ASGI application, like that of `anytime_service.create_app`, which answers in this process; the client then
        opens no socket, and `url` gives only the host and the path. None for a server at `url`.

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

    After a connection breaks or is closed as idle, the client reconnects in the background; until that succeeds, the
    next call does. The client repeats an interrupted prediction if there is time.
    Close a client, or use `with`; a garbage-collected client closes by itself. A forked process must not use the client
    of its parent: every call raises ClosedError there.
    """

    def __init__(
        self,
        url: str = "http://localhost",
        *,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        max_workers: int | None = None,
        ssl: SSLContext | None = None,
        transport: ASGIApp | None = None,
    ) -> None:
        self._async = AsyncClient(
            url, api_key=api_key, timeout_s=timeout_s, max_workers=max_workers, ssl=ssl, transport=transport
        )
        self._portal = self._async._portal = Portal(self._async._transport.lifetime, self._async.close)
        # Dropping a client does not wait for it to close. At interpreter exit it does not close at all: closing needs
        # new threads, which Python no longer starts, and the thread of the portal is a daemon.
        weakref.finalize(self, self._portal.stop).atexit = False

    def __repr__(self) -> str:
        return repr(self._async).replace("Async", "")

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def lateness(self) -> Lateness:
        """Lateness, at the caller, of answers that a deadline interrupted; it excludes deadlines of 0."""
        return self._async.lateness

    @property
    def network_ms(self) -> float:
        """Network margin: how much earlier than the caller's deadline the server must answer, in milliseconds."""
        return self._async.network_ms

    # The time of these two counts in the thread of the caller.
    run = _in_thread(AsyncClient.run)
    predict = _in_thread(AsyncClient.predict)

    models = _in_portal(AsyncClient.models)
    model = _in_portal(AsyncClient.model)
    plan = _in_portal(AsyncClient.plan)
    warm_up = _in_portal(AsyncClient.warm_up)

    def session(self, model: str | None = None, rows: int | None = None) -> Session:
        """Return a session, a context manager: it accepts groups over time and answers in between; its end deletes it.

        Parameters
        ----------
        model : str | None
            Name of the model; optional if the server has one model.
        rows : int | None
            Number of rows; None counts them in the first group.
        """
        return Session(self, AsyncSession(self._async._transport, model, rows))

    def close(self) -> None:
        """Close the connections, and end the workers and running calls. Idempotent."""
        self._portal.close()


class Session(_SessionProperties):
    """A session on the server, as a thread-safe context manager; created by `Client.session`.

    It begins on the server when it is entered or first used, and `close` deletes it.
    """

    def __init__(self, client: Client, session: AsyncSession) -> None:
        super().__init__(session._state)
        self._client = client  # keeps the client alive: it closes when it is garbage-collected
        self._portal = client._portal
        self._async = session

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    open = _in_portal(AsyncSession.open)
    add = _in_portal(AsyncSession.add)
    add_many = _in_portal(AsyncSession.add_many)
    predict = _in_portal(AsyncSession.predict)
    close = _in_portal(AsyncSession.close)
