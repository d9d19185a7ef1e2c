"""Where a long pass over a table is: the moments so far, in a file that the next run goes on from.

The same rows come in the same order and into the same folds, so what comes of two runs is what would have come of one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from anytime._files import Kind, read, write
from anytime.errors import ArtifactError
from anytime.moments.files import packed, unpacked
from anytime.moments.moments import Moments

__all__ = [
    "EVERY_S",
    "Checkpoint",
    "Place",
]

EVERY_S = 30.0
"""Seconds between two savings; what has to be read again after a stop."""

FORMAT = 1

KIND = Kind("anytime.moments.checkpoint", "checkpoint", "anytime train --checkpoint", "remove it to begin anew")


class Place(NamedTuple):
    """How far a pass came: behind which row of the table, and the moments of each fold until there."""

    row: int
    parts: list[Moments]


class Checkpoint:
    """A file that remembers a pass.

    Parameters
    ----------
    path : the file; it need not be there.
    every_s : how often it is written.
    """

    def __init__(self, path: Path, every_s: float = EVERY_S) -> None:
        self.path, self._every_s = path, every_s
        self._identity: Mapping[str, Any] = {}
        self._saved = time.monotonic()

    def begin(self, identity: Mapping[str, Any], features: int, responses: int) -> Place | None:
        """Say what the pass is of; where an earlier one of the same came to.

        Parameters
        ----------
        identity : all that its result depends on, by names, as JSON has it; `folds` among it.

        Raises
        ------
        ArtifactError
            The file is of another pass, or damaged.
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
            raise ArtifactError(f"{str(self.path)!r} is of a pass with another {what}; {KIND.remedy}, or name another")
        try:
            parts = unpacked(arrays, int(self._identity["folds"]), features, responses)
        except ArtifactError as error:
            raise ArtifactError(f"{str(self.path)!r} {error}; {KIND.remedy}") from None
        return Place(row, list(parts))

    def _damaged(self) -> ArtifactError:
        return ArtifactError(f"{str(self.path)!r} has a damaged record; {KIND.remedy}")

    def reached(self, row: int, parts: list[Moments]) -> None:
        """Take note, and now and then write it down."""
        if time.monotonic() - self._saved >= self._every_s:
            self.save(row, parts)

    def save(self, row: int, parts: list[Moments]) -> None:
        """Write it down."""
        record = json.dumps({"format": FORMAT, "identity": self._identity, "row": row})
        write(self.path, KIND, record, packed(parts))
        self._saved = time.monotonic()

    def remove(self) -> None:
        """Forget the pass: what it was for is done."""
        self.path.unlink(missing_ok=True)
