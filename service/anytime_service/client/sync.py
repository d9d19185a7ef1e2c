"""The client for threads: it runs the same core as the other one, in an event loop of its own in the background."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Mapping
from ssl import SSLContext
from types import TracebackType
from typing import Any, Self

from anytime.inference.answer import Answer
from anytime.inference.deadline import Lateness
from anytime.inference.workers import Worker
from anytime.types import Overload, Policy
from anytime_service.client.calling import asked
from anytime_service.client.core import Core, Extractors
from anytime_service.client.descriptions import ModelCard, ModelDescription, Plan
from anytime_service.client.frames import encode_all
from anytime_service.client.portal import Portal
from anytime_service.client.sessions import AsyncSession, Progress

__all__ = ["Client", "Session"]


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
