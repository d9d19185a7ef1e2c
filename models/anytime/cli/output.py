"""Where a command writes its model, checked before the work and not after it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anytime.errors import ArtifactError

__all__ = ["Out", "check_directory", "check_out"]

Out = Annotated[Path, typer.Option("--out", help="Model file to write, named *.safetensors.", show_default=False)]


def check_out(out: Path) -> None:
    """Refuse a model file that could not be written, or would not be found by a server."""
    if out.suffix != ".safetensors":
        raise ArtifactError(f"--out is {str(out)!r}; expected a name that ends in .safetensors")
    check_directory(out)


def check_directory(out: Path) -> None:
    """Refuse a file whose directory is not there, or that is one itself."""
    if not out.parent.is_dir():
        raise ArtifactError(f"cannot write {str(out)!r}: there is no directory {str(out.parent)!r}")
    if out.is_dir():
        raise ArtifactError(f"cannot write {str(out)!r}: it is a directory")
