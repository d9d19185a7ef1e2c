"""The exceptions of the library, and the words that their messages share.

Every message states in one line what was received, what was expected and what to do::

    AnytimeError                root of every error that this library raises deliberately
    |-- EnvironmentFailure      the network, the disk, memory or a worker failed: the same call may succeed later
    |-- ExtractorError          an extractor failed, or the selected worker does not support it
    `-- and also ValueError     the call or one of its files is invalid:
        |-- GroupsError         a groups file, or one that does not fit the table
        |-- TableError          data: unreadable, empty, text where numbers belong, no target
        |-- TrainingError       options or data that training does not support
        |-- ArtifactError       a model or moments file
        `-- ValuesError         an argument of a prediction
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from heapq import nlargest
from typing import ClassVar


class AnytimeError(Exception):
    """Root of every error that this library raises deliberately.

    Messages are written with the options of the command line, and read with the parameters of Python (`in_python`),
    unless the command line runs.
    """

    names_flags: ClassVar[bool] = False

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.names_flags else in_python(text)


class AnytimeWarning(UserWarning):
    """A remark of training on rows, columns or a fit, with its remedy; the estimators issue it."""


class EnvironmentFailure(AnytimeError):  # noqa: N818  (what failed is not the call)
    """Failure of the network, the disk, memory or a worker, so that the same call may succeed later."""


class GroupsError(AnytimeError, ValueError):
    """Invalid groups file, or one that does not fit the table."""


class TableError(AnytimeError, ValueError):
    """Unreadable or unusable data: empty, text where numbers belong, no target."""


class TrainingError(AnytimeError, ValueError):
    """Options or data that training does not support."""


class ArtifactError(AnytimeError, ValueError):
    """Invalid or unsupported model file: truncated, modified, of another kind, newer than this library."""


class ValuesError(AnytimeError, ValueError):
    """Invalid argument of a prediction: group, values, budget, policy; the prediction is unchanged."""


class ExtractorError(AnytimeError):
    """Failed extractor, or one that the selected worker does not support."""


IN_PYTHON = {
    " (--drop)": " of X",
    "--task multiclass": "AnytimeClassifier",
    "--task regression": "AnytimeRegressor",
    "--missing-target drop": "drop_missing=True",
    "--no-moments": "keep_moments=False",
    "--data TABLE": "data=",
    "by --text, --number or `types`": "by `types`",
}
"""What replaces options that have no parameter of their name."""

VALUED = "alpha|basis|clamp|class-weight|decimal|family|folds|min-level-rows|pairs|policy|separator|thousands"
"""Options that texts name with a value, as `--clamp 0.01`, or as what the library measured with: `--folds 5`."""


def in_python(text: str) -> str:
    """Return a text that names options of the command line with the parameters of Python instead."""
    if "--" not in text:
        return text
    for flag, words in IN_PYTHON.items():
        text = text.replace(flag, words)
    text = re.sub(r"--(?:text|number) ([^\s,;]+)", r"`types: {\1: ...}` in the groups", text)
    text = re.sub(rf"--({VALUED}) ([\d.]+|auto|cv|off|outliers|arrived|[a-z]+(?= fits|, ))", _parameter, text)
    text = re.sub(r"--(one-se|nested)\b", lambda found: f"{found[1].replace('-', '_')}=True", text)
    return re.sub(rf"--({VALUED})\b", lambda found: found[1].replace("-", "_"), text)


def _parameter(found: re.Match[str]) -> str:
    name, value = found[1].replace("-", "_").replace("folds", "cv"), found[2]
    return f"{name}={value}" if value[0].isdigit() else f'{name}="{value}"'


def environmental(error: BaseException) -> bool:
    """Return whether the system caused an exception (a full disk, for example) rather than a wrong path or content."""
    wrong_path = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
    wrong_call = (None, errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG)
    return isinstance(error, OSError) and not isinstance(error, wrong_path) and error.errno not in wrong_call


def file_error(kind: type[AnytimeError], doing: str, error: OSError, remedy: str = "") -> AnytimeError:
    """Return the error for a file operation that failed; `doing` is "read 'm.safetensors'", for example.

    It is of this `kind`, or EnvironmentFailure if the system caused it.
    """
    found = EnvironmentFailure if environmental(error) else kind
    return found(f"cannot {doing}: {reason_of(error)}{remedy}")


def reason_of(error: OSError) -> str:
    """Return why a file operation failed, in lower case; Arrow has the system's words after its own."""
    return re.sub(r"^.*detail: \[errno \d+\] ", "", (error.strerror or str(error)).lower())


def refuse(reasons: Mapping[str, bool], error: Callable[[str], AnytimeError] = TrainingError) -> None:
    """Raise an error with the first message whose condition is true."""
    for message, applies in reasons.items():
        if applies:
            raise error(message)


def listed(names: Iterable[object], limit: int = 5) -> str:
    """Return names in quotes, at most `limit` of them, with a count of the rest."""
    items = [repr(str(name)) for name in names]
    shown = ", ".join(items[:limit])
    return f"{shown} and {len(items) - limit} more" if len(items) > limit else shown


def clipped(text: str, limit: int = 60) -> str:
    """Return a text without its end if it is long: the name of a term contains a level of a text column."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


MAX_COMPARED, LONGEST_COMPARED = 32, 48
"""Names with which an unknown one is compared, and its characters: a comparison takes up to 50 us."""


def suggestion(name: str, known: Sequence[str]) -> str:
    """Return the end of a message about an unknown name: the closest known name, or the known names."""
    name, likely = name[:LONGEST_COMPARED], known
    if len(known) > MAX_COMPARED:
        letters = {*name}
        likely = nlargest(MAX_COMPARED, known, key=lambda each: len(letters & {*each}) - abs(len(each) - len(name)))
    close = get_close_matches(name, likely, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {listed(known)}"


def summary(error: BaseException) -> str:
    """Return an exception as one line of at most 300 characters."""
    text = " ".join(str(error).split())
    kind = type(error).__name__
    return f"{kind}: {text}"[:300] if text else kind


def unusable(column: str, kind: object) -> str:
    """Return the message for a column, quoted, of a type that is neither number, text nor date."""
    return (
        f"column {column} is {kind}; expected numbers, text or dates: convert it (a duration to seconds, for "
        "example), or leave the column out"
    )
