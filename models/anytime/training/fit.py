"""Training: from the moments of the folds to a model, including every choice that the options leave open.

Other modules read the rows. Least squares is linear algebra on moments only, so tables of any size and source are
trained in the same way. The other families make further passes over the rows (`anytime.training.likelihood`).
"""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from anytime._linalg import factorise, single_blas_thread
from anytime._version import __version__
from anytime.errors import TrainingError
from anytime.families import family_of
from anytime.features.bases import MIN_LEVEL_ROWS, Clamp
from anytime.features.expansion import Expansion
from anytime.features.learning import MIN_MISSING
from anytime.glm.search import LikelihoodOrder
from anytime.groups import FeatureGroups
from anytime.model.curve import Curve
from anytime.model.manifest import Candidate, Guarantee, Manifest, Provenance, Redundant, Selected, StepRecord, Stopped
from anytime.model.model import Model
from anytime.model.prefixes import PrefixModels, explained_variances, prefix_models, staircase
from anytime.moments.moments import Gram, Moments
from anytime.selection import FactoredOrder, GroupOrder, Step, factored, given_sequence, sequencer
from anytime.selection.criteria.criterion import TIE
from anytime.selection.kernels import kernel_sequencer, rows_are_fewer
from anytime.target import Target, check_family
from anytime.training.clamping import Clamped
from anytime.training.guarantee import guarantee
from anytime.training.likelihood import LikelihoodFit, Observations, fit_likelihood
from anytime.training.model_selection import (
    MIN_PARALLEL_COLUMNS,
    Choice,
    Errors,
    Fold,
    HeldBest,
    HoldOut,
    KernelFold,
    NoStepsError,
    area,
    cross_validated,
    shortened,
    split,
)
from anytime.training.options import Options
from anytime.training.warnings import warnings_of
from anytime.types import Bool, Float, Index

REFINED = 0.02
"""Numbers of hinges whose error at a few penalties is within this share of the least are measured at others, too."""

LEAST_GAIN = 0.01
"""Share of the error that a clamp or hinges must reduce it by."""


@dataclass(frozen=True, eq=False)
class Fit:
    """A trained sequence with its prefix models.

    Attributes
    ----------
    moments, gram : moments of the training rows, and their normal equations.
    likelihood : result of the likelihood fit; None for least squares.
    alpha : the penalty that ordered the groups; `alphas` (steps + 1,) those of the prefixes.
    errors : (steps + 1,) cross-validated errors, or None without folds.
    measured : errors of each fold and prefix at the penalties chosen, or None without folds.
    held : result on the validation table, or None.

    expansion : the raw columns and their terms; `groups` are the groups with terms as their features, and products.

    If a rule stopped the sequence, `expansion`, `moments` and `gram` cover all groups and the other attributes only
    those of the sequence.
    """

    options: Options
    expansion: Expansion
    moments: Moments
    gram: Gram
    sequence: GroupOrder
    alpha: float
    alphas: Float
    errors: Float | None
    measured: Errors | None
    prefixes: PrefixModels
    likelihood: LikelihoodFit | None = None
    held: HeldBest | None = None
    levels: tuple[str, ...] = ()
    """What is said of the least number of rows of a level, if it was selected."""
    clamp: Clamp = None
    """The clamp, if it was selected."""
    selected_terms: Selected | None = None
    """Which terms were selected, if some were."""

    @property
    def groups(self) -> FeatureGroups:
        return self.expansion.terms

    @property
    def curve(self) -> Curve:
        r2 = None if self.r2 is None or not len(self.r2) else self.r2
        return Curve(self.sequence.costs, self.sequence.explained_variance, self.errors, r2, tuple(self.chosen))

    @property
    def chosen(self) -> list[str]:
        """Return the chosen group of each step."""
        return [self.groups.names[self.raw(step)[-1]] for step in self.sequence.steps]

    def raw(self, step: Step) -> tuple[int, ...]:
        """Return the groups that a step adds, without products."""
        return tuple(group for group in step.adds if group < len(self.expansion.groups))

    @cached_property
    def selected(self) -> tuple[FeatureGroups, Index]:
        """Return the groups of the sequence with their raw columns, and their terms in the order of the file."""
        order = [group for step in self.sequence.steps for group in self.raw(step)]
        groups = self.expansion.groups
        return groups if len(order) == len(groups) else groups.only(order), np.sort(self.sequence.columns)

    @cached_property
    def stopped(self) -> Stopped | None:
        """Return the record of the stopping rule; None if no rule was active."""
        epsilon, held, sequence = self.options.rule.epsilon, self.held, self.sequence
        if epsilon is None and held is None:
            return None
        selected = {group for step in sequence.steps for group in step.adds}
        cut = held is not None and held.steps < len(held.errors) - 1
        by_epsilon = sequence.longest is not None and not cut
        return Stopped(
            rule="validation" if cut else "epsilon" if by_epsilon else None,
            steps=len(sequence.steps),
            epsilon=epsilon,
            longest=sequence.longest if by_epsilon else None,
            validation=None if held is None else held.name,
            errors=None if held is None else tuple(e if math.isfinite(e) else None for e in held.errors.tolist()),
            left_out=tuple(name for group, name in enumerate(self.expansion.groups.names) if group not in selected),
        )

    @cached_property
    def collinear(self) -> Bool:
        """Return the selected features that are linear combinations of earlier ones, (D,); about D^3/3 operations."""
        gram, sequence = self.gram, self.sequence
        if not (isinstance(sequence, FactoredOrder) and self.alpha == 0):
            sequence = given_sequence(gram, self.groups, [step.adds for step in sequence.steps], 0.0)
        found = np.zeros(len(gram.constant), dtype=np.bool_)
        found[sequence.columns] = sequence.factor.dropped
        return found & ~gram.constant

    @cached_property
    def guarantee(self) -> Guarantee:
        """Return the theoretical guarantee of the sequence, against sets of all groups; about D^3 operations."""
        if self.likelihood is not None:
            return Guarantee(why="the theorems are for least squares", doubling_until=self.sequence.doubling_until)
        rule = self.options.rule
        if rule.first or rule.c_min is not None:
            what = "the first groups" if rule.first else "the cost of the first steps"
            return Guarantee(why=f"the user chose {what}", doubling_until=self.sequence.doubling_until)
        groups, columns = self.groups.with_own_products()
        return guarantee(
            self.gram.restricted(columns),
            groups,
            rule.method,
            self.alpha,
            cost_blind=rule.cost_blind,
            doubling_until=self.sequence.doubling_until,
        )

    def model(
        self,
        name: str,
        target: Target,
        origin: Provenance,
        *,
        query: str | None = None,
        keep_moments: bool = True,
        left_out: tuple[str, ...] = (),
        remarks: tuple[str, ...] = (),
    ) -> Model:
        """Return the model of the groups in the sequence.

        `left_out` names groups that were excluded before, and `remarks` are warnings about the table.
        """
        groups, columns = self.selected
        stopped, rule = self.stopped, self.options.rule
        left_out = (*left_out, *rule.without)
        if left_out:
            stopped = stopped or Stopped(rule=None, steps=len(self.sequence.steps))
            stopped = stopped.model_copy(update={"left_out": (*stopped.left_out, *left_out)})
        names = np.array(self.groups.features)[columns]
        # Gaps may be rare, and some products of factors are always collinear, as is one level of each factor.
        listed = ~self.expansion.are_indicators[columns] & (columns < self.expansion.column_terms)
        collinear = self.collinear[columns] & listed & ~self.expansion.are_last_levels[columns]
        if self.moments.rows <= len(columns):  # whichever columns come last would be called so
            collinear = np.zeros_like(collinear)
        manifest = Manifest(
            name=name,
            task=target.task,
            family=self.options.family,
            link=family_of(self.options.family).link.name,
            target=target.columns,
            query=query,
            responses=target.responses,
            classes=target.classes,
            groups=groups,
            method=rule.name,
            cost_blind=rule.cost_blind,
            doubling=rule.doubling,
            first=tuple(group for group in rule.first if group in groups.positions),
            alpha=self.alpha,
            prior_error=None if self.errors is None else float(self.errors[0]),
            prior_deviance=None if self.likelihood is None else float(self.likelihood.deviance[0]),
            steps=self._records(),
            redundant=Redundant(
                constant=tuple(names[self.gram.constant[columns] & listed].tolist()),
                collinear=tuple(names[collinear].tolist()),
            ),
            guarantee=self.guarantee,
            stopped=stopped,
            selected=self.selected_terms,
            warnings=(*remarks, *self.levels, *warnings_of(self, target)),
            provenance=origin,
        )
        prefixes = self.prefixes.restricted(columns, Expansion.of(groups))
        if not keep_moments:
            return Model(manifest, prefixes)
        if self.likelihood is not None:
            return Model(manifest, prefixes, curvatures=self.likelihood.curvatures)
        return Model(manifest, prefixes, self.moments.restricted(columns))

    @cached_property
    def r2(self) -> Float | None:
        """Return the R² of each prefix on the training table (steps + 1,), from its own coefficients, without penalty.

        For a likelihood it is 1 - deviance/null deviance. None where a response is constant.
        """
        if self.likelihood is None:
            held = self.gram.own
            with single_blas_thread():
                return held.r2(explained_variances(self.prefixes, held))
        deviance = self.likelihood.deviance
        return 1.0 - deviance / deviance[0] if self.gram.yy.all() else None

    def _records(self) -> tuple[StepRecord, ...]:
        costs, likelihood = self.sequence.costs, self.likelihood
        steps = [[self.groups.names[g] for g in self.raw(step)] for step in self.sequence.steps]
        pairs = self.selected[0].joined_pairs(steps)
        best = None if self.measured is None else self.measured.best
        return tuple(
            StepRecord(
                group=steps[k - 1][-1],
                adds=tuple(steps[k - 1]),
                pairs=pairs[k - 1],
                cost=step.cost,
                cumulative_cost=float(costs[k]),
                explained_variance=step.explained_variance,
                r2=None if self.r2 is None else float(self.r2[k]),
                cv_error=None if self.errors is None else float(self.errors[k]),
                best=None if best is None else best[k],
                alpha=float(self.alphas[k]),
                deviance=None if likelihood is None else float(likelihood.deviance[k]),
            )
            for k, step in enumerate(self.sequence.steps, start=1)
        )


def fit(
    parts: Sequence[Moments],
    groups: FeatureGroups,
    options: Options,
    observed: Observations | None = None,
    *,
    hold_out: HoldOut | None = None,
    expansion: Expansion | None = None,
) -> Fit:
    """Learn the sequence and the coefficients of every prefix.

    Raise TrainingError if the options conflict or need more rows, or no step remains.

    Parameters
    ----------
    parts : moments of each fold. With a single part there is no cross-validation, and alpha must be a number.
    groups : the groups, whose bases are complete; their terms without indicators are the features of the moments.
    observed : the rows, for families other than "gaussian".
    expansion : the terms of the moments, if those include indicators; otherwise columns with gaps get indicators.
    hold_out : rows that choose how many of the steps within `options.epsilon` the model keeps.
    """
    only = Clamped(None, groups, parts, parts)
    return fit_clamped([only], options, observed, hold_out=hold_out, expansion=expansion)


def fit_clamped(
    clamped: Sequence[Clamped],
    options: Options,
    observed: Observations | None = None,
    *,
    hold_out: HoldOut | None = None,
    expansion: Expansion | None = None,
) -> Fit:
    """Learn as `fit`, with the clamp of the least cross-validated error."""
    _, groups, parts, _ = clamped[0]
    moments = Moments.merged(parts)
    if moments.rows < 2 or not moments.weight > 0:
        raise TrainingError(f"{moments.rows} rows of weight {moments.weight:g}; expected at least 2 rows with weight")
    if len(parts) == 1 and options.alpha == "cv":
        raise TrainingError("alpha 'cv' needs folds; give at least 2, or a number for alpha")
    if len(parts) == 1 and options.nested:
        raise TrainingError("nested errors need folds; give at least 2")
    whole = Expansion.of(groups) if expansion is None else expansion
    candidates = iter([_Terms(whole, parts, moments)]) if expansion is not None else _candidates(clamped)
    likelihood: LikelihoodFit | None = None
    choice: Choice[FactoredOrder] | Choice[LikelihoodOrder]
    with single_blas_thread():
        if family_of(options.family).least_squares:
            terms, squares, selected = _least_error(candidates, options)
            prefixes = replace(_prefixes(terms.gram, squares), expansion=terms.expansion)
            choice, prefixes, held = shortened(squares, prefixes, hold_out)
        elif observed is None:
            raise TrainingError(f"family {options.family!r} needs rows; pass `observed`")
        else:
            check_family(options.family, observed.target)
            squares_alone = replace(options, family="gaussian")
            if whole.is_open or len(clamped) > 1:
                terms, _, selected = _least_error(candidates, squares_alone)
            else:
                terms, selected = next(candidates), None
            likelihood = fit_likelihood(terms.parts, terms.gram, terms.expansion, options, observed, hold_out)
            choice, prefixes, held = likelihood.choice, likelihood.prefixes, likelihood.held
    return Fit(
        options=options,
        expansion=terms.expansion,
        moments=terms.moments,
        gram=terms.gram,
        sequence=choice.sequence,
        alpha=choice.alpha,
        alphas=choice.alphas,
        errors=choice.errors,
        measured=choice.measured,
        prefixes=prefixes,
        likelihood=likelihood,
        held=held,
        levels=_level_remarks(whole, terms),
        clamp=terms.clamp,
        selected_terms=selected,
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


def _level_remarks(whole: Expansion, terms: _Terms) -> tuple[str, ...]:
    """Return a sentence on the columns whose rare levels the selected number of rows joins or keeps."""
    if terms.min_level_rows is None:
        return ()
    columns = [(column.name, column.basis.open_levels) for column in whole.columns if column.basis.open_levels]
    rare = [(name, [c for c in counts if c < MIN_LEVEL_ROWS], len(counts)) for name, counts in columns]
    least = terms.min_level_rows
    said = [
        f"{name!r} keeps {count - sum(c < least for c in few)} of {count} levels ({sum(few)} rows have a level of "
        f"fewer than {MIN_LEVEL_ROWS})"
        for name, few, count in rare
    ]
    listing = "; ".join(said[:5]) + (f"; and {len(said) - 5} columns more" if len(said) > 5 else "")
    return (f"a level has its own term from {least} rows on, by cross-validation (--min-level-rows): {listing}",)


@dataclass(frozen=True, eq=False)
class _Terms:
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

    @property
    def simplicity(self) -> int:
        """Return 2 for terms without hinges and clamp that were selected, 1 without a clamp, else 0."""
        return 0 if self.clamp not in (None, "off") else 1 if self.size else 2

    @cached_property
    def gram(self) -> Gram:
        return Gram.of(self.moments)

    @cached_property
    def folds(self) -> list[Fold]:
        """Return the held-out folds; none of a single part."""
        return [] if len(self.parts) == 1 else split(self.parts, held=self.held)

    @cached_property
    def kernel_folds(self) -> list[Fold]:
        return split(self.parts, KernelFold, self.held)


def terms_of(groups: FeatureGroups, parts: Sequence[Moments]) -> _Terms:
    """Return the terms that groups with complete bases state, given the moments of terms without indicators."""
    return next(_candidates([Clamped(None, groups, parts, parts)]))


def _candidates(clamped: Sequence[Clamped]) -> Iterator[_Terms]:
    """Yield the terms that the groups state; those of each clamp and each size that a basis selects from, ascending."""
    several = len(clamped[0].parts) > 1
    wholes = [(each, Expansion.of(each.groups), Moments.merged(each.parts)) for each in clamped]
    whole = wholes[0][1]
    if whole.needs_size and not several:
        raise TrainingError("basis 'auto' needs folds to select the number of hinges; give at least 2, or a hinge:K")
    for least in whole.level_rows[: None if several else 1] or (None,):
        for size in whole.sizes:
            # Of equal errors the first counts: a line goes on beyond its range, the last of several pieces does not.
            bends = any(not c.basis.is_identity and c.basis.clamp == 0 for c in whole.with_size(size)[0].columns)
            for each, own, moments in sorted(wholes, key=lambda of: (of[0].clamp == 0) != bends):
                yield _terms(each, own, moments, least, size)


def _terms(each: Clamped, whole: Expansion, moments: Moments, least: int | None, size: int) -> _Terms:
    """Return the terms of one clamp, with one number of rows of a level and one size."""
    joined, starts = (whole, np.arange(whole.plain.size)) if least is None else _joined_levels(whole, least)
    _, columns = joined.plain.with_size(size)

    def reduced(parts: Sequence[Moments]) -> list[Moments]:
        return [part.summed(starts).restricted(columns) for part in parts]

    (all_rows,) = reduced([moments])
    expansion = with_indicators(joined.with_size(size)[0], all_rows)

    def indicated(parts: Sequence[Moments]) -> list[Moments]:
        return [part.with_indicator_features(expansion.indicated) for part in reduced(parts)]

    return _Terms(
        expansion,
        indicated(each.parts),
        all_rows.with_indicator_features(expansion.indicated),
        None if each.held is each.parts else indicated(each.held),
        size if whole.needs_size else None,
        each.clamp,
        least,
    )


def _joined_levels(whole: Expansion, least: int) -> tuple[Expansion, Index]:
    return whole.with_min_level_rows(least)[0], whole.plain.with_min_level_rows(least)[1]


def _least_error(candidates: Iterable[_Terms], options: Options) -> _Best:
    """Return the terms whose least-squares sequence has the least cross-validated error, and that sequence.

    Of several, each is first measured at a few penalties, and those near the least error at others. The error of all
    groups decides a tie, then the number of terms: the curve up to their cost does not contain it. Terms with a clamp,
    or with hinges, need a clearly smaller error than those without: few rows decide what extreme values do, and new
    rows may be more extreme.
    """
    terms, rough = list(candidates), list[_Tried]()
    if len(terms) > 1 and options.alpha == "cv" and not options.one_se:
        rough = _tried(terms, replace(options, nested=False), refine=False)
        near: list[int] = []
        for simple in range(3):
            alike = [each for each in rough if each.terms.simplicity >= simple]
            limit = (1 + REFINED) * min((each.errors[0] for each in alike), default=-math.inf)
            near += [id(each.terms) for each in alike if each.errors[0] <= limit]
        terms = [each.terms for each in rough if id(each.terms) in near]
    tried = _tried(terms, options)
    best = _best(tried)
    for simple in (1, 2):
        others = [each for each in tried if each.terms.simplicity >= simple]
        if best.terms.simplicity < simple and others and not best.is_clearly_less(other := _best(others)):
            best = other
    known = {id(each.terms): each for each in (*rough, *tried)}
    selected = None
    if len(known) > 1 and math.isfinite(best.errors[0]):
        records = tuple(each.record for each in known.values() if math.isfinite(each.errors[0]))
        selected = Selected(**best.record.model_dump(), candidates=records)
    return _Best(best.terms, best.choice, selected)


class _Best(NamedTuple):
    """Selected terms with their sequence, and the record of the selection, if there was one."""

    terms: _Terms
    choice: Choice[FactoredOrder]
    selected: Selected | None


def _best(tried: Sequence[_Tried]) -> _Tried:
    best, *others = tried
    for other in others:
        if _is_less(other.errors, best.errors):
            best = other
    return best


class _Tried(NamedTuple):
    """Terms with their least-squares sequence; `errors` are those of its curve and, with folds, of all groups.

    `areas` (K,) are the errors of the curve on each fold.
    """

    errors: list[float]
    areas: Float
    weights: Float
    terms: _Terms
    choice: Choice[FactoredOrder]

    @property
    def record(self) -> Candidate:
        terms = self.terms
        clamp = "range" if terms.clamp == 0 else terms.clamp
        return Candidate(
            hinges=terms.size,
            clamp=clamp,  # type: ignore[arg-type]  # a selected one
            min_level_rows=terms.min_level_rows,
            error=self.errors[0],
        )

    def is_clearly_less(self, than: _Tried) -> bool:
        """Return whether the error is less by a share of it, and by more than the standard error of the difference."""
        gain = Errors(than.areas - self.areas, self.weights)
        return bool(gain.mean > max(LEAST_GAIN * than.errors[0], float(gain.standard_error)))


def _tried(candidates: Iterable[_Terms], options: Options, *, refine: bool = True) -> list[_Tried]:
    """Return the terms with a sequence; raise NoStepsError without steps."""
    tried: list[_Tried] = []
    refused: NoStepsError | None = None
    for terms in candidates:
        try:
            choice = _least_squares(terms, options, refine=refine)
        except NoStepsError as error:
            refused = error
            continue
        horizon, areas, weights = options.horizon(terms.expansion.groups), np.empty(0), np.empty(0)
        errors = [choice.mean_error(horizon)]
        errors += [] if choice.errors is None else [float(choice.errors[-1])]
        if choice.measured is not None:
            areas, weights = area(choice.sequence, choice.measured.folds, horizon), choice.measured.weights
        tried.append(_Tried(errors, areas, weights, terms, choice))
    if not tried:
        raise refused or TrainingError("no terms")
    return tried


def _is_less(errors: Sequence[float], than: Sequence[float]) -> bool:
    """Return whether the first of two errors that differs by more than rounding is less."""
    for error, other in zip(errors, than, strict=True):
        if not math.isclose(error, other, rel_tol=TIE):
            return error < other
    return False


def _least_squares(terms: _Terms, options: Options, *, refine: bool = True) -> Choice[FactoredOrder]:
    groups, gram = terms.expansion.terms, terms.gram
    grown = options.horizon(groups)
    jobs = options.n_jobs if len(groups.features) >= MIN_PARALLEL_COLUMNS else 1
    kernels = options.rule.scores_gains and rows_are_fewer(terms.moments.rows, len(groups.features), len(groups))
    if kernels and options.alpha == "cv":
        choice = cross_validated(
            gram,
            terms.kernel_folds,
            lambda gram: kernel_sequencer(gram, groups, options.rule),
            options,
            horizon=grown,
            n_jobs=jobs,
            refine=refine,
        )
        sequence = factored(gram, groups, choice.sequence, choice.alpha)
        return Choice(choice.alpha, sequence, choice.alphas, choice.errors, choice.measured)

    def orders(gram: Gram) -> Callable[[float], FactoredOrder]:
        return sequencer(gram, groups, options.rule)

    return cross_validated(gram, terms.folds, orders, options, horizon=grown, n_jobs=jobs, refine=refine)


def _prefixes(gram: Gram, choice: Choice[FactoredOrder]) -> PrefixModels:
    """Return the coefficients of each prefix at its own penalty; the order's own penalty reuses its Cholesky factor."""
    order = choice.sequence
    W = staircase(order.factor, order.z, order.ends)
    for alpha in np.unique(choice.alphas[choice.alphas != choice.alpha]):
        at: Index = np.flatnonzero(choice.alphas == alpha)
        C, q = gram.penalised(float(alpha), order.columns)
        factor = factorise(C, np.diagonal(C))
        W[at] = staircase(factor, factor.forward(q), order.ends[at])
    return prefix_models(gram, order.columns, order.ends, W)


def provenance(fitted: Fit, data: str, *, folds: int | None = None, seed: int | None = None) -> Provenance:
    columns = dict(zip((start for start, _ in fitted.expansion.spans), fitted.expansion.columns, strict=True))
    selected = set(fitted.selected[0].features)
    imputed = (columns[start].name for start, _ in fitted.moments.missing if start in columns)
    return Provenance(
        created=now(),
        library=__version__,
        data=data,
        rows=fitted.moments.rows,
        weight=fitted.moments.weight,
        imputed=tuple(name for name in imputed if name in selected),
        folds=folds,
        seed=seed,
        nested=fitted.options.nested,
    )


def now() -> str:
    """Return the creation time; SOURCE_DATE_EPOCH makes files reproducible to the byte."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    zone = datetime.UTC
    now = datetime.datetime.fromtimestamp(int(epoch), zone) if epoch.isdigit() else datetime.datetime.now(zone)
    return now.isoformat(timespec="seconds")
