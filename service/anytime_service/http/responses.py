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
    RequestTimeoutError,
    SessionsUnreachableError,
)
from anytime_service.http.exchange import Exchange, Reply
from anytime_service.http.problems import problem_of
from anytime_service.schemas.codecs import Form, encode_answer
from anytime_service.schemas.oip_reply import (
    infer_problem,
)
from anytime_service.schemas.problem import MEDIA_TYPE, Problem

__all__ = ["RETRY_AFTER_S", "answer_callbacks", "oip_problem_reply", "problem_reply", "refuse_handshake", "response"]

RETRY_AFTER_S = 1

_TEMPORARY = (OverloadedError, SessionsUnreachableError, MissingVersionError)
"""Temporary errors: a retry after a second, or on another replica, may succeed."""

_log = logging.getLogger("anytime_service")


def problem_reply(error: Exception, convert: Callable[[Problem], Problem] | None = None) -> Reply:
    """Return the response to an error: its problem, after `convert`. Log an unexpected error."""
    problem = problem_of(error)
    if not isinstance(error, AnytimeError):
        _log.error("a request failed", exc_info=error)
    headers = ((b"retry-after", b"%d" % _retry_after_s(error)),) if isinstance(error, _TEMPORARY) else ()
    # Close the connection after a body that is too large or too slow: its rest would exceed the limit too.
    return Reply(
        problem.status,
        MEDIA_TYPE,
        msgspec.json.encode(problem if convert is None else convert(problem)),
        headers,
        isinstance(error, BodyTooLargeError | RequestTimeoutError),
    )


async def refuse_handshake(send: Send, reply: Reply) -> None:
    """Refuse a WebSocket handshake with an HTTP response."""
    headers = [(b"content-type", reply.media_type.encode()), *reply.headers]
    await send({"type": "websocket.http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": reply.content})


def answer_callbacks(
    exchange: Exchange, form: Form, store: Callable[[Reply], None] | None = None
) -> tuple[Callable[[Answer], None], Callable[[Exception], None]]:
    """Return two callables, which timers may call too: one sends an answer as the response, the other an error.

    Parameters
    ----------
    store : receives the response if it is the base rate that the server sends because of overload.
    """
    exchange.may_be_interrupted()

    def send_answer(answer: Answer) -> None:
        try:
            reply = Reply(200, form.media_type, encode_answer(form, answer))
            exchange.reply(reply)
            if store is not None and answer.reason == "overload":
                store(reply)
        except AnytimeError as error:
            send_error(error)

    def send_error(error: Exception) -> None:
        exchange.reply(problem_reply(error))

    return send_answer, send_error


def response(reply: Reply, default: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a reply as the bytes of an HTTP/1.1 response."""
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


def oip_problem_reply(error: Exception) -> Reply:
    """Return the response to an error in the Open Inference Protocol: a problem with the field `error`."""
    return problem_reply(error, infer_problem)
