"""Pairs of columns: products that explain most of what a sum over columns leaves.

Least squares on the selected terms leaves residuals. Those of a sample of the rows, drawn while their moments were
summed, screen all pairs of columns (`anytime.features.screening`), and one more pass over the rows adds the products of
the best as terms. With "auto", a pair must gain more than chance explains, and the folds choose the number of pairs:
the smallest whose error is within one standard error of the least, and none unless their error is clearly smaller than
without pairs. The standard error is that of the difference within folds. Half of the folds screen the pairs whose
errors the others measure, and the other way round; the model then has the best pairs of all rows. The error is that of
all groups by least squares; for a likelihood, the deviance must be clearly smaller, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Protocol, Self

import numpy as np

from anytime._linalg import factorise
from anytime.data.dataset import ColumnError
from anytime.errors import TrainingError
from anytime.features.bases import Choice
from anytime.features.expansion import Expansion
from anytime.features.learning import Sample, Sampler
from anytime.features.screening import Screen, screened_rows
from anytime.groups import FeatureGroups, Pair
from anytime.model.prefixes import prefix_models
from anytime.moments.accumulate import Block, dense
from anytime.moments.moments import Moments
from anytime.training.least_squares import split
from anytime.training.model_selection import HINGES_GAIN, Errors, Terms, with_rows
from anytime.training.options import Options
from anytime.types import Bool, Index

AUTO_PAIRS = 16
"""Maximum number of pairs that "auto" keeps."""

MIN_ROWS = 500
"""Rows from which "auto" looks for pairs, if there are also as many rows as coefficients."""

CHANCE = 0.05
"""Probability that "auto" takes one pair or more for a candidate where no pair has an effect."""

SLICE = 4_096
"""Rows that are made dense, and estimated, at once."""


class Rows(Protocol):
    """A table for training."""

    def screened(self) -> Sample:
        """Return the rows that pairs are screened on, as `Screened`."""

    def moments(self, groups: FeatureGroups) -> Sequence[Moments]: ...


class Screened(Sampler):
    """Keeps the rows that pairs are screened on, a sample of all: columns "X", "Y", "weights" and "folds"."""

    @classmethod
    def of(cls, options: Options, groups: FeatureGroups) -> Self:
        return cls(screened_rows(len(groups.features)), options.seed)

    def drawing_from(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the blocks, after drawing from the rows of each."""
        for block in blocks:
            for start in range(0, len(block.Y), SLICE):
                self.add(min(SLICE, len(block.Y) - start), partial(_drawn, block, start))
            yield block


def _drawn(block: Block, start: int, chosen: Bool) -> Sample:
    rows = start + np.flatnonzero(chosen)
    folds = np.zeros(len(rows)) if block.folds is None else block.folds[rows]
    return Sample({"X": dense(block.X[rows]), "Y": block.Y[rows], "weights": block.row_weights[rows], "folds": folds})


def are_sought(options: Options, groups: FeatureGroups, folds: int) -> bool:
    """Return whether the options look for pairs in rows of these groups: "auto" needs folds."""
    return options.by.pairs and options.pairs != 0 and not groups.pairs and (options.pairs != "auto" or folds > 1)


def with_pairs(terms: Terms, rows: Rows, options: Options) -> tuple[Terms, str] | None:
    """Return terms with the products of the pairs that `options.pairs` requests, and what they gain in words.

    None without pairs, and if "auto" finds no clearly better ones.
    """
    is_auto = options.pairs == "auto"
    screen, ranked = _screened(terms, rows, options)
    best, *_ = ranked
    if not best:
        return None
    groups = terms.expansion.groups.with_pairs(map(screen.pair, dict.fromkeys(chain.from_iterable(ranked))))
    try:
        parts = rows.moments(groups)
    except (ColumnError, TrainingError):  # products too large to square, or more than memory stores
        if is_auto:
            return None
        raise
    whole = Terms(Expansion.of(groups), parts, Moments.merged(parts)).reduced(Choice())
    names, expansion = terms.expansion.groups.features, whole.expansion
    spans = {
        tuple(names.index(side.name) for side in product.sides): np.arange(start, stop)
        for product, (start, stop) in zip(expansion.products, expansion.product_spans, strict=True)
    }
    own = np.arange(expansion.column_terms)
    blocks = [[own, *(spans[pair] for pair in each), *[own[:0]] * (len(best) - len(each))] for each in ranked]
    kept, said = len(best), f"products of {len(best)} pair{'s' * (len(best) != 1)} of columns are terms (--pairs)"
    if len(parts) > 1:
        errors = _errors(whole, blocks, options)
        if is_auto:
            rise = errors.between(int(errors.mean.argmin()))
            kept = int(np.flatnonzero(rise.mean <= rise.standard_error)[0])
            with_kept, without = (Errors(errors.folds[:, k], errors.weights) for k in (kept, 0))
            if not with_kept.is_clearly_less(without, HINGES_GAIN):
                return None
        before, after = errors.mean[[0, kept]].tolist()
        said = (
            f"products of {kept} pair{'s' * (kept != 1)} of columns are terms (--pairs): by least squares, the "
            f"cross-validated error of all groups is {after:.4g} instead of {before:.4g}"
        )
    pairs, columns = [*map(screen.pair, best[:kept])], np.sort(np.concatenate(blocks[0][: kept + 1]))
    owner = {name: group.name for group in groups.groups for name in group.features}
    if options.fitted_family.least_squares and any(owner[a.column] != owner[b.column] for a, b in pairs):
        said += "; the constant of the theorem does not cover products of two groups"
    return _reduced(whole, pairs, columns), said


def _reduced(terms: Terms, pairs: Sequence[Pair], columns: Index) -> Terms:
    """Return the terms (ascending) of all columns and of some pairs only."""
    groups = terms.expansion.groups.with_pairs(pairs)
    names = {(a.column, b.column) for a, b in pairs}
    products = tuple(each for each in terms.expansion.products if tuple(side.name for side in each.sides) in names)
    expansion = replace(terms.expansion, groups=groups, products=products)
    return Terms(expansion, [part.restricted(columns) for part in terms.parts], terms.moments.restricted(columns))


def _errors(terms: Terms, blocks: Sequence[Sequence[Index]], options: Options) -> Errors:
    """Return the errors of least squares on ever more blocks of terms, (K, blocks), each at its best penalty.

    `blocks` are those of all folds, or also those that the first and the second half of the folds ranked, which the
    folds of the other half measure.
    """
    folds, found = split(terms.parts), []
    for k, fold in enumerate(folds):
        own = blocks[0] if len(blocks) == 1 else blocks[2 if 2 * k < len(folds) else 1]
        found.append(fold.errors(np.concatenate(own), np.cumsum([*map(len, own)]), options.grid[::4]))
    return Errors(np.array(found), np.array([fold.weight for fold in folds])).at_least()


def _screened(terms: Terms, rows: Rows, options: Options) -> tuple[Screen, list[list[tuple[int, int]]]]:
    """Return the pairs that explain most of the residual of least squares on all terms, in descending order.

    With "auto", also those of the first half of the folds alone, and of the second, as many as of all rows.
    """
    sample = rows.screened().columns
    order = np.argsort(sample["folds"], kind="stable")
    X, Y, weights, folds = (np.asarray(sample[name][order], np.float64) for name in ("X", "Y", "weights", "folds"))
    gram, every, alpha = terms.gram, np.arange(terms.moments.features), options.grid[0]
    if len(options.grid) > 1:
        alpha = _best_penalty(terms, every, options)
    C, q = gram.penalised(alpha)
    W = factorise(C, np.diagonal(C).copy()).solve(q)[np.newaxis]
    model = prefix_models(gram, every, np.array([len(every)]), W)
    model = replace(model, expansion=terms.expansion)
    residuals = Y - np.concatenate([model.predict(X[at : at + SLICE], 0) for at in range(0, len(X), SLICE)])
    screen = Screen.of(terms.expansion, X)
    if options.pairs != "auto":
        return screen, [[pair for pair, _ in screen.ranked(residuals, weights, options.pairs)]]
    best = screen.ranked(residuals, weights, AUTO_PAIRS, chance=CHANCE)
    used = with_rows(terms.parts)
    middle = int(np.searchsorted(folds, used[len(used) // 2 + len(used) % 2]))
    halves = [slice(middle), slice(middle, None)] if best else []
    others = [screen.ranked(residuals, weights, len(best), rows=half) for half in halves]
    return screen, [[pair for pair, _ in each] for each in (best, *others)]


def _best_penalty(terms: Terms, columns: Index, options: Options) -> float:
    alphas, folds = options.grid[::4], split(terms.parts)
    errors = [fold.errors(columns, np.array([len(columns)]), alphas)[:, 0] for fold in folds]
    return alphas[int(np.average(errors, axis=0, weights=[fold.weight for fold in folds]).argmin())]
