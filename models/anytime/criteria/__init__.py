"""Selection criteria: how much a group promises, before its cost is divided out (section 2 of the paper)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from anytime.arrays import Float, Index
from anytime.criteria.fr import ForwardRegression
from anytime.criteria.no_whiten import NoWhiten
from anytime.criteria.omp import MatchingPursuit
from anytime.criteria.single import Single
from anytime.gram import Gram
from anytime.left import Left
from anytime.manifest import Method

__all__ = ["CRITERIA", "Criterion"]


class Criterion(Protocol):
    """Scores of groups given what a search has selected."""

    needs_blocks: bool
    """Whether a sweep must keep the conditional blocks of the groups left."""

    def scores(self, left: Left) -> Float:
        """Score of every group, (groups,); of groups without columns 0, of groups selected anything."""
        ...

    def union_score(self, left: Left, rows: Index) -> float:
        """Score of the union of some groups' rows of the search's matrix."""
        ...

    def lengths(self, scores: Float) -> Float:
        """What scores say of the residual's projection on each group: its length, in deviations of the responses."""
        ...


CRITERIA: dict[Method, Callable[[Gram], Criterion]] = {
    "omp": MatchingPursuit,
    "fr": lambda _: ForwardRegression(),
    "single": lambda _: Single(),
    "no-whiten": lambda _: NoWhiten(),
}
"""The criterion of each method, made for one problem."""
