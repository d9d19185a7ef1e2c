"""Where the rows of a table are gone over: in this process, or on a cluster; and where a pass is remembered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from anytime.errors import TrainingError

if TYPE_CHECKING:
    from anytime.checkpoint import Checkpoint
    from anytime.cluster import Cluster

__all__ = ["HERE", "BackendName", "CheckpointFile", "Place", "Scheduler", "check_checkpoint", "place"]

BackendName = Annotated[
    Literal["local", "dask"],
    typer.Option("--backend", help="Where rows are read and summed: here, or on a Dask cluster."),
]
Scheduler = Annotated[
    str | None,
    typer.Option("--scheduler", help="Address of the cluster's scheduler, as tcp://host:8786.", show_default=False),
]
CheckpointFile = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        help="File that remembers the pass over the table every 30 s: the same command goes on from there.",
        show_default=False,
    ),
]


class Place(NamedTuple):
    """Where the rows of a table are gone over: on a cluster, or here where None; and what remembers how far."""

    cluster: Cluster | None = None
    checkpoint: Checkpoint | None = None

    def done(self) -> None:
        """What the pass was for is written: forget it."""
        if self.checkpoint is not None:
            self.checkpoint.remove()


HERE = Place()


def check_checkpoint(checkpoint: Path | None, files: Mapping[str, Path | None]) -> None:
    """Refuse a checkpoint that is one of the files which the command reads or writes, for it is removed at the end."""
    for what, path in files.items():
        if checkpoint is not None and path is not None and path.resolve() == checkpoint.resolve():
            raise TrainingError(
                f"--checkpoint is {str(checkpoint)!r}, which is {what} as well; expected a file of its own"
            )


@contextmanager
def place(backend: Literal["local", "dask"], scheduler: str | None, checkpoint: Path | None) -> Iterator[Place]:
    """What --backend, --scheduler and --checkpoint say.

    Raises
    ------
    TrainingError
        They do not go together, or no scheduler answers.
    """
    from anytime.checkpoint import Checkpoint  # noqa: PLC0415
    from anytime.cli.output import check_directory  # noqa: PLC0415

    if backend == "local":
        if scheduler is not None:
            raise TrainingError("--scheduler goes with --backend dask")
        if checkpoint is not None:
            check_directory(checkpoint)
        yield HERE if checkpoint is None else Place(None, Checkpoint(checkpoint))
        return
    if scheduler is None:
        raise TrainingError("--backend dask needs the address of a scheduler; add --scheduler tcp://HOST:8786")
    if checkpoint is not None:
        raise TrainingError("--checkpoint goes with --backend local; what a cluster loses it reads again by itself")
    from anytime.cluster import connected  # noqa: PLC0415

    with connected(scheduler) as cluster:
        yield Place(cluster)
