"""Errors of the client, a branch of the library's exception tree.

AnytimeError
└── ClientError              base class; also raised itself for an invalid call
    ├── ClosedError          the client is closed, or was created before a fork
    ├── ConnectionLostError  the server is unreachable, or the connection broke (also a ConnectionError)
    ├── NoAnswerError        no reply within the client's timeout (also a TimeoutError)
    ├── ProblemError         the server refused the request: problem details (RFC 9457)
    ├── ReplyError           the reply is not valid for this protocol
    └── RequirementError     a package of the `client` extra is missing (also an ImportError)

Invalid arguments raise the same errors as in the library: ValuesError, ExtractorError.
"""

from __future__ import annotations

from anytime.errors import AnytimeError

OVERLOADED = "urn:anytime:problem:overloaded"


class ClientError(AnytimeError):
    """An invalid call, or a call that failed; its `args` make the same error again, for another caller."""


class ClosedError(ClientError):
    """The client is closed, or belongs to another process or event loop; create a new one."""


class ConnectionLostError(ClientError, ConnectionError):
    """The server is unreachable, or the connection broke; the next call reconnects."""


class NoAnswerError(ClientError, TimeoutError):
    """No reply arrived within the client's timeout."""


class ProblemError(ClientError):
    """A refusal by the server, with its reason.

    Attributes
    ----------
    status : int
        HTTP status of the problem, also for a problem received over a WebSocket.
    title : str
        Short description of the kind of problem.
    detail : str
        What the server received, what it expected, what to do.
    field : str | None
        The invalid parameter or position in the body; None if the server names none.
    type : str
        URI of the kind of problem.
    retry_after_s : float | None
        Seconds to wait before a retry; None if the server does not state them.
    """

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        field: str | None = None,
        type: str = "about:blank",  # noqa: A002  (its name in RFC 9457)
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(status, title, detail, field, type, retry_after_s)
        self.status = status
        self.title = title
        self.detail = detail
        self.field = field
        self.type = type
        self.retry_after_s = retry_after_s

    @property
    def refuses_key(self) -> bool:
        """Whether the key is missing, invalid or removed: the network is not the cause, so the next call fails too."""
        return self.status in (401, 403)

    @property
    def overloaded(self) -> bool:
        """Whether the server refused a prediction because it is overloaded."""
        return self.type == OVERLOADED and self.field is None

    def __str__(self) -> str:
        return f"{self.detail or self.title} ({self.status})"


class ReplyError(ClientError):
    """An invalid reply: the address belongs to a different kind of server, or to a proxy."""


class RequirementError(ClientError, ImportError):
    """A package that the client needs is not installed."""
