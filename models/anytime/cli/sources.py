"""What `train` learns from: a table, or moments of one."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from anytime.cli.backends import HERE, Place
from anytime.cli.learning import Meaning, Source, open_source
from anytime.errors import TrainingError
from anytime.generalised import Observations
from anytime.groups import load_groups
from anytime.kept_moments import KeptMoments, are_moments
from anytime.manifest import FamilyName, Task
from anytime.moments import Moments
from anytime.resequencing import Changes, kept_groups, moments_of_groups
from anytime.targets import Target

__all__ = ["Given", "source_of"]


class Given(NamedTuple):
    """The options that say what the columns of a table mean.

    `known` is the meaning of the target, if that is settled; `changes` names groups to leave out or to place first.
    """

    groups: Path | None
    target: Many[str] | None
    task: Task | Literal["auto"]
    family: FamilyName
    query: str | None
    weights: str | None
    drop: Many[str] | None
    drop_missing: bool
    known: Target | None = None
    changes: Changes = Changes()


@dataclass(frozen=True)
class _KeptSource:
    """Moments as a source, of some or all of their groups, in the folds that they were made with."""

    kept: KeptMoments
    meaning: Meaning
    remark: str

    @property
    def name(self) -> str:
        """The tables."""
        return ", ".join(self.kept.record.data)

    def moments(self, _folds: int, _seed: int, _jobs: int) -> Many[Moments]:
        """Moments of each fold."""
        groups = self.kept.record.groups
        return [moments_of_groups(part, groups, self.meaning.groups) for part in self.kept.parts]

    def observed(self, _folds: int, _seed: int, _jobs: int) -> Observations:
        """Refuse: there are no rows."""
        raise TrainingError("moments have no rows, which likelihoods are fitted on; train on the table")


def source_of(data: Path, given: Given, place: Place = HERE) -> Source:
    """Open a table or moments, and check them.

    Raises
    ------
    TrainingError
        An option that a table needs is left out, or one is given that moments do not take.
    """
    if are_moments(data):
        if place != HERE:
            raise TrainingError(
                f"--backend and --checkpoint are for reading rows; {str(data)!r} holds moments, summed already"
            )
        return _kept(data, given)
    for option, value in (("--groups", given.groups), ("--target", given.target)):
        if not value:
            raise TrainingError(f"{str(data)!r} is a table; give {option}")
    assert given.groups is not None and given.target is not None  # noqa: S101, PT018
    return open_source(
        data,
        given.groups,
        given.target,
        given.task,
        given.family,
        query=given.query,
        weights=given.weights,
        drop=given.drop,
        drop_missing=given.drop_missing,
        known=given.known,
        place=place,
        changes=given.changes,
    )


def _kept(path: Path, given: Given) -> _KeptSource:
    kept = KeptMoments.load(path)
    record = kept.record
    if given.family != "gaussian":
        raise TrainingError(
            f"family {given.family!r} is fitted on rows, and {str(path)!r} holds moments; train on the table"
        )
    asked = {
        "--query": given.query,
        "--weights": given.weights,
        "--drop": given.drop,
        "--drop-missing-target": given.drop_missing,
    }
    for option, value in asked.items():
        if value:
            raise TrainingError(f"{option} goes with a table; {str(path)!r} holds moments, in which that is settled")
    if given.target and tuple(given.target) != record.target:
        raise TrainingError(f"--target is {', '.join(given.target)}; the moments are of {', '.join(record.target)}")
    if given.task not in ("auto", record.task):
        raise TrainingError(f"--task is {given.task}; the moments are of task {record.task}")
    groups = record.groups if given.groups is None else record.groups.with_costs(load_groups(given.groups))
    remark = f", {kept.total.rows} rows in {record.folds} folds"
    meaning = Meaning(kept_groups(groups, given.changes), kept.target, record.query, record.weights)
    return _KeptSource(kept, meaning, remark)
