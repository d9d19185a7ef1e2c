"""Training: from the moments of the folds to a model, including every choice that the options leave open.

Other modules read the rows. Least squares is linear algebra on moments only, so tables of any size and source are
trained in the same way. The other families make further passes over the rows (`anytime.training.likelihood`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from anytime._files import created
from anytime._linalg import single_blas_thread
from anytime._version import __version__
from anytime.errors import TrainingError, listed, refuse
from anytime.features.bases import OCTILES, Choice as TermChoice
from anytime.features.expansion import Expansion
from anytime.groups import FeatureGroups
from anytime.model.manifest import Guarantee, Manifest, Provenance, Redundant, Selected, StepRecord, Stopped
from anytime.model.model import Model
from anytime.model.prefixes import PrefixModels, explained_variances
from anytime.moments.moments import Gram, Moments
from anytime.selection import GroupOrder, given_sequence, methods
from anytime.target import Target, check_family, class_shares
from anytime.training.guarantee import ENUMERATED, spectral_gamma, submodularity_ratio
from anytime.training.least_squares import LeastSquares
from anytime.training.likelihood import Likelihood, Observations
from anytime.training.model_selection import (
    SMALL,
    Choice,
    Learned,
    Problem,
    SelectedTerms,
    Terms,
    Validated,
    Validation,
    level_decisions,
    selected_terms,
)
from anytime.training.options import Options
from anytime.training.pairs import MIN_ROWS, Rows, are_sought, with_pairs
from anytime.types import Float, Index

WORSE_ERRORS, WORSE_SHARE, WORSE_PART = 2.0, 0.1, 1e-6
"""A prefix is worse than a shorter one by this number of standard errors, or by this share of the error, and by this
part of the base rate's error."""

LARGEST_SHARE = 0.1
"""Share of the prefixes with the largest penalty of the grid from which that is a warning."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Fit(Choice[GroupOrder]):
    """A trained sequence at the penalties chosen, with its prefix models.

    Attributes
    ----------
    expansion : Expansion
        The raw columns and their terms.
    moments, gram
        Moments of the training rows, and their normal equations.
    learned : Learned
        What a likelihood adds: deviances and curvatures.
    held : Validated | None
        Result on the validation table, or None.

    If a rule stopped the sequence, `expansion`, `moments` and `gram` cover all groups and the other attributes only
    those of the sequence.
    """

    options: Options
    expansion: Expansion
    moments: Moments
    gram: Gram
    prefixes: PrefixModels
    learned: Learned
    held: Validated | None = None
    decisions: tuple[str, ...] = ()
    """Sentences on what was decided about levels and pairs, if that was selected."""
    selected_terms: Selected | None = None
    """Which terms were selected, if some were."""

    @property
    def errors(self) -> Float | None:
        """Return the cross-validated errors, (steps + 1,); None without folds."""
        return None if self.measured is None else self.measured.mean

    @cached_property
    def selected(self) -> tuple[FeatureGroups, Index]:
        """Return the groups of the sequence with their raw columns, and their terms in the order of the file."""
        groups = self.expansion.groups
        order = [group for step in self.sequence.steps for group in step.adds if group < len(groups)]
        return groups if len(order) == len(groups) else groups.only(order), np.sort(self.sequence.columns)

    def stopped(self, *left_out: str) -> Stopped | None:
        """Return the record of the stopping rule, and of groups that were left out before; None without either."""
        epsilon, held, sequence = self.options.epsilon, self.held, self.sequence
        if epsilon is None and held is None and not left_out:
            return None
        selected = {group for step in sequence.steps for group in step.adds}
        excluded = (name for group, name in enumerate(self.expansion.groups.names) if group not in selected)
        cut = held is not None and held.steps < len(held.errors) - 1
        by_epsilon = sequence.longest is not None and not cut
        return Stopped(
            rule="validation" if cut else "epsilon" if by_epsilon else None,
            steps=len(sequence.steps),
            epsilon=epsilon,
            longest=sequence.longest if by_epsilon else None,
            validation=None if held is None else held.name,
            errors=None if held is None else tuple(e if math.isfinite(e) else None for e in held.errors.tolist()),
            left_out=(*excluded, *left_out),
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
        decisions: tuple[str, ...] = (),
    ) -> Model:
        """Return the model of the groups in the sequence.

        `left_out` names groups that were excluded before. `remarks` are warnings about the table, and `decisions` what
        was decided about it.
        """
        (groups, columns), rule, prefixes = self.selected, self.options, self.prefixes
        unused = len(self.expansion.groups.pairs) - len(groups.pairs)
        terms, family = self.expansion.terms, rule.fitted_family
        names = np.array(terms.features)[columns]
        unpenalised = given_sequence(self.gram, terms, [step.adds for step in self.sequence.steps], 0.0)
        collinear = np.zeros(len(self.gram.constant), dtype=np.bool_)
        collinear[unpenalised.columns] = unpenalised.state.factor.dropped  # combinations of earlier columns
        listed, may_be_collinear = self.expansion.listed
        listed = listed[columns]
        collinear = (collinear & ~self.gram.constant & may_be_collinear)[columns] & listed
        collinear &= self.moments.rows > len(columns)  # otherwise, whichever columns come last would be called so
        covered, gram = terms, self.gram  # the guarantee is against sets of all groups, with their own products
        if terms.products:
            covered, own = terms.with_own_products()
            gram = gram.restricted(own)
        costs, deviance, known = self.sequence.costs, self.learned.deviance, self.expansion.groups.names
        added = [tuple(known[g] for g in step.adds if g < len(known)) for step in self.sequence.steps]  # no products
        pairs = groups.joined_pairs(added)
        errors, best = (None, None) if self.measured is None else (self.measured.mean, self.measured.best)
        steps = tuple(
            StepRecord(
                group=added[k - 1][-1],
                adds=added[k - 1],
                pairs=pairs[k - 1],
                cost=step.cost,
                cumulative_cost=float(costs[k]),
                explained_variance=step.explained_variance,
                r2=None if self.r2 is None else float(self.r2[k]),
                cv_error=None if errors is None else float(errors[k]),
                best=None if best is None else best[k],
                alpha=float(self.alphas[k]),
                deviance=None if deviance is None else float(deviance[k]),
            )
            for k, step in enumerate(self.sequence.steps, start=1)
        )
        manifest = Manifest(
            name=name,
            task=target.task,
            family=family.label,
            link=family.link.name,
            target=target.columns,
            query=query,
            responses=target.responses,
            classes=target.classes,
            groups=groups,
            method=rule.by.name,
            cost_blind=rule.cost_blind,
            doubling=rule.doubling,
            first=tuple(group for group in rule.first if group in groups.positions),
            alpha=self.alpha,
            prior_error=None if errors is None else float(errors[0]),
            prior_deviance=None if deviance is None else float(deviance[0]),
            steps=steps,
            redundant=Redundant(
                constant=tuple(names[self.gram.constant[columns] & listed].tolist()),
                collinear=tuple(names[collinear].tolist()),
            ),
            guarantee=guarantee(gram, covered, rule, self.alpha, doubling_until=self.sequence.doubling_until),
            stopped=self.stopped(*left_out, *rule.without),
            selected=self.selected_terms,
            warnings=(*remarks, *warnings_of(self, target)),
            table_warnings=len(remarks),
            decisions=(*decisions, *self.decisions, *not_used(unused)),
            provenance=origin,
        )
        prefixes = replace(
            prefixes,
            mean=prefixes.mean[columns],
            scale=prefixes.scale[columns],
            columns=np.searchsorted(columns, prefixes.columns),
            expansion=Expansion.of(groups),
        )
        moments = self.moments.restricted(columns) if keep_moments and deviance is None else None
        return Model(manifest, prefixes, moments, self.learned.curvatures if keep_moments else None)

    @cached_property
    def r2(self) -> Float | None:
        """Return the R² of each prefix on the training table (steps + 1,), from its own coefficients, without penalty.

        For a likelihood it is 1 - deviance/null deviance. None where a response is constant.
        """
        deviance, own = self.learned.deviance, self.gram.own
        if deviance is not None:
            return 1.0 - deviance / deviance[0] if self.gram.yy.all() else None
        with single_blas_thread():
            return own.r2(explained_variances(self.prefixes, own))


class Candidates(NamedTuple):
    """Terms that a fit may have, what was selected of their bases, and sentences on the pairs among them."""

    terms: Terms
    choice: TermChoice
    said: tuple[str, ...] = ()


ALL = TermChoice()


def paired(candidates: Candidates, rows: Rows | None, options: Options) -> Candidates:
    """Return terms with the products of the pairs that `options.pairs` requests, as `with_pairs`, or as they are.

    They stay if it requests none, or the groups state pairs. "auto" needs folds, and as many rows as coefficients.
    """
    terms, moments = candidates.terms, candidates.terms.moments
    few = moments.rows < max(MIN_ROWS, moments.features * moments.responses)
    sought = are_sought(options, terms.expansion.groups, len(terms.parts))
    if rows is None or not sought or (options.pairs == "auto" and few):
        return candidates
    found = with_pairs(terms, rows, options)
    return candidates if found is None else Candidates(found[0], candidates.choice, found[1:])


def fit(
    parts: Sequence[Moments],
    groups: FeatureGroups,
    options: Options,
    observed: Observations | None = None,
    *,
    validation: Validation | None = None,
    expansion: Expansion | None = None,
    rows: Rows | None = None,
) -> Fit:
    """Learn the sequence and the coefficients of every prefix.

    Raise TrainingError if the options conflict or need more rows, or no step remains.

    Parameters
    ----------
    parts : Sequence[Moments]
        Moments of each fold. With a single part there is no cross-validation, and alpha must be a number.
    groups : FeatureGroups
        The groups, whose bases are complete; their terms without indicators are the features of the moments.
    observed : Observations | None
        The rows, for families other than "gaussian".
    expansion : Expansion | None
        The terms of the moments, if those include indicators; otherwise columns with gaps get indicators.
    validation : Validation | None
        Rows that choose how many of the steps within `options.epsilon` the model keeps.
    rows : Rows | None
        The rows to find pairs of columns in; None finds none.
    """
    moments = Moments.merged(parts)
    refuse(
        {
            f"{moments.rows} rows of weight {moments.weight:g}; expected at least 2 rows with weight": (
                moments.rows < 2 or not moments.weight > 0
            ),
            "alpha 'cv' needs folds; give at least 2, or a number for alpha": len(parts) == 1 and options.alpha == "cv",
            "nested errors need folds; give at least 2": len(parts) == 1 and options.nested,
        }
    )
    family = options.fitted_family
    if family.least_squares:
        observed = None
    elif observed is None:
        raise TrainingError(f"family {options.family!r} needs rows; pass `observed`")
    else:
        check_family(family.label, observed.target)
    whole = Terms(Expansion.of(groups) if expansion is None else expansion, parts, moments)
    least_squares = partial(LeastSquares, options=options)
    problem_of: Callable[..., LeastSquares | Likelihood] = (
        least_squares if observed is None else partial(Likelihood, options=options, observed=observed)
    )
    with single_blas_thread():
        found, nested = SelectedTerms(ALL, ALL), [Candidates(whole, ALL)]
        if expansion is None:
            found = selected_terms(whole, least_squares)
            choices = [found.best]
            if observed is not None:  # a likelihood may need neither levels nor finer curves
                curves = found.best._replace(levels=found.best.levels and 0)
                octiles = curves._replace(size=curves.size and min(curves.size, OCTILES))
                choices = [*dict.fromkeys((octiles, curves, found.best))]
            nested = [Candidates(whole.reduced(choice), choice) for choice in choices]
        first = nested[0].terms
        paired_by = partial(paired, rows=rows, options=options)
        if options.pairs == "auto" and (more := paired_by(nested[-1])) is not nested[-1]:
            nested.append(more)
        most = used = nested[-1]
        problem: Problem[Any, Any] = problem_of(most.terms, simple=None if most is nested[0] else first)
        if isinstance(problem, Likelihood) and len(parts) > 1:
            used = nested[problem.needed([each.terms for each in nested])]
        used = used if options.pairs == "auto" else paired_by(used)
        if used is not most:
            problem = problem_of(used.terms, simple=None if used is nested[0] else first)
        # One line may separate classes in few rows whose indicators it fits badly: the likelihood takes the lines,
        # unless hinges reduce its own error on held-out rows, too.
        few = observed is not None and observed.target.classes is not None and moments.rows <= SMALL
        if few and found.lines != found.best:
            lines = Candidates(whole.reduced(found.lines), found.lines)
            lines = lines if options.pairs == "auto" else paired_by(lines)
            of_lines = problem_of(lines.terms)
            used, problem = (used, problem) if problem.has_less_error(of_lines) else (lines, of_lines)
        chosen, terms = problem.choice, problem.terms
        prefixes = replace(problem.prefixes(chosen), expansion=terms.expansion)
        held = None if validation is None else validation.best(prefixes)
        if held is not None:
            chosen, prefixes = chosen.upto(held.steps), prefixes.upto(held.steps)
        learned = problem.learned(chosen) if isinstance(problem, Likelihood) else Learned()
    return Fit(
        chosen.alpha,
        chosen.sequence,
        chosen.alphas,
        chosen.measured,
        options=options,
        expansion=terms.expansion,
        moments=terms.moments,
        gram=terms.gram,
        prefixes=prefixes,
        learned=learned,
        held=held,
        decisions=(*level_decisions(whole.expansion, used.choice), *used.said),
        selected_terms=found.records.get(used.choice),
    )


def guarantee(
    gram: Gram, groups: FeatureGroups, options: Options, alpha: float, *, doubling_until: int | None = None
) -> Guarantee:
    """Return the guarantee of the sequence that the options learned at `alpha`; `doubling_until` as in `GroupOrder`."""
    by, doubled = options.by, doubling_until is not None
    covering = []
    if by.whitening_share(np.ones(1)) is None:
        covering = sorted(name for name, kind in methods().items() if kind().whitening_share(np.ones(1)) is not None)
    reasons = (
        (not options.fitted_family.least_squares, "the theorems are for least squares", doubling_until),
        (bool(options.first), "the user chose the first groups", doubling_until),
        (
            bool(groups.products),
            "pairs of columns join groups that gain more together, which the theorems do not cover",
            doubling_until,
        ),
        (
            any(group.requires for group in groups.groups),
            "groups that require others share costs, which the theorems do not cover",
            None,
        ),
        (bool(covering), f"the theorems cover {' and '.join(covering)}, not {by.name}", None),
        (options.cost_blind, "the theorems cover selection by gain per cost, not cost-blind selection", None),
        (doubled and not by.doubling_theorem, "the theorem on doubling is proved for fr only", doubling_until),
        (
            doubled and len(groups) > ENUMERATED,
            f"gamma of Eq. 9 is unknown: it is enumerated for at most {ENUMERATED} groups, and there are {len(groups)}",
            doubling_until,
        ),
    )
    for applies, why, until in reasons:
        if applies:
            return Guarantee(why=why, doubling_until=until)
    if doubled:
        return Guarantee(doubling_gamma=submodularity_ratio(gram, groups, alpha), doubling_until=doubling_until)
    return Guarantee(gamma=spectral_gamma(gram, groups, options.method, alpha))


def provenance(
    fitted: Fit,
    data: str,
    *,
    folds: int | None = None,
    seed: int | None = None,
    weights: str | None = None,
    class_weights: tuple[float, ...] | None = None,
    columns: tuple[str, ...] = (),
) -> Provenance:
    by_start = dict(zip((start for start, _ in fitted.expansion.spans), fitted.expansion.columns, strict=True))
    selected = set(fitted.selected[0].features)
    imputed = (by_start[start].name for start, _ in fitted.moments.missing if start in by_start)
    return Provenance(
        created=created(),
        library=__version__,
        data=data,
        rows=fitted.moments.rows,
        weight=fitted.moments.weight,
        imputed=tuple(name for name in imputed if name in selected),
        folds=folds,
        seed=seed,
        nested=fitted.options.nested,
        weights=weights,
        class_weights=class_weights,
        columns=columns,
    )


def not_used(pairs: int) -> tuple[str, ...]:
    """Return a sentence on the number of pairs of columns whose groups the model leaves out; none for 0."""
    said = f"not used: {pairs} of the pairs of columns, because the model leaves out one of their groups"
    return (said,) * (pairs > 0)


def warnings_of(fitted: Fit, target: Target) -> Iterator[str]:
    """Yield the warnings about a fit, the most important first.

    They are about constant targets, prefixes worse than shorter ones, penalties at the end of the grid, and classes of
    one row.
    """
    constant = [name for name, yy in zip(target.responses, fitted.gram.yy.tolist(), strict=True) if yy == 0]
    if constant:
        remedy = "every prefix predicts it; check the rows, or leave it out"
        yield f"target {listed(constant)} has one value in every row: {remedy}"
    sequence, measured = fitted.sequence, fitted.measured
    if measured is not None:
        mean = measured.mean
        best = int(mean.argmin())
        later = measured.between(best)  # within folds: their errors share what makes a fold difficult
        beyond_noise = (later.mean > WORSE_ERRORS * later.standard_error) | (later.mean > WORSE_SHARE * mean[best])
        last = max(np.flatnonzero(beyond_noise & (later.mean > WORSE_PART * mean[0])).tolist(), default=best)
        if last > best:
            where = f"step {best}" if best else "the base rate"
            cost, costs = fitted.expansion.groups.amount(sequence.costs[best]), sequence.costs
            prior = f", above {mean[0]:.4g} of the base rate" if best and mean[last] > mean[0] else ""
            yield (
                f"the cross-validated error is least at {where} ({mean[best]:.4g}, cost {cost}) and worse at "
                f"step {last} ({mean[last]:.4g}, cost {costs[last]:g}{prior}): answer by the policy best or "
                f"a budget of {costs[best]:g}, or leave out the later groups"
            )
    grid, alphas = fitted.options.grid, fitted.alphas[1:]
    largest = int((alphas == max(grid)).sum())
    if len(grid) > 1 and largest and largest >= LARGEST_SHARE * len(alphas):
        yield (
            f"{largest} of {len(alphas)} prefixes have the largest penalty of the grid, {max(grid):g}: their columns "
            "help little on held-out rows; look for wild values (--clamp 0.01), curves (--basis auto) or groups to "
            "leave out"
        )
    moments = fitted.moments
    if target.classes is not None and moments.weight == moments.rows:  # with weights, shares do not count rows
        means = moments.mean[moments.features : moments.features + moments.responses]
        counts = np.rint(moments.rows * class_shares(means)).tolist()
        single = [label for label, count in zip(target.classes, counts, strict=True) if count == 1]
        if single:
            what = (
                f"class {single[0]!r} has one row"
                if len(single) == 1
                else f"classes with one row each: {listed(single)}"
            )
            yield f"{what}; no error is measured on such a row: add rows, merge the class with another, or remove it"
