"""Problem details (RFC 9457), and the HTTP status of every error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from anytime.errors import ArtifactError, GroupsError, ValuesError
from anytime_service.errors import (
    BodyTooLargeError,
    ContentTypeError,
    DamagedSessionError,
    GoneSessionError,
    HeadTooLargeError,
    KeyNeededError,
    MalformedBodyError,
    MissingVersionError,
    OriginError,
    OutOfTurnError,
    OverloadedError,
    RegistryError,
    RightError,
    SessionsUnreachableError,
    SlowRequestError,
    SubprotocolError,
    UnknownModelError,
    UnknownSessionError,
    UpgradeRequiredError,
)

__all__ = ["KINDS", "MEDIA_TYPE", "Problem"]


MEDIA_TYPE = "application/problem+json"


class Kind(NamedTuple):
    """A kind of problem: the end of its type, its title and its status."""

    slug: str
    title: str
    status: int


KINDS: Mapping[type[Exception], Kind] = {
    MalformedBodyError: Kind("malformed-body", "The body cannot be read", 400),
    SubprotocolError: Kind("subprotocol", "The protocol is another", 400),
    KeyNeededError: Kind("key-needed", "A key is needed that holds", 401),
    RightError: Kind("right", "The key does not allow this", 403),
    OriginError: Kind("foreign-origin", "The request comes from another site", 403),
    UnknownModelError: Kind("unknown-model", "There is no such model", 404),
    UnknownSessionError: Kind("unknown-session", "There is no such session", 404),
    SlowRequestError: Kind("slow-request", "The request has not come in time", 408),
    ArtifactError: Kind("unloadable-model", "The model cannot be loaded", 409),
    RegistryError: Kind("unloadable-model", "The model cannot be loaded", 409),
    OutOfTurnError: Kind("out-of-turn", "The prediction cannot take this now", 409),
    GoneSessionError: Kind("gone-session", "The session has ended", 410),
    BodyTooLargeError: Kind("body-too-large", "The body is too large", 413),
    ContentTypeError: Kind("content-type", "The body is in a form that is not read here", 415),
    ValuesError: Kind("unusable-values", "A value cannot be used", 422),
    GroupsError: Kind("unusable-values", "A value cannot be used", 422),
    UpgradeRequiredError: Kind("upgrade-required", "This route speaks WebSocket", 426),
    HeadTooLargeError: Kind("head-too-large", "The head of the request is too large", 431),
    DamagedSessionError: Kind("damaged-session", "The session cannot be used", 500),
    OverloadedError: Kind("overloaded", "Too much is under way", 503),
    SessionsUnreachableError: Kind("sessions-unreachable", "Sessions cannot be reached", 503),
    MissingVersionError: Kind("missing-version", "The session's model is not on this replica", 503),
}
"""Our own errors; the nearest class counts. What is not here is a fault of the server: 500."""


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Problem details.

    `field` is the parameter, header or place in the body that is wrong; `request_id` is by what the server's log knows
    a request that it failed on.
    """

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    request_id: str | None = None
