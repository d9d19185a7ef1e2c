"""The sets of terms that a fit chooses from: each is a subset of the terms of one set of moments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from anytime.errors import TrainingError
from anytime.features.bases import MIN_LEVEL_ROWS, Choice
from anytime.features.expansion import Expansion
from anytime.features.learning import MIN_MISSING
from anytime.groups import FeatureGroups
from anytime.moments.moments import Gram, Moments


@dataclass(frozen=True, eq=False)
class Terms:
    """Terms of the raw columns, and their moments in each fold and in all."""

    expansion: Expansion
    parts: Sequence[Moments]
    moments: Moments
    choice: Choice = field(default_factory=Choice)

    @cached_property
    def gram(self) -> Gram:
        return Gram.of(self.moments)


@dataclass(frozen=True, eq=False)
class TermSets:
    """All terms that a fit may use, and their moments in each fold and in all."""

    whole: Expansion
    parts: Sequence[Moments]
    moments: Moments

    @cached_property
    def choices(self) -> list[Choice]:
        """Return what is selected from; without folds, the most frequent levels."""
        if len(self.parts) > 1:
            return self.whole.choices
        if self.whole.needs_size:
            raise TrainingError(
                "basis 'auto' needs folds to select the number of hinges; give at least 2, or a hinge:K"
            )
        return self.whole.choices[:1]

    def terms(self, choice: Choice) -> Terms:
        """Return one of the sets, with indicators of missing values; it is computed again by each call."""
        reduced, spans = self.whole.reduced(choice)
        moments = self.moments.reduced(spans)
        shares = dict(zip((start for start, _ in moments.missing), moments.mean[moments.width :].tolist(), strict=True))
        bases = reduced.groups.bases
        expansion = reduced.with_indicators(  # those that the groups file states or that gaps in rows need
            {
                column.name: shares.get(start, 0.0) >= MIN_MISSING
                for column, (start, _) in zip(reduced.columns, reduced.plain.spans, strict=True)
                if column.name not in bases or bases[column.name].missing is None
            }
        )
        parts = [part.reduced(spans).with_indicator_features(expansion.indicated) for part in self.parts]
        all_rows = moments.with_indicator_features(expansion.indicated)
        return Terms(expansion, parts, all_rows, choice)


def level_decisions(groups: FeatureGroups, terms: Terms) -> tuple[str, ...]:
    """Return a sentence on the columns whose rare levels the selected number of rows joins or keeps."""
    if terms.choice.level_rows is None:
        return ()
    columns = [
        (column.name, column.basis.level_rows) for column in Expansion.of(groups).columns if column.basis.level_rows
    ]
    rare = [(name, [c for c in counts if c < MIN_LEVEL_ROWS], len(counts)) for name, counts in columns]
    least = terms.choice.level_rows
    said = [
        f"{name!r} keeps {count - sum(c < least for c in few)} of {count} levels ({sum(few)} rows have a level of "
        f"fewer than {MIN_LEVEL_ROWS})"
        for name, few, count in rare
    ]
    listing = "; ".join(said[:5]) + (f"; and {len(said) - 5} columns more" if len(said) > 5 else "")
    selected = f"levels of {least} rows or more have a term of their own, by cross-validation (--min-level-rows)"
    return (f"{selected}: {listing}",)
