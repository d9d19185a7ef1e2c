"""Selection criteria: the score of a group before division by its cost (section 2 of the paper), one file each."""

from __future__ import annotations

from anytime.selection.criteria.cp import MallowsCp
from anytime.selection.criteria.criterion import Criterion, PathMethod, SelectionMethod
from anytime.selection.criteria.fr import ForwardRegression
from anytime.selection.criteria.no_whiten import GradientNorm
from anytime.selection.criteria.omp import MatchingPursuit
from anytime.selection.criteria.single import SingleFeature

__all__ = ["CRITERIA", "Criterion", "ForwardRegression", "PathMethod", "SelectionMethod"]

CRITERIA: dict[str, type[Criterion]] = {
    kind.name: kind for kind in (MatchingPursuit, ForwardRegression, MallowsCp, SingleFeature, GradientNorm)
}
"""Every criterion by name."""
