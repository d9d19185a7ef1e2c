"""What a selection method is: how the next group is chosen, and what the method needs and supports.

A method is one class. Everything that depends on the method is an attribute or a method of its class, and all other
code uses these: the checks of options, the searches, the guarantee, the command line and the guides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

import numpy as np

from anytime.groups import FeatureGroups
from anytime.moments.moments import Gram
from anytime.selection.sweep import SelectionState
from anytime.types import Float, Index, Method

TIE = 1e-9
"""Scores that differ by less than this share are equal."""


def best(scores: Float, costs: Float, among: Index) -> int:
    """Return the group with the best score; ties by cost, then by the order of the groups file. `among` is nonempty."""
    # A score divided by a cost near 0 may overflow.
    bounded = np.minimum(scores[among], np.finfo(np.float64).max)
    top = bounded.max()
    tied = among[bounded >= top - TIE * abs(top)]
    return int(tied[np.argmin(costs[tied])])


class SelectionMethod(ABC):
    """A way to order groups: a `Criterion`, which scores the next group, or a `PathMethod`, which states all.

    A method of your own is a class with a name of its own. Options accept an object of it: `method=Mine()`.
    """

    name: ClassVar[Method]
    """The name on the command line, in estimators and in model files."""
    doubling: ClassVar[bool] = True
    """Whether the method supports doubling, which restricts the next step."""
    epsilon: ClassVar[bool] = True
    """Whether the method supports a precision at which the search stops."""
    likelihoods: ClassVar[bool] = True
    """Whether the method supports families other than least squares."""
    pairs: ClassVar[bool] = True
    """Whether the method supports products of pairs of columns."""
    doubling_theorem: ClassVar[bool] = False
    """Whether Theorem 4.3, the bound with doubling, is proved for the method."""

    def whitening_share(self, shares: Float) -> float | None:  # noqa: ARG002
        """Return nu of Theorem 3.2, or None if the theorem does not cover the method.

        `shares` are s/(s + alpha) over the non-zero eigenvalues s of all groups' covariances.
        """
        return None


class Criterion(SelectionMethod):
    """Scores of groups, given the selection of a search. The best score divided by the cost is selected."""

    needs_blocks: ClassVar[bool] = False
    """Whether `scores` reads the blocks of `SelectionState`, the conditional covariances of the remaining groups."""

    def on(self, gram: Gram) -> Self:  # noqa: ARG002
        """Return the criterion for one problem; one that stores something about the problem returns a new object."""
        return self

    @abstractmethod
    def scores(self, state: SelectionState) -> Float:
        """Return the score of every group, (groups,); 0 for groups without columns, undefined for selected groups."""

    @abstractmethod
    def union_score(self, state: SelectionState, rows: Index) -> float:
        """Return the score of the union of some groups, given their rows of the search's matrix."""

    def lengths(self, scores: Float) -> Float:
        """Return the length of the residual's projection on each group, in response deviations, given the scores.

        For orthonormal groups the length of "omp", sqrt(tr(b_g' S_g^+ b_g)), is |X_g'r|_2.
        """
        return np.sqrt(np.maximum(scores, 0.0))


class PathMethod(SelectionMethod):
    """An order of all groups that does not depend on the penalty, for least squares."""

    doubling = epsilon = likelihoods = pairs = False

    @abstractmethod
    def steps(self, gram: Gram, groups: FeatureGroups, *, cost_blind: bool) -> tuple[tuple[int, ...], ...]:
        """Return the groups that each step adds, in order of computation; together they add every group once."""
