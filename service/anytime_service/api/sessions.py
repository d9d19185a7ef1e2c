"""Routes of sessions: create a session, post groups, request predictions, delete the session."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from starlette.types import Receive, Scope, Send

from anytime_service.api.openapi import SESSION_OPERATIONS
from anytime_service.clock import now_ms
from anytime_service.core.active_prediction import ActivePrediction
from anytime_service.core.service import PredictionService
from anytime_service.errors import FieldError
from anytime_service.http.exchange import Exchange, Reply, admission_of
from anytime_service.http.options import (
    PREDICTION_PARAMETERS,
    Head,
    body_form,
    body_limit,
    check_length,
    headers_of,
    read_head,
    reply_form,
)
from anytime_service.http.responses import answer_callbacks, problem_reply
from anytime_service.limits.memory import Account
from anytime_service.schemas.codecs import JSON, Form
from anytime_service.schemas.predict import (
    Arrays,
    SessionCreated,
    SessionRequest,
    SessionTook,
    arrays,
    read_groups,
    read_session,
)
from anytime_service.schemas.values import AT_ONCE
from anytime_service.sessions.store import OpenSession, Session, SessionStore

__all__ = [
    "CreateSession",
    "DeleteSession",
    "PredictNamedSession",
    "PredictSession",
    "SessionGroups",
]


class _Route:
    """Base class of the session routes: it sends errors as problems and reads the request to its end."""

    def __init__(self, handler: PredictionService, sessions: SessionStore) -> None:
        self.handler = handler
        self.sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        handler = self.handler
        account = handler.accounts.of(scope)
        exchange = Exchange(receive, send, handler.settings.max_body_bytes, account, handler.bodies)
        active: ActivePrediction | None = None
        try:
            active = await self.answer(scope, exchange)
        except Exception as error:
            exchange.reply(problem_reply(error))
        finally:
            try:
                await exchange.finish()
            finally:
                if active is not None:
                    active.drop()

    def limited(self, headers: Mapping[str, str], exchange: Exchange) -> Form:
        """Return the form of the body, and apply its size limit to the exchange."""
        form, _ = body_form(headers)
        limit, advice = body_limit(form, self.handler.settings)
        check_length(headers, limit, advice)
        exchange.limit_to(limit, advice)
        return form

    async def answer(self, scope: Scope, exchange: Exchange) -> ActivePrediction | None:
        """Send the response, or open and return the prediction that sends it."""
        raise NotImplementedError


class CreateSession(_Route):
    """`POST /sessions`."""

    operation: ClassVar[Mapping[str, Any]] = SESSION_OPERATIONS["create"]

    async def answer(self, scope: Scope, exchange: Exchange) -> None:
        """Create a session."""
        headers = headers_of(scope)
        form = self.limited(headers, exchange)
        content = await exchange.read_all()
        request = read_session(form, content) if content.strip() else SessionRequest()
        self.handler.check_rows(request.rows)
        account = self.handler.accounts.of(scope)
        self.handler.check_capacity(account)
        model = self.handler.registry.get(request.model)
        name = await self.sessions.create(model, request.rows, account)
        created = SessionCreated(name, model.name, model.version, self.sessions.ttl_s)
        reply = reply_form(headers, form)
        where = ((b"location", f"{scope.get('root_path', '')}/sessions/{name}".encode()),)
        exchange.reply(Reply(201, reply.media_type, reply.encode(created), where))
        self.handler.session_timings.begin(name, self.handler.signals.of(model), now_ms())


class SessionGroups(_Route):
    """`POST /sessions/{id}/groups`."""

    operation: ClassVar[Mapping[str, Any]] = SESSION_OPERATIONS["groups"]

    async def answer(self, scope: Scope, exchange: Exchange) -> None:
        """Store the groups of the body in the session."""
        headers = headers_of(scope)
        form = self.limited(headers, exchange)
        content = await exchange.read_all()
        if not exchange.ended:
            return
        name = scope["path_params"]["id"]
        session = await self.sessions.get(name)
        if len(content) > AT_ONCE:
            async with self.handler.converting:
                groups = await self._read(form, content, session)
        else:
            groups = await self._read(form, content, session)
        prefix, replaced = await session.add_groups(groups)
        stored = SessionTook(prefix, session.model.steps, [each for each in groups if each in replaced])
        reply = reply_form(headers, form)
        exchange.reply(Reply(200, reply.media_type, reply.encode(stored)))
        signals, repeated = self.handler.signals.of(session.model), bool(stored.replaced)
        self.handler.session_timings.received(name, signals, tuple(groups), exchange.ended_ms, again=repeated)

    async def _read(self, form: Form, content: bytes, session: OpenSession) -> Arrays:
        settings = self.handler.settings
        groups = read_groups(form, content, settings.max_json_bytes)
        if len(content) > AT_ONCE:
            await asyncio.sleep(0)
        return await arrays(form, session.model, groups, settings.max_rows)


class PredictSession(_Route):
    """`GET /sessions/{id}/predict`."""

    operation: ClassVar[Mapping[str, Any]] = SESSION_OPERATIONS["predict"]

    async def answer(self, scope: Scope, exchange: Exchange) -> ActivePrediction:
        """Answer at once, or at the deadline if the request has one."""
        begun = now_ms()
        named: str | None = scope["path_params"].get("id")
        head = read_head(
            scope, self.handler.settings, PREDICTION_PARAMETERS if named else (*PREDICTION_PARAMETERS, "session")
        )
        name = named or head.session
        if name is None:
            raise FieldError(
                "session", "session is missing; GET /predict requires ?session=ID; without a session, POST the groups"
            )
        deadline_ms = head.request.deadline_ms
        due = None if deadline_ms is None else begun + min(deadline_ms, self.handler.settings.max_deadline_ms)
        account = self.handler.accounts.of(scope)
        async with self.sessions.read(name, due, account) as session:
            active = self._open(session, head, begun, exchange, account, admitted=admission_of(scope)[0])
        try:
            async for _ in exchange.body():
                pass
        except BaseException:
            active.drop()
            raise
        return active

    def _open(
        self,
        session: Session,
        head: Head,
        begun: float,
        exchange: Exchange,
        account: Account,
        *,
        admitted: bool | None,
    ) -> ActivePrediction:
        """Open a prediction that waits for its deadline, or without one is answered at once."""
        send_answer, send_error = answer_callbacks(exchange, head.reply_form)
        active = self.handler.open(
            head.request,
            begun,
            lambda answer: send_answer(session.noted(answer)),
            send_error,
            shared=session.prediction,
            admitted=admitted,
            account=account,
        )
        if not active.answered:
            if head.request.deadline_ms is None:
                active.end()
            else:
                session.join(active)
        return active


class PredictNamedSession(PredictSession):
    """`GET /predict?session=`."""

    operation: ClassVar[Mapping[str, Any]] = SESSION_OPERATIONS["predict_query"]


class DeleteSession(_Route):
    """`DELETE /sessions/{id}`."""

    operation: ClassVar[Mapping[str, Any]] = SESSION_OPERATIONS["delete"]

    async def answer(self, scope: Scope, exchange: Exchange) -> None:
        """Delete the session."""
        name = scope["path_params"]["id"]
        await self.sessions.delete(name)
        self.handler.session_timings.end(name)
        exchange.reply(Reply(204, JSON.media_type, b""))
