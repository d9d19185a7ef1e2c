"""Text files, and safetensors files: arrays, and a record stored as JSON in the metadata. They never contain code.

A file is written under a temporary name in the same folder and then renamed, so readers never see a partial file.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from select import select
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, deserialize
from safetensors.numpy import load as parse_tensors, save as serialise

from anytime.errors import AnytimeError, ArtifactError, file_error, refuse

Arrays = Mapping[str, NDArray[Any]]

Record = TypeVar("Record", bound=BaseModel)

WHOLE = ("columns", "ends", "prefixes", "rows", "missing")
"""Arrays of whole numbers, by the last part of their name; the others are of floats."""


class FileKind(NamedTuple):
    """The metadata entry that stores the record of such files, and the words that error messages use for them.

    `record` is what it is called, and `remedy` advice for a damaged file.
    """

    key: str
    what: str
    command: str
    remedy: str
    record: str = "record"


def write(path: Path, kind: FileKind, record: str, arrays: Arrays) -> None:
    """Write a file atomically; raise ArtifactError if that fails, or an array contains a number that is not finite."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ArtifactError(
                f"the {kind.what}'s array {name!r} contains numbers that are not finite; it was not saved"
            )
    try:
        write_atomically(
            path, serialise({name: np.ascontiguousarray(array) for name, array in arrays.items()}, {kind.key: record})
        )
    except OSError as error:
        raise file_error(ArtifactError, f"write {str(path)!r}", error) from error


def check_writable(path: Path | None, suffixes: Sequence[str] = ()) -> None:
    """Raise AnytimeError if the path, if any, does not accept a new file, or its suffix in lower case is not listed."""
    if path is None:
        return
    what, ends = f"cannot write {str(path)!r}", bool(suffixes) and path.suffix.lower() not in suffixes
    refuse(
        {
            f"{what}; expected a name that ends in {' or '.join(suffixes)}": ends,
            f"{what}: there is no directory {str(path.parent)!r}": not path.parent.is_dir(),
            f"{what}: it is a directory": path.is_dir(),
            f"{what}: no permission to write in {str(path.parent)!r}": not os.access(path.parent, os.W_OK),
        },
        AnytimeError,
    )


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file in the same folder, which is renamed when the block ends without an error."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    temporary.open("xb").close()
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a temporary file and rename it, so that the file is either complete or unchanged."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a command by default: by the system, or when its terminal closes."""


class _Ended(BaseException):
    """The process received a signal that ends it."""


@contextmanager
def cleanup_on(*signals: signal.Signals) -> Iterator[None]:
    """Run the cleanup of the enclosed block when the process receives a signal, then end the process by this signal.

    Signals that the process ignores or handles stay as they are.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handled = [each for each in signals if is_main and signal.getsignal(each) is signal.SIG_DFL]

    def end(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # the cleanup is short
        raise _Ended(number)

    with ExitStack() as handlers:
        for each in handled:
            signal.signal(each, end)
            handlers.callback(signal.signal, each, signal.SIG_DFL)
        try:
            yield
        except _Ended as error:
            handlers.close()
            signal.raise_signal(error.args[0])


def read_text(path: Path, what: str, kind: type[AnytimeError], remedy: str = "") -> str:
    """Return the text of a UTF-8 file, with or without a byte order mark; if that fails, `kind` names it by `what`."""
    try:
        return _content(path, what, kind, remedy).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise kind(f"cannot read {what}: it is not text") from error


PIPE_S = 10.0
"""Seconds without data after which a pipe is given up."""


def is_pipe(path: Path) -> bool:
    """Return whether a path is neither a file nor a folder but, say, a pipe, which can be read only once."""
    return os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))  # `Path.exists` may raise


def _content(path: Path, what: str, kind: type[AnytimeError], remedy: str = "") -> bytes:
    """Return the content of a file or a pipe; if that fails, `kind` names it by `what`."""
    try:
        return _sent(path) if is_pipe(path) else path.read_bytes()
    except OSError as error:
        raise file_error(kind, f"read {what}", error, remedy) from error
    except ValueError as error:  # the operating system rejects the name
        raise kind(f"cannot read {what}: {error}") from error


def _sent(path: Path) -> bytes:
    """Return the content of a pipe, which has to send within `PIPE_S`; raise OSError otherwise."""
    content, last = b"", time.monotonic()
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # without a writer, an ordinary `open` waits for ever
    try:
        while select([pipe], [], [], PIPE_S)[0] and time.monotonic() < last + PIPE_S:
            if part := os.read(pipe, 1 << 20):
                content, last = content + part, time.monotonic()
            elif content:
                return content
            else:
                time.sleep(0.01)  # no writer yet
    finally:
        os.close(pipe)
    raise OSError(f"the pipe sends nothing for {PIPE_S:g} s; write to it, or give a file")


def read(path: Path, kind: FileKind, form: type[Record]) -> tuple[Record, dict[str, NDArray[Any]]]:
    """Return the record and the arrays of a file; the caller checks these.

    Raise ArtifactError if it is missing, damaged or of another kind, or its format is not that of `form`.
    """
    content = _content(path, repr(str(path)), ArtifactError)
    try:
        deserialize(content)  # type: ignore[no-untyped-call]  # checks the container, for any dtype of the arrays
        # eight bytes of length, then a JSON header
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        metadata: dict[str, str] = header.get("__metadata__") or {}
        arrays = parse_tensors(content) if kind.key in metadata else {}
    except (SafetensorError, ValueError, KeyError, RecursionError) as error:
        raise ArtifactError(f"{str(path)!r} is not a complete safetensors file ({error}); {kind.remedy}") from error
    if kind.key not in metadata:
        raise ArtifactError(f"{str(path)!r} is a safetensors file of another kind; expected one from '{kind.command}'")
    try:
        return _checked_record(metadata[kind.key], kind, form), arrays
    except ArtifactError as error:
        raise ArtifactError(f"{str(path)!r} {error}") from error.__cause__


def _checked_record(text: str, kind: FileKind, form: type[Record]) -> Record:
    try:
        number = json.loads(text)["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(f"has a {kind.record} that this library did not write; {kind.remedy}") from error
    known, is_number = form.model_fields["format"].default, type(number) is int and number >= 1
    refuse(
        {
            f"has format {number!r}; expected {known}: {kind.remedy}": not is_number,
            f"has format {number}; this library reads up to {known}: install a newer anytime-linear": (
                is_number and number > known
            ),
        },
        ArtifactError,
    )
    try:
        return form.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        why = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"].lower()
        raise ArtifactError(f"has a damaged {kind.record} ({where}: {why}); {kind.remedy}") from error


def dtype_of(name: str) -> type[np.int64] | type[np.float64]:
    """Return the type of the numbers of a stored array."""
    return np.int64 if name.rpartition(".")[2] in WHOLE else np.float64


def check_arrays(arrays: Arrays, shapes: Mapping[str, tuple[int, ...]], kind: FileKind) -> None:
    """Raise ArtifactError, without the path, unless arrays of these shapes are there, and their numbers finite."""
    for name, shape in shapes.items():
        if name not in arrays:
            raise ArtifactError(f"lacks array {name!r}; {kind.remedy}")
        found, expected = arrays[name], np.dtype(dtype_of(name))
        if found.shape != shape or found.dtype != expected:
            given = f"{found.dtype} of shape {found.shape}, expected {expected} of shape {shape}"
            raise ArtifactError(f"has array {name!r} as {given}; {kind.remedy}")
        if not np.isfinite(found).all():
            raise ArtifactError(f"has numbers in {name!r} that are not finite; {kind.remedy}")


def has_kind(path: Path, kind: FileKind) -> bool:
    """Return whether the header names this kind; only `read` checks the contents."""
    if is_pipe(path):
        return False
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            # safetensors reads no longer header: this is another format
            return size <= 100_000_000 and kind.key in (json.loads(file.read(size)).get("__metadata__") or ())
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return False


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the memory limit of the container, or else the memory of the machine, in bytes; None if unknown."""
    lines: list[str] = []
    # Control groups of version 2 and of version 1; "max" is no limit.
    for path in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes", "proc/meminfo"):
        with suppress(OSError):
            lines += (root / path).read_text(encoding="ascii").splitlines()
    limits = [int(line) for line in lines if line.isdigit()]
    limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")]
    return min(limits, default=None)


def created() -> str:
    """Return the creation time; SOURCE_DATE_EPOCH makes files reproducible to the byte."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    return datetime.fromtimestamp(int(epoch) if epoch.isdigit() else time.time(), UTC).isoformat(timespec="seconds")
