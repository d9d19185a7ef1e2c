"""Error frames of predictions that are not begun: the same for all but the id, and so at hand."""

from __future__ import annotations

from collections.abc import Callable

from anytime_service.errors import OverloadedError
from anytime_service.problems import problem_of
from anytime_service.wire.forms import JSON, MSGPACK, Form
from anytime_service.wire.frames import ErrorFrame

__all__ = ["Refusals"]

_STAND_IN = "\x00"


class Refusals:
    """Writes error frames.

    Parameters
    ----------
    why : makes the error.
    """

    def __init__(self, why: Callable[[], OverloadedError]) -> None:
        problem = problem_of(why())
        self._parts: dict[str, tuple[bytes, bytes]] = {}
        for form in (JSON, MSGPACK):
            before, _, after = form.encode(ErrorFrame(_STAND_IN, problem)).partition(form.encode(_STAND_IN))
            self._parts[form.name] = before, after

    def frame(self, form: Form, name: str | int) -> bytes:
        """Error frame of the prediction of that name."""
        before, after = self._parts[form.name]
        return b"".join((before, form.encode(name), after))
