"""What can go wrong, as one tree.

AnytimeError (also a ValueError)
├── GroupsError      the groups file, or how it fits the table
├── TableError       the data: unreadable, empty, text where numbers belong, no target
├── TrainingError    a request that cannot be trained
├── ArtifactError    a model file: truncated, tampered with, foreign, newer than this library
├── ValuesError      what was handed to a prediction: group, values, budget, policy
└── ExtractorError   an extractor that failed or cannot be run in the worker asked for

Every message says in one line what was received, what was expected and what to do. `AnytimeError.environment` tells
failures of the system from mistakes in the call or its files.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

__all__ = [
    "AnytimeError",
    "ArtifactError",
    "ExtractorError",
    "GroupsError",
    "TableError",
    "TrainingError",
    "ValuesError",
    "environmental",
    "file_error",
    "listed",
    "suggestion",
    "summary",
    "unusable",
]

SUMMARY_LENGTH = 300
"""Characters kept of the message of somebody's exception."""


_WRONG_PATH = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
_WRONG_NAME = (errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG)


class AnytimeError(ValueError):
    """Root of every error this library raises on purpose.

    Attributes
    ----------
    environment : whether the network, the disk, memory or a worker failed, so that the same call may succeed later;
        otherwise the call or one of its files is invalid.
    """

    def __init__(self, *args: object, environment: bool = False) -> None:
        super().__init__(*args)
        self.environment = environment


class GroupsError(AnytimeError):
    """The groups file is wrong, or does not fit the table."""


class TableError(AnytimeError):
    """The data cannot be read or used as asked."""


class TrainingError(AnytimeError):
    """The options do not go together, or the data cannot answer them."""


class ArtifactError(AnytimeError):
    """A model file cannot be trusted or understood."""


class ValuesError(AnytimeError):
    """A prediction was handed something it cannot use; it stays as it was."""


class ExtractorError(AnytimeError):
    """An extractor failed, or cannot run in the worker asked for."""


def environmental(error: BaseException) -> bool:
    """Return whether an exception is the system's failure, such as a full disk, rather than a wrong path or content."""
    if not isinstance(error, OSError) or error.errno is None:
        return False
    return not isinstance(error, _WRONG_PATH) and error.errno not in _WRONG_NAME


def file_error(kind: type[AnytimeError], doing: str, error: OSError, remedy: str = "") -> AnytimeError:
    """Return the error of a file operation, such as "read 'm.safetensors'", that the system refused."""
    reason = (error.strerror or str(error)).lower()
    return kind(f"cannot {doing}: {reason}{remedy}", environment=environmental(error))


def listed(names: Iterable[object], limit: int = 5) -> str:
    """Names in quotes, at most `limit` of them, with a count of the rest."""
    items = [repr(str(name)) for name in names]
    shown = ", ".join(items[:limit])
    return f"{shown} and {len(items) - limit} more" if len(items) > limit else shown


def suggestion(name: str, known: Sequence[str]) -> str:
    """End of a message about an unknown name: the nearest known one, or the known ones."""
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {listed(known)}"


def summary(error: BaseException) -> str:
    """Put an exception in one line."""
    text = " ".join(str(error).split())
    kind = type(error).__name__
    return f"{kind}: {text}"[:SUMMARY_LENGTH] if text else kind


def unusable(column: str, kind: object, *, numeric: bool) -> str:
    """Return what to say of a column whose type has no values to learn from, such as dates.

    Parameters
    ----------
    column : its name or names, quoted.
    kind : its type.
    numeric : whether numbers are required; text is accepted otherwise, as a target or a query.
    """
    expected = "numbers" if numeric else "numbers or text"
    return (
        f"column {column} is {kind}; expected {expected}: convert it (a date to days since a fixed date, for example), "
        "or leave the column out"
    )
