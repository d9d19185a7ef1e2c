"""The terms that a fit chooses from: what the groups state, with each clamp, number of hinges and least level."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from anytime.errors import TrainingError
from anytime.features.bases import MIN_LEVEL_ROWS, Clamp
from anytime.features.expansion import Expansion
from anytime.features.learning import MIN_MISSING
from anytime.groups import FeatureGroups
from anytime.moments.moments import Gram, Moments
from anytime.training.clamping import Clamped


@dataclass(frozen=True, eq=False)
class Terms:
    """Terms of the raw columns, and their moments in each fold and in all."""

    expansion: Expansion
    parts: Sequence[Moments]
    moments: Moments
    held: Sequence[Moments] | None = None
    """The parts as new rows have them, where that differs."""
    size: int | None = None
    clamp: Clamp = None
    min_level_rows: int | None = None
    """The number of hinges, the clamp, and the least number of rows of a level, each if it is selected."""
    source: tuple[Sequence[Moments], int | None, int] | None = None
    """The parts with all terms, and what selects from these; terms with the same have the same moments."""

    @cached_property
    def gram(self) -> Gram:
        return Gram.of(self.moments)


def candidates(clamps: Sequence[Clamped]) -> Iterator[Callable[..., Terms]]:
    """Yield a function for each clamp, number of hinges and least level, which returns its terms.

    The numbers of hinges are ascending. Each call returns the same terms, so that large ones need not be stored. A
    function that receives other terms of the same training rows returns terms that share their moments.
    """
    several = len(clamps[0].parts) > 1
    merged = {id(clamped.parts): Moments.merged(clamped.parts) for clamped in clamps}
    wholes = [(clamped, Expansion.of(clamped.groups), merged[id(clamped.parts)]) for clamped in clamps]
    whole = wholes[0][1]
    if whole.needs_size and not several:
        raise TrainingError("basis 'auto' needs folds to select the number of hinges; give at least 2, or a hinge:K")
    for least in whole.level_rows[: None if several else 1] or (None,):
        for size in whole.sizes:
            # Of equal errors the first counts: a line goes on beyond its range, the last of several pieces does not.
            bends = any(not c.basis.is_identity and c.basis.clamp == 0 for c in whole.with_size(size)[0].columns)
            for clamped, own, moments in sorted(wholes, key=lambda of: (of[0].clamp == 0) != bends):
                yield partial(_terms, clamped, own, moments, least, size)


def _terms(
    clamped: Clamped, whole: Expansion, moments: Moments, least: int | None, size: int, like: Terms | None = None
) -> Terms:
    """Return the terms of one clamp, with one number of rows of a level and one size."""
    joined, starts = whole, np.arange(whole.plain.size)
    if least is not None:
        joined, starts = whole.with_min_level_rows(least)[0], whole.plain.with_min_level_rows(least)[1]
    sized, columns = joined.plain.with_size(size)
    if joined.plain is not joined:
        sized, _ = joined.with_size(size)

    def reduced(parts: Sequence[Moments]) -> list[Moments]:
        return [part.summed(starts).restricted(columns) for part in parts]

    (all_rows,) = reduced([moments])
    expansion = with_indicators(sized, all_rows)

    def indicated(parts: Sequence[Moments]) -> list[Moments]:
        return [part.with_indicator_features(expansion.indicated) for part in reduced(parts)]

    source = (clamped.parts, least, size)
    if like is not None and like.source is not None and like.source[0] is source[0] and like.source[1:] == source[1:]:
        parts, moments = like.parts, like.moments
    else:
        parts, moments = indicated(clamped.parts), all_rows.with_indicator_features(expansion.indicated)
    return Terms(
        expansion,
        parts,
        moments,
        None if clamped.held is clamped.parts else indicated(clamped.held),
        size if whole.needs_size else None,
        clamped.clamp,
        least,
        source,
    )


def with_indicators(expansion: Expansion, moments: Moments) -> Expansion:
    """Return the terms with the indicators of missing values that the groups file states or that gaps in rows need."""
    shares = dict(zip((start for start, _ in moments.missing), moments.missing_shares.tolist(), strict=True))
    bases = expansion.groups.bases
    return expansion.with_indicators(
        {
            column.name: shares.get(start, 0.0) >= MIN_MISSING
            for column, (start, _) in zip(expansion.columns, expansion.plain.spans, strict=True)
            if column.name not in bases or bases[column.name].missing is None
        }
    )


def level_decisions(groups: FeatureGroups, terms: Terms) -> tuple[str, ...]:
    """Return a sentence on the columns whose rare levels the selected number of rows joins or keeps."""
    if terms.min_level_rows is None:
        return ()
    columns = [
        (column.name, column.basis.open_levels) for column in Expansion.of(groups).columns if column.basis.open_levels
    ]
    rare = [(name, [c for c in counts if c < MIN_LEVEL_ROWS], len(counts)) for name, counts in columns]
    least = terms.min_level_rows
    said = [
        f"{name!r} keeps {count - sum(c < least for c in few)} of {count} levels ({sum(few)} rows have a level of "
        f"fewer than {MIN_LEVEL_ROWS})"
        for name, few, count in rare
    ]
    listing = "; ".join(said[:5]) + (f"; and {len(said) - 5} columns more" if len(said) > 5 else "")
    selected = f"levels of {least} rows or more have a term of their own, by cross-validation (--min-level-rows)"
    return (f"{selected}: {listing}",)
