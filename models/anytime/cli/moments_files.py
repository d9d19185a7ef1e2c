"""From the arguments of `anytime moments` to moments, each with what its columns mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anytime.cli.backends import HERE, Place
from anytime.cli.output import check_directory
from anytime.cli.sources import Given, source_of
from anytime.errors import ArtifactError, TableError
from anytime.kept_moments import KeptMoments, MomentsRecord, are_moments
from anytime.provenance import library_version, now

__all__ = ["check_moments_out", "gathered"]


def check_moments_out(out: Path) -> None:
    """Refuse a file that could not be written, or would be taken for a model."""
    if out.suffix != ".moments":
        raise ArtifactError(f"--out is {str(out)!r}; expected a name that ends in .moments")
    check_directory(out)


def gathered(
    data: Sequence[Path], given: Given, folds: int, seed: int, jobs: int, place: Place = HERE
) -> list[KeptMoments]:
    """Moments of each of some tables and moments.

    Classes are settled by the first: a table after it that has others is refused.

    Raises
    ------
    AnytimeError
        What `source_of` and `KeptMoments.load` refuse; or a table whose target is not that of the first.
    """
    found: list[KeptMoments] = []
    for path in data:
        if are_moments(path):
            found.append(KeptMoments.load(path))
            continue
        source = source_of(path, given, place)
        meaning = source.meaning
        if found and meaning.target != found[0].target:
            raise TableError(
                f"the target of {path} is {meaning.target.task} {meaning.target.classes or ''}; that of {data[0]} is "
                f"{found[0].record.task} {found[0].record.classes or ''}".replace(" ;", ";").rstrip()
            )
        record = MomentsRecord(
            created=now(),
            library=library_version(),
            data=(source.name,),
            task=meaning.target.task,
            target=meaning.target.columns,
            classes=meaning.target.classes,
            query=meaning.query,
            groups=meaning.groups,
            folds=folds,
        )
        parts = source.moments(folds, seed, jobs)
        found.append(KeptMoments(record, tuple(parts)))
    return found
