"""Problem details (RFC 9457), and the kind and HTTP status of every error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from anytime.errors import ArtifactError, GroupsError, ValuesError
from anytime_service import errors

MEDIA_TYPE = "application/problem+json"


class ProblemKind(NamedTuple):
    """A kind of problem: the end of its type, its title and its status."""

    slug: str
    title: str
    status: int


KINDS: Mapping[type[Exception], ProblemKind] = {
    errors.MalformedBodyError: ProblemKind("malformed-body", "Malformed body or message", 400),
    errors.SubprotocolError: ProblemKind("subprotocol", "Unsupported subprotocol", 400),
    errors.InvalidKeyError: ProblemKind("key-needed", "Missing or invalid API key", 401),
    errors.KeyScopeError: ProblemKind("right", "Insufficient scope of the API key", 403),
    errors.OriginError: ProblemKind("foreign-origin", "Origin not allowed", 403),
    errors.UnknownModelError: ProblemKind("unknown-model", "Unknown model", 404),
    errors.UnknownSessionError: ProblemKind("unknown-session", "Unknown session", 404),
    errors.RequestTimeoutError: ProblemKind("slow-request", "Request timeout", 408),
    ArtifactError: ProblemKind("unloadable-model", "Model loading failed", 409),
    errors.RegistryError: ProblemKind("unloadable-model", "Model loading failed", 409),
    errors.UnexpectedEventError: ProblemKind("out-of-turn", "Message not allowed in this state of the prediction", 409),
    errors.GoneSessionError: ProblemKind("gone-session", "The session has ended", 410),
    errors.BodyTooLargeError: ProblemKind("body-too-large", "The body is too large", 413),
    errors.ContentTypeError: ProblemKind("content-type", "Unsupported content type or encoding", 415),
    ValuesError: ProblemKind("unusable-values", "Invalid value", 422),
    GroupsError: ProblemKind("unusable-values", "Invalid value", 422),
    errors.UpgradeRequiredError: ProblemKind("upgrade-required", "WebSocket required", 426),
    errors.HeadTooLargeError: ProblemKind("head-too-large", "The head of the request is too large", 431),
    errors.DamagedSessionError: ProblemKind("damaged-session", "Damaged session", 500),
    errors.TransferCodingError: ProblemKind("transfer-coding", "Unsupported transfer coding", 501),
    errors.OverloadedError: ProblemKind("overloaded", "The server is overloaded", 503),
    errors.SessionsUnreachableError: ProblemKind("sessions-unreachable", "The session store is unreachable", 503),
    errors.MissingVersionError: ProblemKind(
        "missing-version", "The session's model is not loaded on this replica", 503
    ),
}
"""The kind of each error; the nearest base class applies. An error without a kind is a server failure: 500."""


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Problem details.

    `field` is the invalid parameter, header or place in the body; `request_id` identifies a failed request in the
    server's log.
    """

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    request_id: str | None = None
