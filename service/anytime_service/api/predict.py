"""Predictions over HTTP: `POST /predict` from one body, and the routes of sessions from several.

The server answers at the deadline even if a body has not ended. A body of JSON or MessagePack counts when it is
complete. In a body of lines, each line is a group, and counts as soon as it is received. A line received after the
answer still contributes to the measured group costs.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.types import Scope

from anytime.inference.prediction import Answer
from anytime_service.clock import now_ms
from anytime_service.core.open_prediction import check_same_rows, checked_groups
from anytime_service.core.service import ActivePrediction, PredictionService
from anytime_service.errors import BodyTooLargeError, FieldError, OverloadedError, RequestTimeoutError
from anytime_service.http.exchange import Exchange, Reply, admission_of
from anytime_service.http.options import (
    PredictionHead,
    body_form,
    body_limit,
    check_length,
    headers_of,
    read_head,
    reply_form,
)
from anytime_service.http.responses import Endpoint, problem_reply
from anytime_service.schemas.codecs import JSON, Content, Form, answer_fields, read, too_large
from anytime_service.schemas.messages import (
    GROUPS,
    LINE,
    REQUEST,
    SESSION,
    Received,
    SessionCreated,
    SessionRequest,
    SessionTook,
    check_rows,
    count_rows,
    read_body,
    read_line,
    received,
    received_values,
)
from anytime_service.schemas.options import OF_THE_HEAD, PARAMETERS, PredictionOptions, combined, stated_in
from anytime_service.sessions.store import SessionStore

LONG, MANY = 256 * 1024, 100  # bytes, and packed groups, of a body that is added in several turns of the event loop


@dataclass(slots=True, eq=False)
class ReplySink:
    """The sink of a prediction whose answer is the response of an exchange.

    `store` receives the response if it is the base rate that the server sends because of overload. `noted` returns the
    answer with the note of a session.
    """

    exchange: Exchange
    form: Form
    store: Callable[[Reply], None] | None = None
    noted: Callable[[Answer], Answer] | None = None

    def encode(self, answer: Answer) -> dict[str, Any]:
        """Return the fields of an answer; raise FieldError if it is not finite."""
        return answer_fields(self.form, answer if self.noted is None else self.noted(answer))

    def send(self, fields: dict[str, Any], elapsed_ms: float) -> None:
        reply = Reply(200, self.form.media_type, self.form.encode(fields | {"elapsed_ms": elapsed_ms}))
        self.exchange.reply(reply)
        if self.store is not None and fields["reason"] == "overload":
            self.store(reply)

    def fail(self, error: Exception) -> None:
        self.exchange.reply(problem_reply(error))


@dataclass(eq=False)
class Lines:
    """Reader of the lines of one request."""

    exchange: Exchange
    active: ActivePrediction
    service: PredictionService
    _number: int = 0
    _late: int = 0
    _tail: bytearray = field(default_factory=bytearray)

    async def read(self) -> None:
        exchange, active = self.exchange, self.active
        exchange.rest = self._read_late
        async for chunk in exchange.body():
            after_one = self.service.turns.slices()
            for line in self._split(chunk):
                await self._add_line(line)
                await after_one()
        if exchange.ended and not active.answered:
            await self._add_line(bytes(self._tail))
            if not active.answered:
                active.end()

    def _split(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the lines that this chunk completes, each when it is needed; raise BodyTooLargeError for a long one.

        Lines that wait for their turn count as stored.
        """
        end = chunk.find(b"\n")
        end += len(self._tail) if end >= 0 else 0
        self._tail += chunk
        received, begun, limit = self._tail, 0, self.service.settings.max_json_bytes
        if end >= 0:
            self._tail = received[received.rfind(b"\n") + 1 :]
        self.exchange.retain(len(self._tail))
        self.exchange.store(len(received))
        while end >= 0 and end - begun <= limit:
            yield bytes(received[begun:end])
            begun, end = end + 1, received.find(b"\n", end + 1)
        self.exchange.store(len(self._tail))
        if max(end - begun, len(self._tail)) > limit:
            raise too_large(f"a line has more than {limit} bytes", limit)

    async def _add_line(self, content: bytes) -> None:
        active, service = self.active, self.service
        await service.turns.turn(len(content))
        if active.answered:  # maybe the deadline expired before the turn of this line
            self._record_late(content)
            return
        self._number += 1
        if not content.strip():
            return
        try:
            line = read_line(content, self._number, service.list_limits)
            values = received_values(active.model, line.group, line.values, None, service.settings.max_rows)
            active.groups({line.group: values}, alone=True, took_ms=line.took_ms)
        except FieldError as error:
            raise FieldError(error.field, f"line {self._number}: {error}") from error

    def _read_late(self, chunk: bytes) -> None:
        """Record the group timings of lines that arrive after the answer."""
        if self._late < len(self.active.model.places):  # a client may never stop sending
            try:
                for line in self._split(chunk):
                    self._record_late(line)
            except (OverloadedError, BodyTooLargeError):  # the answer does not need these lines
                self._late = sys.maxsize
                self._tail.clear()
            if self.exchange.ended:
                self._record_late(bytes(self._tail))

    def _record_late(self, content: bytes) -> None:
        if self._late < len(self.active.model.places) and content.strip():
            self._late += 1
            limit, timings = self.service.settings.max_rows, self.active.timings
            with suppress(msgspec.DecodeError):  # the answer is sent
                line = LINE.decode(content)
                timings.received_late(line.group, now_ms(), line.took_ms, lambda: min(count_rows(line.values), limit))


class Predict(Endpoint):
    """`POST /predict`."""

    parameters = PARAMETERS

    async def answer(self, scope: Scope, exchange: Exchange, predictions: list[ActivePrediction]) -> None:
        begun, service = now_ms(), self.service
        decided, store = admission_of(scope)
        head = read_head(scope, service.settings, self.parameters)
        exchange.limit_to(*body_limit(head.form, service.settings, lines=head.lines))
        admitted, account = service.admits(begun, decided), service.accounts.of(scope)
        sink = ReplySink(exchange, head.reply_form, store)
        active = service.open(head.options, begun, sink, admitted=admitted, account=account)
        predictions.append(active)
        if head.lines:  # even if answered: late lines contribute to the group timings
            await Lines(exchange, active, service).read()
        elif not active.answered:
            await self._read_body(exchange, active, head)

    async def _read_body(self, exchange: Exchange, active: ActivePrediction, head: PredictionHead) -> None:
        service, content = self.service, await exchange.read_all()
        await service.turns.turn(len(content))
        if active.answered or not exchange.ended:  # maybe its deadline expired before its turn
            return
        request = read_body(head.form, content, service.list_limits, REQUEST)
        stated = stated_in(request, head.options, OF_THE_HEAD)
        groups = received(active.model, head.form, request.groups, service.settings.max_rows)
        if stated:
            active.amend(PredictionOptions(**combined({"query": head.stated, "body": stated})))
        if len(content) > LONG or (len(groups) > MANY and head.form is not JSON):
            await self._add_in_slices(active, groups, exchange.ended_ms)
        elif not active.answered:
            # The groups arrived when the body ended, however long the conversion took.
            active.groups(groups, exchange.ended_ms)
        if not active.answered:
            active.end()

    async def _add_in_slices(self, active: ActivePrediction, groups: Received, ended_ms: float) -> None:
        """Check all groups and then add them, as many in a turn of the loop as fit in its time."""
        rows: dict[str, int] = {}
        after_one = self.service.turns.slices()
        for adds in (False, True):
            for name, values in groups.items():
                if active.answered:
                    return
                if adds:
                    active.groups({name: values}, ended_ms)
                else:
                    rows[name] = len(checked_groups(active.machine.prediction, {name: values})[name])
                await after_one()
            check_same_rows(rows)


_PARAMETERS = tuple(name for name in PARAMETERS if name not in ("model", "rows"))  # a session has both


class _SessionEndpoint(Endpoint):
    """Base class of the endpoints of sessions; they wait a limited time for a body."""

    def __init__(self, service: PredictionService, sessions: SessionStore) -> None:
        super().__init__(service)
        self.sessions = sessions

    async def read_body(self, scope: Scope, exchange: Exchange) -> tuple[Form, Content, Form]:
        """Return the form of the body, the body, and the form of the reply; without a body in time, reply 408."""
        headers = headers_of(scope)
        form, _ = body_form(headers)
        limit, advice = body_limit(form, self.service.settings)
        check_length(headers, limit, advice)
        exchange.limit_to(limit, advice)
        error = RequestTimeoutError("the body did not arrive in time; send it at once")
        timer = asyncio.get_running_loop().call_later(
            self.service.settings.body_timeout_s, lambda: exchange.reply(problem_reply(error))
        )
        try:
            content = await exchange.read_all()
        finally:
            timer.cancel()
        return form, content, reply_form(headers, form)


class CreateSession(_SessionEndpoint):
    """`POST /sessions`."""

    async def answer(self, scope: Scope, exchange: Exchange, _predictions: list[ActivePrediction]) -> None:
        form, content, reply = await self.read_body(scope, exchange)
        if exchange.replied or not exchange.ended:
            return
        request = read(form, SESSION[form.name], content) if content.strip() else SessionRequest()
        check_rows(request.rows, self.service.settings.max_rows)
        account = self.service.accounts.of(scope)
        self.service.check_capacity(account)
        model = self.service.registry.get(request.model)
        session_id = await self.sessions.create(model, request.rows, account)
        created = SessionCreated(session_id, model.name, model.version, self.sessions.ttl_s)
        where = ((b"location", f"{scope.get('root_path', '')}/sessions/{session_id}".encode()),)
        exchange.reply(Reply(201, reply.media_type, reply.encode(created), where))
        self.service.session_timings.received(session_id, self.service.metrics.of(model), now_ms())


class SessionGroups(_SessionEndpoint):
    """`POST /sessions/{id}/groups`."""

    async def answer(self, scope: Scope, exchange: Exchange, _predictions: list[ActivePrediction]) -> None:
        form, content, reply = await self.read_body(scope, exchange)
        if exchange.replied or not exchange.ended:
            return
        session_id = scope["path_params"]["id"]
        session = await self.sessions.get(session_id)
        await self.service.turns.turn(len(content))
        decoded = read_body(form, content, self.service.list_limits, GROUPS)
        groups = received(session.model, form, decoded, self.service.settings.max_rows)
        prefix, replaced, rows = await session.add_groups(groups)
        stored = SessionTook(prefix, session.model.steps, tuple([each for each in groups if each in replaced]))
        exchange.reply(Reply(200, reply.media_type, reply.encode(stored)))
        metrics, repeated = self.service.metrics.of(session.model), bool(stored.replaced)
        self.service.session_timings.received(session_id, metrics, exchange.ended_ms, groups, rows, again=repeated)


class PredictSession(_SessionEndpoint):
    """`GET /sessions/{id}/predict`, and `GET /predict?session=`."""

    parameters = (*_PARAMETERS, "session")

    async def answer(self, scope: Scope, exchange: Exchange, predictions: list[ActivePrediction]) -> None:
        """Answer at once, or at the deadline if the request has one."""
        begun, service = now_ms(), self.service
        named: str | None = scope["path_params"].get("id")
        head = read_head(scope, service.settings, _PARAMETERS if named else self.parameters)
        session_id = named or head.session
        if session_id is None:
            raise FieldError(
                "session", "session is missing; GET /predict requires ?session=ID; without a session, POST the groups"
            )
        deadline_ms, account = head.options.deadline_ms, service.accounts.of(scope)
        due = None if deadline_ms is None else begun + min(deadline_ms, service.limits.max_deadline_ms)
        async with self.sessions.read(session_id, due, account) as session:
            active = service.open(
                head.options,
                begun,
                ReplySink(exchange, head.reply_form, noted=session.noted),
                shared=session.prediction,
                admitted=service.admits(begun, admission_of(scope)[0]),
                account=account,
            )
            predictions.append(active)
            if not active.answered:
                if deadline_ms is None:
                    active.end()
                else:
                    session.join(active)
        async for _ in exchange.body():
            pass


class DeleteSession(_SessionEndpoint):
    """`DELETE /sessions/{id}`."""

    async def answer(self, scope: Scope, exchange: Exchange, _predictions: list[ActivePrediction]) -> None:
        session_id = scope["path_params"]["id"]
        await self.sessions.delete(session_id)
        self.service.session_timings.pop(session_id, None)
        exchange.reply(Reply(204, JSON.media_type, b""))
