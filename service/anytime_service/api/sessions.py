"""Routes of sessions: create a session, post groups, request predictions, delete the session."""

from __future__ import annotations

from starlette.types import Scope

from anytime_service.api.predict import ReplySink
from anytime_service.clock import now_ms
from anytime_service.core.service import ActivePrediction, PredictionService
from anytime_service.errors import FieldError
from anytime_service.http.exchange import Exchange, Reply, admission_of
from anytime_service.http.options import body_form, body_limit, check_length, headers_of, read_head, reply_form
from anytime_service.http.responses import Endpoint
from anytime_service.limits.queues import TimeoutQueue
from anytime_service.schemas.codecs import JSON, Content, Form
from anytime_service.schemas.options import PARAMETERS
from anytime_service.schemas.predict import (
    SessionCreated,
    SessionRequest,
    SessionTook,
    read_groups,
    read_session,
    received,
)
from anytime_service.schemas.values import check_rows
from anytime_service.sessions.store import SessionStore

_PARAMETERS = tuple(name for name in PARAMETERS if name not in ("model", "rows"))  # a session has both


class _SessionEndpoint(Endpoint):
    """Base class of the endpoints of sessions; they wait a limited time for a body."""

    def __init__(self, service: PredictionService, sessions: SessionStore) -> None:
        super().__init__(service)
        self.sessions = sessions
        self.bodies = TimeoutQueue(service.settings.body_timeout_s, Exchange.body_timed_out)

    async def read_body(self, scope: Scope, exchange: Exchange) -> tuple[Form, Content, Form]:
        """Return the form of the body, the body, and the form of the reply."""
        headers = headers_of(scope)
        form, _ = body_form(headers)
        limit, advice = body_limit(form, self.service.settings)
        check_length(headers, limit, advice)
        exchange.limit_to(limit, advice)
        return form, await exchange.read_all(), reply_form(headers, form)


class CreateSession(_SessionEndpoint):
    """`POST /sessions`."""

    async def answer(self, scope: Scope, exchange: Exchange, _predictions: list[ActivePrediction]) -> None:
        form, content, reply = await self.read_body(scope, exchange)
        request = read_session(form, content) if content.strip() else SessionRequest()
        check_rows(request.rows, self.service.settings.max_rows)
        account = self.service.accounts.of(scope)
        self.service.check_capacity(account)
        model = self.service.registry.get(request.model)
        session_id = await self.sessions.create(model, request.rows, account)
        created = SessionCreated(session_id, model.name, model.version, self.sessions.ttl_s)
        where = ((b"location", f"{scope.get('root_path', '')}/sessions/{session_id}".encode()),)
        exchange.reply(Reply(201, reply.media_type, reply.encode(created), where))
        self.service.session_timings.begin(session_id, self.service.metrics.of(model), now_ms())


class SessionGroups(_SessionEndpoint):
    """`POST /sessions/{id}/groups`."""

    async def answer(self, scope: Scope, exchange: Exchange, _predictions: list[ActivePrediction]) -> None:
        form, content, reply = await self.read_body(scope, exchange)
        if not exchange.ended:
            return
        session_id = scope["path_params"]["id"]
        session = await self.sessions.get(session_id)
        await self.service.turn(len(content))
        decoded = read_groups(form, content, self.service.list_limits)
        groups = received(session.model, decoded, self.service.settings.max_rows)
        prefix, replaced, rows = await session.add_groups(groups)
        stored = SessionTook(prefix, session.model.steps, tuple([each for each in groups if each in replaced]))
        exchange.reply(Reply(200, reply.media_type, reply.encode(stored)))
        metrics, repeated = self.service.metrics.of(session.model), bool(stored.replaced)
        self.service.session_timings.received(session_id, metrics, groups, rows, exchange.ended_ms, again=repeated)


class PredictSession(_SessionEndpoint):
    """`GET /sessions/{id}/predict`, and `GET /predict?session=`."""

    parameters = (*_PARAMETERS, "session")

    async def answer(self, scope: Scope, exchange: Exchange, predictions: list[ActivePrediction]) -> None:
        """Answer at once, or at the deadline if the request has one."""
        begun = now_ms()
        service = self.service
        named: str | None = scope["path_params"].get("id")
        head = read_head(scope, service.settings, _PARAMETERS if named else self.parameters)
        session_id = named or head.session
        if session_id is None:
            raise FieldError(
                "session", "session is missing; GET /predict requires ?session=ID; without a session, POST the groups"
            )
        deadline_ms, account = head.options.deadline_ms, service.accounts.of(scope)
        due = None if deadline_ms is None else begun + service.limits.deadline_ms(deadline_ms)
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
        self.service.session_timings.end(session_id)
        exchange.reply(Reply(204, JSON.media_type, b""))
