"""`POST /predict`: one prediction from one body, answered at the deadline even if the body has not ended by then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import msgspec
from starlette.types import Receive, Scope, Send

from anytime.answer import Answer
from anytime.errors import AnytimeError
from anytime.model import AnytimeModel
from anytime_service.body import Body, ClientGoneError, Reply, now_ms, respond
from anytime_service.errors import BodyTooLargeError
from anytime_service.head import Head, read_head
from anytime_service.openapi import PREDICT_OPERATION
from anytime_service.problems import MEDIA_TYPE, problem_of
from anytime_service.protocol import OpenPrediction
from anytime_service.registry import ModelRegistry
from anytime_service.settings import Settings
from anytime_service.wire import decode_request, encode_answer

__all__ = ["PostPrediction"]


class PostPrediction:
    """The hot route, a bare ASGI application: neither request objects nor validation models stand in its way."""

    operation: ClassVar[dict[str, Any]] = PREDICT_OPERATION

    def __init__(self, registry: ModelRegistry, settings: Settings) -> None:
        self.registry = registry
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        begun = now_ms()
        body = Body(receive, self.settings.max_body_bytes)
        try:
            try:
                answer = await self._answer(scope, body, begun)
                reply = Reply(200, "application/json", encode_answer(replace(answer, elapsed_ms=now_ms() - begun)))
            except AnytimeError as error:
                problem = problem_of(error)
                # A body that is too large will not run out under the limit either.
                close = isinstance(error, BodyTooLargeError)
                reply = Reply(problem.status, MEDIA_TYPE, msgspec.json.encode(problem), close)
            await respond(send, reply, body)
        except ClientGoneError:
            pass
        finally:
            body.close()

    async def _answer(self, scope: Scope, body: Body, begun: float) -> Answer:
        head = read_head(scope, self.settings)
        model = self.registry.get(head.model)
        # At deadline 0 the body is not even looked at, so that the answer does not hang on how fast it came.
        if head.deadline_ms == 0 or not await body.wait((begun + head.deadline_ms - now_ms()) / 1000.0):
            return _without_body(model, head, begun)
        rows, groups = decode_request(body.content(), head.rows, self.settings.max_rows)
        opened = OpenPrediction(model)
        # The groups arrived when the body ended, however long decoding them took.
        return (
            opened.begin(begun, rows, head.budget, head.deadline_ms, head.policy)
            or opened.groups(body.ended_ms, groups)
            or opened.end(body.ended_ms)
        )


def _without_body(model: AnytimeModel, head: Head, begun: float) -> Answer:
    """Answer with the base rate: for one row, unless the head of the request said how many."""
    opened = OpenPrediction(model)
    answer = opened.begin(begun, head.rows or 1, head.budget, head.deadline_ms, head.policy)
    return answer or opened.deadline(now_ms())
