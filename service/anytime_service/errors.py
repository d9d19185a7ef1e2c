"""What can go wrong in the service, as branches of the library's tree.

AnytimeError
├── ValuesError
│   └── FieldError          one field of a request is wrong; it says which
├── RegistryError           at the start: nothing to load, or two models of one name
├── UnknownModelError       a request names a model that is not here
├── UnknownSessionError     a request names a session that never was
├── GoneSessionError        a request names a session that has been deleted, or expired
├── MalformedBodyError      a body or message that is not the JSON or MessagePack expected
├── BodyTooLargeError       a body above the limit
├── ContentTypeError        a body in a form that is not read here
├── OutOfTurnError          an event that an open prediction cannot take in its state
├── OverloadedError         too much is asked for, open or held already, or the service is stopping
├── SlowRequestError        a request that has not come in time
├── HeadTooLargeError       a request whose head is above the limit
├── SubprotocolError        a WebSocket that speaks another protocol than ours
└── UpgradeRequiredError    a plain request to the WebSocket's route

AddressError (an OSError) is no such mistake: the call was right and the address was taken. What HTTP makes of each is
in `problems.py`, nowhere else.
"""

from __future__ import annotations

from anytime.errors import AnytimeError, ValuesError

__all__ = [
    "AddressError",
    "BodyTooLargeError",
    "ContentTypeError",
    "FieldError",
    "GoneSessionError",
    "HeadTooLargeError",
    "MalformedBodyError",
    "OutOfTurnError",
    "OverloadedError",
    "RegistryError",
    "SlowRequestError",
    "SubprotocolError",
    "UnknownModelError",
    "UnknownSessionError",
    "UpgradeRequiredError",
]


class FieldError(ValuesError):
    """A value that a request cannot have, and the field that has it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class RegistryError(AnytimeError):
    """The models to serve cannot be put together."""


class UnknownModelError(AnytimeError):
    """A request names a model that is not here."""

    field = "model"


class UnknownSessionError(AnytimeError):
    """A request names a session that never was."""

    field = "session"


class GoneSessionError(AnytimeError):
    """A request names a session that has been deleted, or expired."""

    field = "session"


class MalformedBodyError(AnytimeError):
    """A body or message that is not the JSON or MessagePack expected; `field` is the place, where one is known."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class BodyTooLargeError(AnytimeError):
    """A body above the limit."""


class ContentTypeError(AnytimeError):
    """A body in a form that is not read here."""


class OutOfTurnError(AnytimeError):
    """An event that an open prediction cannot take in its state; nothing has changed."""


class OverloadedError(AnytimeError):
    """Too much is asked for, open or held already, or the service is stopping; another replica may answer.

    `field` is what is refused, where it is not the whole; `retry_after_s` when to ask again.
    """

    def __init__(self, message: str, field: str | None = None, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.field = field
        self.retry_after_s = retry_after_s


class SlowRequestError(AnytimeError):
    """A request that has not come in time; the connection closes."""


class HeadTooLargeError(AnytimeError):
    """A request whose head is above the limit; the connection closes."""


class SubprotocolError(AnytimeError):
    """A WebSocket that speaks another protocol than ours."""


class UpgradeRequiredError(AnytimeError):
    """A plain request to the WebSocket's route."""


class AddressError(OSError):
    """The server cannot listen where it was told to."""
