"""Clients of the service: `Client` for threads and `AsyncClient` for event loops, with the same methods.

    with Client("http://127.0.0.1:8000") as client:
        answer = client.run({"hog": hog, "speed": speed}, image, deadline_ms=20)

This package does not import the server. It imports each name below on first use, so that the error for a missing
package is one line.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from anytime_service.client.errors import (
    ClientError,
    ClosedError,
    ConnectionLostError,
    NoAnswerError,
    ProblemError,
    ReplyError,
    RequirementError,
)

if TYPE_CHECKING:
    from anytime_service.client.client import AsyncClient, AsyncSession, Client, Session
    from anytime_service.schemas.catalogue import ModelCard, ModelSummary, Plan

__all__ = [
    "AsyncClient",
    "AsyncSession",
    "Client",
    "ClientError",
    "ClosedError",
    "ConnectionLostError",
    "ModelCard",
    "ModelSummary",
    "NoAnswerError",
    "Plan",
    "ProblemError",
    "ReplyError",
    "RequirementError",
    "Session",
]

_REQUIREMENTS = ("httpx", "msgspec", "websockets")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.client"), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _REQUIREMENTS:
            raise
        raise RequirementError(f"the client needs {missing}; pip install 'anytime-linear[client]'") from error
