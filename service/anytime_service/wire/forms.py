"""The two forms of every message, and how a message that cannot be read is told."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from anytime_service.errors import BodyTooLargeError, MalformedBodyError

__all__ = ["JSON", "MSGPACK", "PACK", "Decoder", "Form", "located", "of_group", "read", "too_large"]


PACK = "send MessagePack with packed values (bytes and a dtype), or fewer rows or groups at once"
"""What to do about lists of values that are too large."""


class Decoder(Protocol):
    """Reads messages of one type."""

    def decode(self, content: bytes | str, /) -> Any:
        """Read one message."""


@dataclass(frozen=True)
class Form:
    """One way of writing messages."""

    name: str
    media_type: str
    encode: Callable[[Any], bytes]


JSON = Form("JSON", "application/json", msgspec.json.Encoder().encode)
MSGPACK = Form("MessagePack", "application/msgpack", msgspec.msgpack.Encoder().encode)


def read(form: Form, decoder: Decoder, content: bytes | str, what: str = "the body") -> Any:
    """Read a message.

    Raises
    ------
    MalformedBodyError
        It is not of this form, or not of this shape; the message names the place.
    """
    try:
        return decoder.decode(content)
    except msgspec.ValidationError as error:
        message, place = located(error)
        raise MalformedBodyError(f"{place or what}: {message}", place or None) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedBodyError(f"{what} is not {form.name}: {error}") from error
    except RecursionError as error:
        raise MalformedBodyError(
            f"{what} is nested too deeply; values are lists of numbers, or lists of such lists"
        ) from error


def too_large(what: str, most: int) -> BodyTooLargeError:
    """Return the error for lists of values that are too large; packed values may be larger."""
    return BodyTooLargeError(f"{what}; expected at most {most}; {PACK}")


def of_group(error: MalformedBodyError, group: str | None) -> MalformedBodyError:
    """Name the group, if it is known, in an error about `values`."""
    if group is None or error.field is None or not error.field.startswith("values"):
        return error
    return MalformedBodyError(f"group {group!r}: {error}", f"groups.{group}{error.field.removeprefix('values')}")


def located(error: msgspec.ValidationError) -> tuple[str, str]:
    """Message of a decoder, and the place it names: "Expected `int` - at `$.rows`" is about `rows`."""
    match = re.fullmatch(r"(.*?)(?: - at `(?:key` in `)?\$\.?(.*)`)?", str(error), re.DOTALL)
    message, place = (match[1], match[2] or "") if match else (str(error), "")
    return message[:1].lower() + message[1:], place
