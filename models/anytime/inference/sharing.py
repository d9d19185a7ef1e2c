"""How far the contributions of groups and columns replace or cancel each other.

Contributions of correlated groups are not unique: with a small penalty one group may add 7 to a target of deviation 1,
and another subtract 6. With C = S + alpha I, the penalised correlations of the terms of a model, and its standardised
coefficients w, a model that is fitted again without the terms g explains

    1/2 w_g' ((C^-1)_gg)^-1 w_g

less (penalised F). So the deviation of what only g contributes is the root of w_g' ((C^-1)_gg)^-1 w_g. That of its
whole contribution is the root of w_g' C_gg w_g, which is never less. One inverse measures all groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anytime._linalg import single_blas_thread
from anytime.errors import clipped
from anytime.inference.subsets import ArrivedModel, SetCache, alpha_of
from anytime.model.model import Model
from anytime.tabulated import SHARE, Series, Tabulated
from anytime.types import Float, Index

MAX_SHARING = 3000
"""Most terms whose sharing is measured: the inverse takes about D^3 operations."""

LEAST_ALPHA = 1e-9
"""Penalty with which collinear terms have an inverse."""

CANCELS, SHARES, VISIBLE = -0.5, 0.9, 0.1
"""Two contributions cancel if their correlation is below the first number, each shares more than the second with other
groups, and has a deviation of more than the third, in deviations of the response."""


@dataclass(frozen=True)
class Sharing:
    """What a group or a column contributes alone, over the training rows.

    Attributes
    ----------
    name : str
        Of the group or the column.
    strength : float
        Standard deviation of its contribution, the root mean square over the scores.
    unique : float
        The part of that deviation which no other group or column of the model replaces.
    shared : float
        Share of the contribution's variance that others replace: 0 if it is correlated with none, 1 if collinear.
    partner : str | None
        Of much shared ones, the other whose contribution is the most correlated with this one; else None.
    correlation : float | None
        Of the two contributions; negative if they cancel.
    """

    name: str
    strength: float
    unique: float
    shared: float
    partner: str | None = None
    correlation: float | None = None
    cancels: bool = False


def sharing_table(
    found: Sequence[Sharing], strength: str = "strength", alone: str = "alone", shared: str = "shared"
) -> Tabulated:
    """Return a table of what each contributes, in this order; its columns have these names."""
    return Tabulated.of(
        Series("group", [each.name for each in found]),
        Series(strength, [each.strength for each in found]),
        Series(alone, [each.unique for each in found]),
        Series(shared, [each.shared for each in found], form=SHARE),
        Series("most with", [each.partner or "" for each in found]),
    )


def covariances(model: Model, *, every: bool) -> Callable[[Index], Float] | None:
    """Return a function for the covariance (n, n) of n terms in the training rows; None if the model lacks them.

    At the base rate of a likelihood all rows have the same curvature: the second derivatives are a multiple of it. The
    function reads n^2 of the D^2 numbers; if it is for `every` column, missing values are imputed once, in all of them.
    """
    moments, stored, scale = model.moments, model.curvatures, model.prefixes.scale
    if moments is not None:
        moments = moments.imputed() if every else moments
        return lambda terms: moments.restricted(terms).imputed().scatter[: len(terms), : len(terms)] / moments.weight
    if stored is None or stored.prefixes[0] > 0:
        return None

    def of_curvature(terms: Index) -> Float:
        H = stored.at(0, terms).H
        return np.asarray(H[1:, 1:] / H[0, 0] * np.outer(scale[terms], scale[terms]))

    return of_curvature


_CACHE = SetCache[tuple[Sharing, ...]]()


def group_sharing(model: Model, prefix: int | None = None, arrived: ArrivedModel | None = None) -> tuple[Sharing, ...]:
    """Return the sharing of the groups of a prefix, or of a set of groups, those that add the most alone first.

    A product of two columns belongs to the groups of both. The result is empty if the model has no covariances of its
    terms, or more than `MAX_SHARING` terms. It is computed once for each model and set.
    """
    last = model.steps if prefix is None else prefix
    names = model.computed[last] if arrived is None else model.order(arrived.groups)
    coef = model.prefixes.coef(last) if arrived is None else arrived.coef
    alpha = alpha_of(model, last) if arrived is None else arrived.alpha

    def measured() -> tuple[Sharing, ...]:
        here = np.arange(model.prefixes.ends[last]) if arrived is None else arrived.columns
        blocks = {name: [(model.places[name].start, model.places[name].stop)] for name in names}
        for each in model.product_places:
            if set(each.groups) <= set(names):
                for name in each.groups:
                    blocks[name].append((each.start, each.stop))
        return _sharing(model, here, coef, alpha, blocks)

    return _CACHE.get(model, (names, alpha, len(coef)), measured)


def column_sharing(model: Model, prefix: int) -> tuple[Sharing, ...]:
    """Return the sharing of the columns of a prefix, as `group_sharing`."""
    blocks: dict[str, list[tuple[int, int]]] = {}
    for group in model.computed[prefix]:
        place = model.places[group]
        for name, (start, stop) in zip(place.features, place.expansion.spans, strict=True):
            blocks[name] = [(place.start + start, place.start + stop)]
    for each in model.product_places:
        start = each.start
        for product, *_ in each.products:
            for side in product.sides:
                if side.name in blocks and start < model.prefixes.ends[prefix]:
                    blocks[side.name].append((start, start + len(product.terms)))
            start += len(product.terms)
    coef = model.prefixes.coef(prefix)
    return _sharing(model, np.arange(len(coef)), coef, alpha_of(model, prefix), blocks)


def cancelling(found: Sequence[Sharing]) -> str | None:
    """Return a sentence that names the groups whose contributions cancel, with the remedy; None without such."""
    pairs = dict.fromkeys(tuple(sorted((each.name, str(each.partner)))) for each in found if each.cancels)
    if not pairs:
        return None
    names = "; ".join(" and ".join(repr(clipped(name)) for name in pair) for pair in list(pairs)[:5])
    more = f"; and {len(pairs) - 5} more" if len(pairs) > 5 else ""
    return (
        f"contributions of collinear groups cancel: {names}{more}; read their sum, or train with a larger penalty "
        "(--one-se, or --alpha 0.1; in Python one_se=True, or alpha=0.1)"
    )


def _sharing(
    model: Model, here: Index, coef: Float, alpha: float, blocks: Mapping[str, Sequence[tuple[int, int]]]
) -> tuple[Sharing, ...]:
    """Return the sharing of blocks of the terms `here` (positions in the sequence) with coefficients (terms, P)."""
    covariance = covariances(model, every=True) if len(here) <= MAX_SHARING else None
    if covariance is None or not len(here):
        return ()
    terms, unit = model.prefixes.columns[here], model.prefixes.response_scale
    scale = model.prefixes.scale[terms]
    order, place = np.argsort(terms), np.argsort(np.argsort(terms))
    S = covariance(terms[order])[np.ix_(place, place)] / np.outer(scale, scale)
    w = coef * scale[:, np.newaxis] / unit
    with single_blas_thread():
        inverse = np.linalg.inv(S + max(alpha, LEAST_ALPHA) * np.eye(len(here)))
        at = {
            name: np.concatenate([np.searchsorted(here, np.arange(*span)) for span in spans])
            for name, spans in blocks.items()
        }
        alone = {name: _deviations(np.linalg.inv(inverse[np.ix_(i, i)]), w[i]) for name, i in at.items() if len(i)}
        whole = {name: _deviations(S[np.ix_(i, i)], w[i]) for name, i in at.items() if len(i)}
        shares = {
            name: 1.0 - min(1.0, float(np.sum(alone[name] ** 2) / max(_penalised(S, alpha, w, at[name]), 1e-300)))
            for name in alone
        }
        partners = _partners(S, w, at, [name for name in alone if shares[name] > SHARES])
    visible = {name: float(np.sqrt(np.mean(whole[name] ** 2))) > VISIBLE for name in alone}
    found = []
    for name, own in alone.items():
        partner, correlation = partners.get(name, (None, None))
        cancels = (
            partner is not None
            and correlation is not None
            and correlation < CANCELS
            and min(shares[name], shares[partner]) > SHARES
            and visible[name]
            and visible[partner]
        )
        found.append(
            Sharing(
                name,
                float(np.sqrt(np.mean((whole[name] * unit) ** 2))),
                float(np.sqrt(np.mean((np.minimum(own, whole[name]) * unit) ** 2))),
                shares[name],
                partner,
                correlation,
                cancels,
            )
        )
    return tuple(sorted(found, key=lambda each: -float(np.sum(alone[each.name] ** 2))))


def _deviations(C: Float, w: Float) -> Float:
    """Return the roots of w'Cw (P,); rounding may leave a negative one."""
    return np.asarray(np.sqrt(np.maximum(np.sum(w * (C @ w), axis=0), 0.0)))


def _penalised(S: Float, alpha: float, w: Float, at: Index) -> float:
    return float(np.sum(w[at] * (S[np.ix_(at, at)] @ w[at])) + max(alpha, LEAST_ALPHA) * np.sum(w[at] ** 2))


def _partners(S: Float, w: Float, at: Mapping[str, Index], names: Sequence[str]) -> dict[str, tuple[str, float]]:
    """Return, for some blocks, the block whose contribution is the most correlated with its own, with the correlation.

    Of several responses, the covariances of the contributions are summed.
    """
    every = [name for name, i in at.items() if len(i)]
    if not names or len(every) < 2:
        return {}
    M = np.zeros((len(every), len(every)))
    for p in range(w.shape[1]):
        A = np.zeros((len(w), len(every)))
        for column, name in enumerate(every):
            A[at[name], column] = w[at[name], p]
        M += A.T @ (S @ A)
    deviations = np.sqrt(np.maximum(np.diagonal(M), 1e-300))
    correlations = M / np.outer(deviations, deviations)
    np.fill_diagonal(correlations, 0.0)
    nearest = np.abs(correlations).argmax(axis=1)
    return {
        name: (every[i], float(correlations[k, i]))
        for k, (name, i) in enumerate(zip(every, nearest, strict=True))
        if name in names
    }
