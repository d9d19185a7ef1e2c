"""What can go wrong in the service, as branches of the library's tree.

AnytimeError
├── ValuesError
│   └── FieldError          one field of a request is wrong; it says which
├── RegistryError           at the start: nothing to load, or two models of one name
├── UnknownModelError       a request names a model that is not here
├── MalformedBodyError      a body that is not the JSON expected
├── BodyTooLargeError       a body above the limit
├── ContentTypeError        a body in a form that is not read here
└── OutOfTurnError          an event that an open prediction cannot take in its state

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
    "MalformedBodyError",
    "OutOfTurnError",
    "RegistryError",
    "UnknownModelError",
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


class MalformedBodyError(AnytimeError):
    """A body that is not the JSON expected; `field` is the place, where one is known."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class BodyTooLargeError(AnytimeError):
    """A body above the limit."""


class ContentTypeError(AnytimeError):
    """A body in a form that is not read here."""


class OutOfTurnError(AnytimeError):
    """An event that an open prediction cannot take in its state; nothing has changed."""


class AddressError(OSError):
    """The server cannot listen where it was told to."""
