"""Checkpoints of a long pass over a table: the moments so far, in a file from which the next run resumes.

The same rows arrive in the same order and in the same folds, so an interrupted and resumed pass gives the same result
as an uninterrupted one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from anytime._files import FileKind, read, write
from anytime.errors import ArtifactError
from anytime.moments.files import packed, unpacked
from anytime.moments.moments import Moments

__all__ = [
    "EVERY_S",
    "Checkpoint",
    "CheckpointState",
]

EVERY_S = 30.0
"""Seconds between two writes; at most this much reading is repeated after an interruption."""

FORMAT = 1

KIND = FileKind("anytime.checkpoint", "checkpoint", "anytime train --checkpoint", "remove it to start again")


class CheckpointState(NamedTuple):
    """State of a pass: the row of the table that it has reached, and the moments of each fold up to it."""

    row: int
    parts: list[Moments]


class Checkpoint:
    """A file that records the state of a pass.

    Parameters
    ----------
    path : the file; it need not exist.
    every_s : seconds between two writes.
    """

    def __init__(self, path: Path, every_s: float = EVERY_S) -> None:
        self.path, self._every_s = path, every_s
        self._identity: Mapping[str, Any] = {}
        self._saved = time.monotonic()

    def begin(self, identity: Mapping[str, Any], features: int, responses: int) -> CheckpointState | None:
        """Start a pass; return the state of an earlier identical pass, or None.

        Parameters
        ----------
        identity : everything that determines the result, by name, as JSON values; includes `folds`.

        Raises
        ------
        ArtifactError
            The file belongs to another pass, or is damaged.
        """
        self._identity = json.loads(json.dumps(identity))
        self._saved = time.monotonic()
        if not self.path.exists():
            return None
        text, arrays = read(self.path, KIND)
        try:
            found = json.loads(text)
            number, known, row = found["format"], found["identity"], found["row"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._damaged() from error
        if number != FORMAT:
            raise ArtifactError(f"{str(self.path)!r} has format {number}; expected {FORMAT}: {KIND.remedy}")
        if not isinstance(known, dict) or type(row) is not int or row < 0:
            raise self._damaged()
        other = [name for name, value in self._identity.items() if known.get(name) != value]
        if other:
            what = " and ".join(other)
            raise ArtifactError(
                f"{str(self.path)!r} belongs to a pass with another {what}; {KIND.remedy}, or choose another file"
            )
        try:
            parts = unpacked(arrays, int(self._identity["folds"]), features, responses)
        except ArtifactError as error:
            raise ArtifactError(f"{str(self.path)!r} {error}; {KIND.remedy}") from None
        return CheckpointState(row, list(parts))

    def _damaged(self) -> ArtifactError:
        return ArtifactError(f"{str(self.path)!r} has a damaged record; {KIND.remedy}")

    def reached(self, row: int, parts: list[Moments]) -> None:
        """Record the state; write it at most every `every_s` seconds."""
        if time.monotonic() - self._saved >= self._every_s:
            self.save(row, parts)

    def save(self, row: int, parts: list[Moments]) -> None:
        """Write the state."""
        record = json.dumps({"format": FORMAT, "identity": self._identity, "row": row})
        write(self.path, KIND, record, packed(parts))
        self._saved = time.monotonic()

    def remove(self) -> None:
        """Delete the file once the pass is complete."""
        self.path.unlink(missing_ok=True)
