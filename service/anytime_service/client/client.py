"""An event loop in a thread of its own, to which calls from other threads are sent.

What both clients are made of: the parts of one client, put together, in one event loop.

Predictions go over one WebSocket that all of them share: a round trip takes less than one by HTTP, each group leaves
when it is computed, and an answer may come before everything is sent. Everything else goes by HTTP.

The client for event loops.

The client for threads: it runs the same core as the other one, in an event loop of its own in the background.
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

from anytime.inference.answer import Answer
from anytime.inference.deadline import Lateness, LatenessRecord
from anytime.inference.extractors import check_extractors
from anytime.inference.workers import Worker
from anytime.types import Overload, Policy
from anytime_service.client.control import Control, ModelCard, ModelDescription, Plan
from anytime_service.client.engine import Ask, Call, asked
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
    """Runs coroutines for other threads until it is closed.

    Parameters
    ----------
    at_end : awaited in the loop when it is closed.

    Notes
    -----
    The thread is a daemon: a program that ends without closing it is not held up by it.
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
        """Run a coroutine function in the loop, and wait for what it returns or raises.

        Raises
        ------
        ClosedError
            The portal is closed, was closed meanwhile, or belongs to the process that this one was forked from.
        """
        if self._process != os.getpid():
            raise ClosedError("this client was made before a fork; make another in this process")
        with self._lock:
            if self._stopped:
                raise ClosedError("this client is closed; make another")
            future = asyncio.run_coroutine_threadsafe(function(*args, **kwargs), self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ClosedError("this client was closed meanwhile; make another") from None
        except BaseException:  # Ctrl-C while waiting: what was begun for this caller ends too
            future.cancel()
            raise

    def stop(self) -> None:
        """End the loop and its thread soon; after a fork there is nothing to end. Safe to call twice."""
        if self._process != os.getpid():
            return
        with self._lock:
            stopped, self._stopped = self._stopped, True
        if not stopped:
            self._loop.call_soon_threadsafe(self._stop.set)

    def close(self) -> None:
        """End the loop and its thread, and wait until they have ended. Safe to call twice."""
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
    """A client's connections, knowledge and workers; see `Client` for the parameters and for what the methods do.

    Made in any thread; everything else happens in one event loop, but for `note_lateness`.
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
            raise ClientError(f"timeout_s is {timeout_s!r}; expected a number of seconds, above 0")
        if ssl is not None and not address.http.startswith("https"):
            raise ClientError(f"{url} is not encrypted, so it has no use for ssl; expected https://")
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
        self, begun: float, extractors: Extractors, x: Any, deadline_ms: float, ask: Ask, worker: Worker
    ) -> tuple[Answer, Deadline]:
        """Run extractors under a deadline that counts from `begun`, by `time.perf_counter`."""
        self.check()
        length_ms = checked_ms(deadline_ms)
        known, pool = self._known.at_hand(ask.model), self._workers.at_hand(extractors, worker)
        if known is None or pool is None:
            known, pool = await self._prepared(extractors, ask.model, worker)
            begun = time.perf_counter()
        else:
            _check(known, extractors)
        deadline = Deadline(begun, length_ms, self.late)
        base = known.base_rate(ask)
        if base.complete or length_ms == 0:
            return deadline.told(replace(base, reason="budget" if base.complete else "deadline")), deadline
        call = Call(self.connection, ask, deadline.until, self.connection.margin.told_ms)
        answer = await run(call, pool, known, x)
        self._known.saw(ask.model, answer)
        return deadline.told(answer), deadline

    async def predict(
        self, begun: float, groups: Mapping[str, Encoded], deadline_ms: float | None, ask: Ask
    ) -> tuple[Answer, Deadline | None]:
        """Answer from groups at hand; a deadline counts from `begun`, by `time.perf_counter`."""
        self.check()
        if deadline_ms is None:
            answer = await self._answered(Call(self.connection, ask, time.perf_counter() + self._timeout_s), groups)
            if answer is None:
                raise NoAnswerError(f"{self.url} did not answer within {self._timeout_s:g} s; is it overloaded?")
            return answer, None
        length_ms, known = checked_ms(deadline_ms), self._known.at_hand(ask.model)
        if known is None:
            known, begun = await self._known.learn(ask.model), time.perf_counter()
        deadline = Deadline(begun, length_ms, self.late)
        if length_ms == 0:
            return deadline.told(replace(known.base_rate(ask), reason="deadline")), deadline
        call = Call(self.connection, ask, deadline.until, self.connection.margin.told_ms)
        answer = await self._answered(call, groups) or call.fallback(known.base_rate(ask))
        self._known.saw(ask.model, answer)
        return deadline.told(answer), deadline

    def note_lateness(self, answer: Answer, deadline: Deadline | None) -> None:
        """Learn from when an answer that a deadline interrupted was in its caller's hands: now; from any thread."""
        if deadline is not None and answer.reason == "deadline" and deadline.at > deadline.begun:
            self.late.add((time.perf_counter() - deadline.at) * 1e3)

    def session(self, model: str | None, rows: int | None) -> AsyncSession:
        """Make a session, not begun."""
        return AsyncSession(self._control, model, rows)

    async def models(self) -> list[ModelCard]:
        """List the models."""
        self.check()
        return await self._control.models()

    async def model(self, name: str | None) -> ModelDescription:
        """Describe a model, or the only one."""
        self.check()
        return await self._control.model(name or await self._only())

    async def plan(self, name: str | None, budget: float | None, have: Iterable[str]) -> Plan:
        """Plan what to compute next of a model, or the only one."""
        self.check()
        return await self._control.plan(name or await self._only(), budget, have)

    async def warm_up(self, extractors: Extractors | None, model: str | None, worker: Worker) -> None:
        """Do ahead what a first call with a deadline does before its clock starts."""
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
        """Check that the client can be used, in this event loop."""
        if self._closed:
            raise ClosedError("this client is closed; make another")
        if self._process != os.getpid():
            raise ClosedError("this client was made before a fork; make another in this process")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise ClosedError("this client belongs to another event loop; make one in each loop, or use Client")

    async def _prepared(self, extractors: Extractors, model: str | None, worker: Worker) -> tuple[KnownModel, Pool]:
        known = await self._known.learn(model)
        _check(known, extractors)
        return known, self._workers.at_hand(extractors, worker) or await self._workers.make(extractors, worker)

    async def _answered(self, call: Call, groups: Mapping[str, Encoded]) -> Answer | None:
        """Send groups that are at hand and wait for the answer; None when it does not come."""
        try:
            for name, values in groups.items():
                call.send(name, values)
            call.end()
            await call.begin()
            return await call.answer()
        finally:
            call.close()

    async def _only(self) -> str:
        """Name of the only model; the server says what to do where there are several."""
        return (await self._known.learn(None)).description.name


def _check(known: KnownModel, extractors: Extractors) -> None:
    """Refuse extractors that are not those of a model's groups."""
    described = known.description
    check_extractors([group.name for group in described.groups], described.featured, extractors)


class AsyncClient:
    """A client of the service for one event loop; an asynchronous context manager.

    Parameters, methods and errors are those of `Client`, with `await`. Used from a second event loop it raises
    ClosedError. A task that is cancelled while it waits leaves nothing behind.
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
        """As `Client.lateness`."""
        return self._core.late.summary()

    @property
    def network_ms(self) -> float:
        """As `Client.network_ms`."""
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
        """Compute groups of `x` in sequence order, send each as it is computed, and answer at the deadline.

        As `Client.run`.
        """
        begun = time.perf_counter()
        ask = asked(model, rows, budget, "prefix", ranking=ranking, overload=overload)
        answer, deadline = await self._core.run(begun, extractors, x, deadline_ms, ask, worker)
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
        """Answer from groups that are at hand, as `Client.predict`."""
        begun = time.perf_counter()
        encoded = encode_all(groups, rows)
        rows = next((each.rows for each in encoded.values()), rows)
        ask = asked(model, rows, budget, policy, ranking=ranking, overload=overload)
        answer, deadline = await self._core.predict(begun, encoded, deadline_ms, ask)
        self._core.note_lateness(answer, deadline)
        return answer

    def session(self, model: str | None = None, rows: int | None = None) -> AsyncSession:
        """Make a session, an asynchronous context manager; as `Client.session`."""
        self._core.check()
        return self._core.session(model, rows)

    async def models(self) -> list[ModelCard]:
        """List the server's models."""
        return await self._core.models()

    async def model(self, name: str | None = None) -> ModelDescription:
        """Describe a model, as `Client.model`."""
        return await self._core.model(name)

    async def plan(self, model: str | None = None, budget: float | None = None, have: Iterable[str] = ()) -> Plan:
        """Plan what to compute next, and what it buys; as `Client.plan`."""
        return await self._core.plan(model, budget, have)

    async def warm_up(
        self, extractors: Extractors | None = None, *, model: str | None = None, worker: Worker = "thread"
    ) -> None:
        """Connect, learn the model, and start workers for extractors, so that the first call need not."""
        await self._core.warm_up(extractors, model, worker)

    async def close(self) -> None:
        """Close the connections and end the workers; predictions under way end. Safe to call twice."""
        await self._core.close()


class Client:
    """A client of the service, safe to use from several threads at once; a context manager.

    Parameters
    ----------
    url : address of the server, like `http://127.0.0.1:8000`, `https://...`, or `unix:/path/of/socket`.
    api_key : sent as `Authorization: Bearer`, also with the handshake of the WebSocket.
    timeout_s : how long connecting, and a reply without a deadline, may take.
    max_workers : threads or processes there may be for each set of extractors.
    ssl : context for `https`; None for the system's own.

    Raises
    ------
    ClientError
        The address or the key cannot be used. The server is not asked before the first call.

    Notes
    -----
    A deadline counts from the call to the answer, at the caller. The server is told one shorter by what the network was
    seen to take. If its answer is not here in time, the last update that came is returned, or else the base rate, and
    its `note` says so. The first call with a deadline learns the model before its clock starts; `warm_up` does that
    ahead.

    A connection that breaks is made anew by the next call; a prediction that it interrupts is sent again if there is
    time. Close a client, or use `with`; one that is dropped closes by itself. A process that is forked off cannot use
    the client of its parent: there, every call raises ClosedError.
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
        # Who drops a client does not wait for it to close. When the interpreter ends it is not closed at all: threads
        # that this needs cannot be started any more, and its own is a daemon.
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
        """How late the answers were that a deadline interrupted, at the caller; deadlines of 0 are not counted."""
        return self._core.late.summary()

    @property
    def network_ms(self) -> float:
        """How much earlier than the caller's deadline the server is asked to answer now, in milliseconds."""
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
        """Compute groups of `x` in sequence order, send each as it is computed, and answer at the deadline.

        Parameters
        ----------
        extractors : for every group that has features, a callable that takes `x` and returns the group's values:
            (rows, features) numbers, or (features,) for one row. It must not change `x`.
        x : what the extractors are called with.
        deadline_ms : milliseconds from the call to the answer, here; 0 gives the base rate at once.
        budget : cost that the groups may have, in the model's cost unit; None is no limit.
        model : its name; not needed if the server has one.
        rows : how many rows `x` is.
        ranking : whether the answer tells the rows in order of their scores.
        overload : what is wanted of a server that is asked for more than it can answer in time. "prior": the base rate
            from it, at once; "refuse": its refusal, upon which this answers the base rate by itself. Either way
            `reason` is "overload" and `note` says why; where a prediction is refused that was begun before, the
            last update that came is the answer.
        worker : "thread", or "process" for extractors that hold the interpreter, crash or hang; see `anytime.Runner`.
            Workers are kept for the next calls with the same extractors.

        Returns
        -------
        Answer
            `reason` as the server gives it; "deadline" with a `note` where the network was too late or the connection
            broke. `note` also reports extractors that failed. `unused_groups` names the groups that were computed and
            had not reached the server when it answered.

        Raises
        ------
        ValuesError
            The deadline, the budget or `rows` is no such number.
        ExtractorError
            Extractors are missing or have no group, do not start, or `x` cannot be sent to a process.
        ConnectionLostError
            The server cannot be reached.
        ProblemError
            It refuses the prediction.
        """
        begun = time.perf_counter()
        ask = asked(model, rows, budget, "prefix", ranking=ranking, overload=overload)
        answer, deadline = self._portal.call(self._core.run, begun, extractors, x, deadline_ms, ask, worker)
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
        """Answer from groups that are at hand.

        Parameters
        ----------
        groups : values of each group, (rows, features) or (features,) for one row; None or NaN where one is missing.
            Arrays are sent as their bytes, 4 or 8 a number.
        budget : cost that the groups used may have, in the model's cost unit; None is no limit.
        deadline_ms : milliseconds from the call to the answer, here, as for `run`; None waits for the server.
        policy : "prefix", the longest complete prefix; "arrived", the optimum for whatever set this is.
        model : its name; not needed if the server has one.
        rows : how many rows there are; counted if not told.
        ranking : whether the answer tells the rows in order of their scores.
        overload : what is wanted of a server that is asked for more than it can answer in time: "refuse", a
            ProblemError that is `overloaded`, or "prior", the base rate at once, with `reason` "overload".

        Raises
        ------
        ValuesError
            Values are no numbers, or of different numbers of rows; the deadline or the budget is no such number.
        ConnectionLostError
            The server cannot be reached.
        ProblemError
            It refuses the prediction: no such model or group, values of another width.
        NoAnswerError
            Without a deadline: no answer came within `timeout_s`.
        """
        begun = time.perf_counter()
        encoded = encode_all(groups, rows)
        rows = next((each.rows for each in encoded.values()), rows)
        ask = asked(model, rows, budget, policy, ranking=ranking, overload=overload)
        answer, deadline = self._portal.call(self._core.predict, begun, encoded, deadline_ms, ask)
        self._core.note_lateness(answer, deadline)
        return answer

    def session(self, model: str | None = None, rows: int | None = None) -> Session:
        """Make a session, a context manager: groups added over time, answers in between; deleted at its end.

        Parameters
        ----------
        model : its name; not needed if the server has one.
        rows : how many rows there are; counted from the first group if not told.
        """
        return Session(self, self._portal, self._core.session(model, rows))

    def models(self) -> list[ModelCard]:
        """List the server's models."""
        return self._portal.call(self._core.models)

    def model(self, name: str | None = None) -> ModelDescription:
        """Describe a model: its sequence, groups and features; `name` is not needed if the server has one."""
        return self._portal.call(self._core.model, name)

    def plan(self, model: str | None = None, budget: float | None = None, have: Iterable[str] = ()) -> Plan:
        """Plan what to compute next, and what it buys.

        Parameters
        ----------
        model : its name; not needed if the server has one.
        budget : cost of the whole prefix, what is at hand included, in the model's cost unit; None is no limit.
        have : groups computed already.
        """
        return self._portal.call(self._core.plan, model, budget, have)

    def warm_up(
        self, extractors: Extractors | None = None, *, model: str | None = None, worker: Worker = "thread"
    ) -> None:
        """Connect, learn the model, and start workers for extractors, so that the first call need not."""
        self._portal.call(self._core.warm_up, extractors, model, worker)

    def close(self) -> None:
        """Close the connections and end the workers; calls under way end. Safe to call twice."""
        self._portal.close()


class Session:
    """A session on the server; a context manager, begun when it is entered or first used, and deleted at its end.

    Made by `Client.session`; safe to use from several threads.
    """

    def __init__(self, client: Client, portal: Portal, session: AsyncSession) -> None:
        self._client = client  # which would close if it were dropped
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
        """Id on the server, by which other programs may use it too; None before it is begun."""
        return self._session.id

    @property
    def model(self) -> str | None:
        """Name of its model."""
        return self._session.model

    @property
    def version(self) -> str | None:
        """Version of its model, which it keeps; None before it is begun."""
        return self._session.version

    @property
    def expires_in_s(self) -> float | None:
        """Seconds without use after which the server forgets it, as told when it was begun."""
        return self._session.expires_in_s

    def open(self) -> None:
        """Begin it on the server, if that has not been done; raises as `AsyncSession.open`."""
        self._portal.call(self._session.open)

    def add(self, group: str, values: Any) -> Progress:
        """Send the values of one group; raises as `AsyncSession.add_many`."""
        return self._portal.call(self._session.add, group, values)

    def add_many(self, groups: Mapping[str, Any]) -> Progress:
        """Send the values of groups; all of them are taken, or none. As `AsyncSession.add_many`."""
        return self._portal.call(self._session.add_many, groups)

    def predict(
        self,
        *,
        budget: float | None = None,
        deadline_ms: float | None = None,
        policy: Policy = "prefix",
        ranking: bool = False,
    ) -> Answer:
        """Answer from what has been sent; the session stays open. As `AsyncSession.predict`."""
        return self._portal.call(
            self._session.predict, budget=budget, deadline_ms=deadline_ms, policy=policy, ranking=ranking
        )

    def close(self) -> None:
        """Delete it on the server. Safe to call twice, after it has expired, and when the server is gone."""
        self._portal.call(self._session.close)
