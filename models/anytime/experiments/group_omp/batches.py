"""Repetitions in batches: the runs of an experiment, and their results by what was repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from anytime.experiments.experiment import Result, Results, Run, Setting

__all__ = ["batched", "by_name"]

BATCHES, BATCH = 10, 10
"""100 repetitions, as in the paper, ten to a run."""


def batched(
    setting: Setting, work: Callable[..., Result], argument: str, names: Iterable[str], *, quick: int
) -> list[Run]:
    """Runs `work(setting, <argument>=name, first=..., count=...)` that together repeat each name 100 times.

    Parameters
    ----------
    argument : the argument of `work` that takes the name.
    quick : repetitions of the one batch of a quick look.
    """
    batches, size = (1, quick) if setting.quick else (BATCHES, BATCH)
    return [
        Run(f"{name}-{batch}", work, {argument: name, "first": batch * size, "count": size})
        for name in names
        for batch in range(batches)
    ]


def by_name(results: Results, names: Iterable[str]) -> dict[str, list[Result]]:
    """The results of the batches of each name, in their order."""
    return {name: [found for run, found in results.items() if run.rpartition("-")[0] == name] for name in names}
