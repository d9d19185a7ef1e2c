"""From the arguments of `anytime moments` to moments, each with what its columns mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anytime.cli.backends import HERE, Place
from anytime.cli.output import check_directory
from anytime.cli.sources import Given, source_of
from anytime.errors import ArtifactError, TableError, listed
from anytime.kept_moments import KeptMoments, MomentsRecord, are_moments
from anytime.moments import Moments
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

    What the target means is settled by the first: a table after it may lack some of its classes, and have no others.

    Raises
    ------
    AnytimeError
        What `source_of` and `KeptMoments.load` refuse; or the target is another than that of the first.
    """
    found: list[KeptMoments] = []
    for path in data:
        if are_moments(path):
            found.append(KeptMoments.load(path))
            continue
        known = found[0].target if found else None
        if known is not None and given.target and tuple(given.target) != known.columns:
            raise TableError(
                f"--target is {listed(given.target)}; the moments in {str(data[0])!r} are of {listed(known.columns)}"
            )
        source = source_of(path, given._replace(known=known), place)
        meaning = source.meaning
        record = MomentsRecord(
            created=now(),
            library=library_version(),
            data=(source.name,),
            task=meaning.target.task,
            target=meaning.target.columns,
            classes=meaning.target.classes,
            query=meaning.query,
            weights=meaning.weights,
            groups=meaning.groups,
            folds=folds,
        )
        parts = tuple(source.moments(folds, seed, jobs))
        # There are no more parts than rows.
        nothing = Moments.empty(parts[0].features, parts[0].responses, parts[0].fill)
        found.append(KeptMoments(record, parts + (nothing,) * (folds - len(parts))))
    return found
