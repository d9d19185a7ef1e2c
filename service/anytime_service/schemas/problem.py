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


class ProblemKind(NamedTuple):
    """A kind of problem: the end of its type, its title and its status."""

    slug: str
    title: str
    status: int


KINDS: Mapping[type[Exception], ProblemKind] = {
    MalformedBodyError: ProblemKind("malformed-body", "The body cannot be read", 400),
    SubprotocolError: ProblemKind("subprotocol", "The protocol is another", 400),
    KeyNeededError: ProblemKind("key-needed", "A key is needed that holds", 401),
    RightError: ProblemKind("right", "The key does not allow this", 403),
    OriginError: ProblemKind("foreign-origin", "The request comes from another site", 403),
    UnknownModelError: ProblemKind("unknown-model", "There is no such model", 404),
    UnknownSessionError: ProblemKind("unknown-session", "There is no such session", 404),
    SlowRequestError: ProblemKind("slow-request", "The request has not come in time", 408),
    ArtifactError: ProblemKind("unloadable-model", "The model cannot be loaded", 409),
    RegistryError: ProblemKind("unloadable-model", "The model cannot be loaded", 409),
    OutOfTurnError: ProblemKind("out-of-turn", "The prediction cannot take this now", 409),
    GoneSessionError: ProblemKind("gone-session", "The session has ended", 410),
    BodyTooLargeError: ProblemKind("body-too-large", "The body is too large", 413),
    ContentTypeError: ProblemKind("content-type", "The body is in a form that is not read here", 415),
    ValuesError: ProblemKind("unusable-values", "A value cannot be used", 422),
    GroupsError: ProblemKind("unusable-values", "A value cannot be used", 422),
    UpgradeRequiredError: ProblemKind("upgrade-required", "This route speaks WebSocket", 426),
    HeadTooLargeError: ProblemKind("head-too-large", "The head of the request is too large", 431),
    DamagedSessionError: ProblemKind("damaged-session", "The session cannot be used", 500),
    OverloadedError: ProblemKind("overloaded", "Too much is under way", 503),
    SessionsUnreachableError: ProblemKind("sessions-unreachable", "Sessions cannot be reached", 503),
    MissingVersionError: ProblemKind("missing-version", "The session's model is not on this replica", 503),
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
