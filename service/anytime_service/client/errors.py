"""What can go wrong for a client, as a branch of the library's tree.

AnytimeError
└── ClientError              what only a client can meet; also raised as itself, for a call that cannot be made
    ├── ClosedError          the client is closed, or was made before a fork
    ├── ConnectionLostError  the server cannot be reached, or went away (also a ConnectionError)
    ├── NoAnswerError        no reply within the client's own time-out (also a TimeoutError)
    ├── ProblemError         the server refused: problem details (RFC 9457)
    ├── ReplyError           a reply that is not what a server of this kind sends
    └── RequirementError     a package of the `client` extra is missing (also an ImportError)

What a caller hands over wrongly is told as everywhere in the library: ValuesError, ExtractorError.
"""

from __future__ import annotations

from anytime.errors import AnytimeError

__all__ = [
    "ClientError",
    "ClosedError",
    "ConnectionLostError",
    "NoAnswerError",
    "ProblemError",
    "ReplyError",
    "RequirementError",
]


OVERLOADED = "urn:anytime:problem:overloaded"


class ClientError(AnytimeError):
    """A call that the client cannot make, or that came to nothing."""


class ClosedError(ClientError):
    """The client is closed, or belongs to another process or event loop; make another."""


class ConnectionLostError(ClientError, ConnectionError):
    """The server cannot be reached, or went away; the next call connects again."""


class NoAnswerError(ClientError, TimeoutError):
    """No reply came within the client's own time-out."""


class ProblemError(ClientError):
    """The server refused, and says why.

    Attributes
    ----------
    status : HTTP status of the problem, also where it came over a WebSocket.
    title : what kind of problem it is.
    detail : what came, what was expected, what to do.
    field : the parameter or place in the body that is wrong; None where none is named.
    type : URI of the kind of problem.
    retry_after_s : seconds to wait before another try, where the server says so.
    """

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        field: str | None = None,
        *,
        type: str = "about:blank",  # noqa: A002  (its name in RFC 9457)
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(status, title, detail, field)
        self.status = status
        self.title = title
        self.detail = detail
        self.field = field
        self.type = type
        self.retry_after_s = retry_after_s

    @property
    def overloaded(self) -> bool:
        """Whether a prediction was refused because the server has too much to do."""
        return self.type == OVERLOADED and self.field is None

    def __str__(self) -> str:
        return f"{self.detail or self.title} ({self.status})"


class ReplyError(ClientError):
    """A reply that cannot be understood: another kind of server, or something in between."""


class RequirementError(ClientError, ImportError):
    """A package that the client needs is not installed."""
