"""What can go wrong in the service, as branches of the library's tree.

AnytimeError
├── ValuesError
│   └── FieldError          one field of a request is wrong; it says which
├── RegistryError           at the start: nothing to load, or two models of one name
├── UnknownModelError       a request names a model that is not here
├── UnknownSessionError     a request names a session that never was
├── GoneSessionError        a request names a session that has been deleted, or expired
├── SessionsUnreachableError   sessions live elsewhere, and it does not answer
├── MissingVersionError     a session was begun with a version of a model that is not here
├── DamagedSessionError     what is kept of a session is not what was written
├── MalformedBodyError      a body or message that is not the JSON or MessagePack expected
├── BodyTooLargeError       a body above the limit
├── ContentTypeError        a body in a form that is not read here
├── KeysError               at the start: keys that are missing or cannot be read
├── CertificateError        at the start: a certificate that cannot be used
├── KeyNeededError          a request without a key that holds
├── RightError              a request for more than its key allows
├── OriginError             a request of a page of another site
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
    "CertificateError",
    "ContentTypeError",
    "DamagedSessionError",
    "FieldError",
    "GoneSessionError",
    "HeadTooLargeError",
    "KeyNeededError",
    "KeysError",
    "MalformedBodyError",
    "MissingVersionError",
    "OriginError",
    "OutOfTurnError",
    "OverloadedError",
    "RegistryError",
    "RightError",
    "SessionsUnreachableError",
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


class SessionsUnreachableError(AnytimeError):
    """Sessions live in a store that does not answer; `why`, in words for anybody."""

    def __init__(self, why: str) -> None:
        super().__init__(f"sessions cannot be reached: {why}; retry in a second, sending the same again does no harm")
        self.why = why


class MissingVersionError(AnytimeError):
    """A session was begun with a version of a model that is not here; another replica may have it."""

    field = "session"


class DamagedSessionError(AnytimeError):
    """What is kept of a session is not what was written."""

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


class KeysError(AnytimeError):
    """Keys that are missing or cannot be read; no message contains a key."""


class CertificateError(AnytimeError):
    """A certificate, its key or its authorities cannot be used."""


class KeyNeededError(AnytimeError):
    """A request without a key that holds; `presented` tells whether it had one."""

    def __init__(self, message: str, *, presented: bool = False) -> None:
        super().__init__(message)
        self.presented = presented


class RightError(AnytimeError):
    """A request for more than its key allows."""


class OriginError(AnytimeError):
    """A request that comes from a page of another site, or may."""


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
