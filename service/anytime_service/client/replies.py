"""What is received: answers, updates and problems, from frames and from bodies.

A newer server may say more than this client knows: fields that are not known here are left out, and values are taken as
they come. Nothing else is believed: what is no such reply at all raises ReplyError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from anytime.inference.answer import Answer
from anytime.model.model import Expected
from anytime_service.client.errors import ProblemError, ReplyError

__all__ = ["Reply", "answer_of", "decode", "decode_reply", "problem_of", "seconds_of", "shortened"]

_SHOWN = 200
"""Characters of a reply that is not understood that a message shows."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A frame of the server, about the prediction `id`; None where it is about none.

    `content` is an answer or a problem; `final` is False for an update.
    """

    id: Any
    content: Answer | ProblemError
    final: bool = True


def decode_reply(message: str | bytes) -> Reply | None:
    """Read a frame; None for one of a type that is not known here.

    Raises
    ------
    ReplyError
        It is no frame of this protocol.
    """
    frame = decode(message, packed=isinstance(message, bytes))
    kind = frame.get("type") if isinstance(frame, dict) else None
    if kind in ("answer", "update"):
        return Reply(frame.get("id"), answer_of(frame), kind == "answer")
    if kind == "error":
        return Reply(frame.get("id"), problem_of(frame.get("problem")))
    if isinstance(kind, str):
        return None
    raise ReplyError(f"the server sent {shortened(message)}; expected an answer, an update or an error")


def decode(content: str | bytes, *, packed: bool = False) -> Any:
    """Read JSON, or MessagePack if it is `packed`.

    Raises
    ------
    ReplyError
        It is neither.
    """
    try:
        return (
            msgspec.msgpack.decode(content) if isinstance(content, bytes) and packed else msgspec.json.decode(content)
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        form = "MessagePack" if packed else "JSON"
        raise ReplyError(f"the server sent {shortened(content)}, which is not {form}: {error}") from error


def answer_of(told: Any) -> Answer:
    """Make an answer from its fields.

    Raises
    ------
    ReplyError
        A field that an answer must have is not there.
    """
    if not isinstance(told, Mapping):
        raise ReplyError(f"the server sent {shortened(told)}; expected an answer")
    try:
        return Answer(**{name: convert(told[name]) for name, convert in _CONVERT.items() if name in told})
    except (TypeError, KeyError) as error:
        missing = [name for name in _REQUIRED if name not in told]
        what = f"without {missing[0]!r}" if missing else f"that cannot be read ({error})"
        raise ReplyError(f"the server sent an answer {what}; is it a server of this kind?") from error


def problem_of(told: Any, status: int = 0, retry_after_s: float | None = None) -> ProblemError:
    """Make an error from problem details; `status` is the one to tell where they have none."""
    if not isinstance(told, Mapping):
        told = {}

    def text(name: str, default: str) -> str:
        return told[name] if isinstance(told.get(name), str) else default

    number = told.get("status")
    return ProblemError(
        number if isinstance(number, int) else status,
        text("title", "a problem without a title"),
        text("detail", "the server refused, and did not say why"),
        text("field", "") or None,
        type=text("type", "about:blank"),
        retry_after_s=retry_after_s,
    )


def seconds_of(retry_after: str) -> float | None:
    """Seconds that a Retry-After header tells; None where it tells a date, or nothing."""
    return float(retry_after) if retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 10 else None


def shortened(content: Any) -> str:
    """The beginning of a reply, for a message."""
    text = repr(content)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _expected(told: Any) -> Expected:
    return Expected(told["cv_error"], told["explained_variance"], told["r2"], told.get("deviance"))


def _tuple(told: Any) -> Any:
    return tuple(told) if isinstance(told, list) else told


def _as_it_is(told: Any) -> Any:
    return told


def _converter(hint: Any) -> Callable[[Any], Any]:
    if hint is Expected:
        return _expected
    has_tuple = any(get_origin(each) is tuple for each in (hint, *get_args(hint)))
    return _tuple if has_tuple else _as_it_is


_HINTS = get_type_hints(Answer)
_CONVERT = {field.name: _converter(_HINTS[field.name]) for field in fields(Answer)}
_REQUIRED = tuple(f.name for f in fields(Answer) if f.default is MISSING and f.default_factory is MISSING)
