"""From the arguments of `anytime costs` to distributions of what groups take, and costs of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from anytime.cli.console import remark
from anytime.cli.costing import Learned, histogram_bucket
from anytime.distributions import CostDistributions, milliseconds
from anytime.errors import AnytimeError
from anytime.groups import FeatureGroups
from anytime.groups_files import write_text
from anytime.scraping import added, began_anew, histograms, kept, of_model, paired, pieces, since, tallies

__all__ = ["KEY", "learned_costs", "metrics_of"]

KEY = "ANYTIME_KEY"
"""Variable of the environment that has the key, if one is needed."""


def metrics_of(sources: Sequence[str], earlier: Sequence[str], model: str, keep: Path | None) -> CostDistributions:
    """What services tell of the groups of a model, less what each had told before; kept as text where asked.

    Raises
    ------
    AnytimeError
        As `scraped`, `paired`, `tallies`, `of_model` and `histograms`; or nothing has come since.
    """
    key = os.environ.get(KEY) or None
    now = [piece for source in sources for piece in pieces(source, key)]
    told = of_model([tallies(piece.text) for piece in now], model)
    if earlier:
        before = paired(now, [piece for source in earlier for piece in pieces(source, key)])
        for i, piece in enumerate(before):
            then = {} if piece is None else tallies(piece.text).get(model, {})
            if began_anew(told[i], then):
                remark(f"{now[i].source} began anew since: all that it tells counts")
            else:
                told[i] = since(told[i], then)
    found = histograms(added(told))
    if keep is not None:
        write_text(kept(now), keep)
    if not found:
        raise AnytimeError(f"no group of model {model!r} has come since; wait for some predictions")
    return CostDistributions(source=f"anytime costs --from {' --from '.join(sources)}", groups=dict(found))


def learned_costs(groups: FeatureGroups, found: CostDistributions, quantile: float | None, least: int) -> list[Learned]:
    """What each group costs, in the order of the groups: as it was, where fewer than `least` values were measured."""
    factor = milliseconds(groups.cost_unit)
    learned: list[Learned] = []
    for group in groups.groups:
        old = None if factor is None else group.cost * factor
        told = found.groups.get(group.name)
        count = 0 if told is None else told.count
        if not group.features:
            learned.append(Learned(group.name, old or 0.0, old, 0, why="kept: it has no features, so it never comes"))
        elif told is None or count < least:
            learned.append(Learned(group.name, old or 0.0, old, count, why=f"kept: fewer than {least} were measured"))
        else:
            bucket = histogram_bucket(found, group.name, quantile)
            learned.append(Learned(group.name, found.cost(group.name, quantile), old, count, bucket))
    return learned
