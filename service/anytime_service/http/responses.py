"""Answers and errors as HTTP responses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec
from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from anytime.errors import AnytimeError
from anytime.inference.answer import Answer
from anytime_service.errors import (
    BodyTooLargeError,
    MissingVersionError,
    OverloadedError,
    SessionsUnreachableError,
    SlowRequestError,
)
from anytime_service.http.exchange import Exchange, Reply
from anytime_service.http.problems import problem_of
from anytime_service.schemas.codecs import Form, encode_answer
from anytime_service.schemas.oip_reply import (
    infer_problem,
)
from anytime_service.schemas.problem import MEDIA_TYPE, Problem

__all__ = ["RETRY_AFTER_S", "answering", "problem_reply", "refusal", "refuse_handshake", "response"]

RETRY_AFTER_S = 1

_PASSING = (OverloadedError, SessionsUnreachableError, MissingVersionError)
"""What may be over in a second, or elsewhere."""

_log = logging.getLogger("anytime_service")


def problem_reply(error: Exception, told: Callable[[Problem], Problem] | None = None) -> Reply:
    """Tell an error, as `told` makes of its problem; one that was not expected is logged."""
    problem = problem_of(error)
    if not isinstance(error, AnytimeError):
        _log.error("a request failed", exc_info=error)
    headers = ((b"retry-after", b"%d" % _retry_after_s(error)),) if isinstance(error, _PASSING) else ()
    # A body that is too large, or too slow, will not run out under the limit either.
    return Reply(
        problem.status,
        MEDIA_TYPE,
        msgspec.json.encode(problem if told is None else told(problem)),
        headers,
        isinstance(error, BodyTooLargeError | SlowRequestError),
    )


async def refuse_handshake(send: Send, reply: Reply) -> None:
    """Refuse a WebSocket by a response, in the place of accepting it."""
    headers = [(b"content-type", reply.media_type.encode()), *reply.headers]
    await send({"type": "websocket.http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": reply.content})


def answering(
    exchange: Exchange, form: Form, keep: Callable[[Reply], None] | None = None
) -> tuple[Callable[[Answer], None], Callable[[Exception], None]]:
    """Two callables, for timers too: one sends an answer as the response, the other an error.

    Parameters
    ----------
    keep : takes the base rate that was told because too much was asked for.
    """
    exchange.may_be_interrupted()

    def tell(answer: Answer) -> None:
        try:
            reply = Reply(200, form.media_type, encode_answer(form, answer))
            exchange.reply(reply)
            if keep is not None and answer.reason == "overload":
                keep(reply)
        except AnytimeError as error:
            fail(error)

    def fail(error: Exception) -> None:
        exchange.reply(problem_reply(error))

    return tell, fail


def response(reply: Reply, default: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Write a reply as HTTP/1.1."""
    lines = [STATUS_LINE[reply.status]]
    for name, value in (*default, *reply.headers):
        lines += [name, b": ", value, b"\r\n"]
    if reply.close:
        lines.append(b"connection: close\r\n")
    lines.append(b"content-type: %b\r\ncontent-length: %d\r\n\r\n" % (reply.media_type.encode(), len(reply.content)))
    lines.append(reply.content)
    return b"".join(lines)


def _retry_after_s(error: Exception) -> int:
    return error.retry_after_s if isinstance(error, OverloadedError) else RETRY_AFTER_S


def refusal(error: Exception) -> Reply:
    """Tell an error as a problem that has the `error` of this protocol too."""
    return problem_reply(error, infer_problem)
