"""Exceptions of the service: subclasses of the library's `AnytimeError`.

`FieldError` is also a `ValuesError`. `RegistryError`, `KeysError` and `CertificateError` occur at the start or on a
reload, the others in requests. `AddressError` is an OSError: the call was valid, but the address is in use or not
available. `schemas/problem.py` alone maps the exceptions to HTTP responses.
"""

from __future__ import annotations

from anytime.errors import AnytimeError, ValuesError


class FieldError(ValuesError):
    """An invalid value in a request; `field` names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class RegistryError(AnytimeError):
    """The set of models to serve is invalid."""


class UnknownModelError(AnytimeError):
    """A request names a model that is not loaded."""

    field = "model"


class SessionError(AnytimeError):
    """A request names a session that is not usable."""

    field = "session"


class UnknownSessionError(SessionError):
    """A request names a session that never existed."""


class GoneSessionError(SessionError):
    """A request names a session that was deleted or has expired."""


class SessionsUnreachableError(AnytimeError):
    """The session store does not answer; `why` is the reason in words that clients may read."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the session store is unavailable: {why}; retry in a second, repeated requests are safe")
        self.why = why


class MissingVersionError(SessionError):
    """A session began with a version of a model that is not loaded; another replica may have it."""


class DamagedSessionError(SessionError):
    """The stored content of a session is invalid."""


class MalformedBodyError(AnytimeError):
    """A body or message is not the expected JSON or MessagePack; `field` is the place of the error, if known."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class BodyTooLargeError(AnytimeError):
    """A body exceeds the limit."""


class ContentTypeError(AnytimeError):
    """The content type of a body is not supported."""


class KeysError(AnytimeError, ValueError):
    """Keys are missing or invalid; no message contains a key."""


class CertificateError(AnytimeError):
    """A certificate, its key or the file of certificate authorities is invalid."""


class InvalidKeyError(AnytimeError):
    """A request has no valid API key; `presented` is true if it has an invalid one."""

    def __init__(self, message: str, *, presented: bool = False) -> None:
        super().__init__(message)
        self.presented = presented


class KeyScopeError(AnytimeError):
    """The scope of the key does not allow the request."""


class OriginError(AnytimeError):
    """A request comes, or may come, from a page of another site."""


class UnexpectedEventError(AnytimeError):
    """An open prediction does not accept an event in its state; the state is unchanged."""


class OverloadedError(AnytimeError):
    """The server is overloaded, a limit is exceeded, or the server is stopping; another replica may answer.

    `field` names the refused part if it is not the complete request; `retry_after_s` is when to retry.
    """

    def __init__(self, message: str, field: str | None = None, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.field = field
        self.retry_after_s = retry_after_s


class RequestTimeoutError(AnytimeError):
    """A request did not arrive in time; the connection closes."""


class HeadTooLargeError(AnytimeError):
    """The head of a request exceeds the limit; the connection closes."""


class TransferCodingError(AnytimeError):
    """A body has a transfer coding other than chunked; the connection closes."""


class SubprotocolError(AnytimeError):
    """A WebSocket client offers no supported subprotocol."""


class UpgradeRequiredError(AnytimeError):
    """A plain HTTP request to the WebSocket's route."""


class AddressError(OSError):
    """The server cannot listen on the configured address."""
