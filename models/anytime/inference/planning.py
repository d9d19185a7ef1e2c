"""The order in which a run computes groups: that of one model's sequence, or one order for several models.

One order for several models extends it step by step. Each time it takes the step of any model, with those before it,
that reduces the sum of the models' remaining errors most per cost; a group computed for one model costs the others
nothing. The error of a model is the share of the risk of its base rate that its prefix leaves unexplained.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from anytime.errors import ExtractorError, listed, refuse, suggestion
from anytime.groups import CallCost, FeatureGroup
from anytime.inference.extraction import Task
from anytime.model.model import Model


def all_groups(models: Sequence[Model]) -> dict[str, FeatureGroup]:
    """Return the groups of several models by name.

    Raises ExtractorError if two models have different features or requirements under one name.
    """
    found: dict[str, FeatureGroup] = {}
    for model in models:
        for group in model.groups.groups:
            known = found.setdefault(group.name, group)
            if (known.features, known.requires) != (group.features, group.requires):
                raise ExtractorError(
                    f"group {group.name!r} of model {model.name!r} has other features or requirements than in another "
                    "model; expected the same group under the same name"
                )
    return found


def planned(
    models: Sequence[Model], prefixes: Sequence[int], extractors: Collection[str], order: Sequence[str] | None = None
) -> list[list[Task]]:
    """Return the tasks that complete a prefix of each model, step by step; `order` replaces the models' order.

    Raises ExtractorError if `order` lacks a group, has an unknown one, or one before a group that it requires.
    """
    groups = all_groups(models)
    if order is None:
        steps = _merged(models, prefixes, groups)
    else:
        _check_order(order, groups, extractors)
        wanted = {
            name
            for model, k in zip(models, prefixes, strict=True)
            for step in model.manifest.steps[:k]
            for name in step.adds
        }
        steps = [[name] for name in order if name in wanted]
    return tasks_of(steps, groups, extractors)


def tasks_of(
    steps: Iterable[Sequence[str]], groups: Mapping[str, FeatureGroup], extractors: Collection[str]
) -> list[list[Task]]:
    """Return the tasks of some steps: of those groups that have extractors."""
    computed = [[name for name in step if name in extractors] for step in steps]
    inside = set(chain.from_iterable(computed))
    return [[_task(groups, name, inside) for name in step] for step in computed if step]


def _task(groups: Mapping[str, FeatureGroup], name: str, inside: Collection[str]) -> Task:
    needs = list(groups[name].requires)
    for required in needs:  # the list grows
        needs += [each for each in groups[required].requires if each not in needs]
    uses = tuple(required for required in groups[name].requires if required in inside and not groups[required].features)
    return Task(name, uses=uses, needs=frozenset(needs).intersection(inside), shared=not groups[name].features)


def _merged(models: Sequence[Model], prefixes: Sequence[int], groups: Mapping[str, FeatureGroup]) -> list[list[str]]:
    steps: list[list[str]] = []
    done: set[str] = set()
    reached = [0] * len(models)

    def advanced(names: set[str]) -> list[int]:
        return [
            next((k for k in range(prefix, limit) if not names.issuperset(model.manifest.steps[k].adds)), limit)
            for model, prefix, limit in zip(models, reached, prefixes, strict=True)
        ]

    def gain_per_cost(model: Model, begin: int, end: int) -> float:
        new = {name for step in model.manifest.steps[begin:end] for name in step.adds} - done
        after = advanced(done | new)
        gain = sum(
            float(each.explained_shares[j] - each.explained_shares[i])
            for each, i, j in zip(models, reached, after, strict=True)
        )
        cost = sum(CallCost.of(groups[name].cost).of_call(1) for name in new)
        return gain / cost if cost > 0 else float("inf")

    while True:
        reached = advanced(done)
        open_models = [m for m, model in enumerate(models) if reached[m] < prefixes[m]]
        if not open_models:
            return steps
        best = open_models[0]
        if len(models) > 1:
            candidates = [(m, end) for m in open_models for end in range(reached[m] + 1, prefixes[m] + 1)]
            best, _ = max(candidates, key=lambda each: gain_per_cost(models[each[0]], reached[each[0]], each[1]))
        adds = models[best].manifest.steps[reached[best]].adds
        steps.append([name for name in adds if name not in done])
        done.update(adds)


def _check_order(order: Sequence[str], groups: Mapping[str, FeatureGroup], extractors: Collection[str]) -> None:
    for k, name in enumerate(order):
        if name not in groups:
            raise ExtractorError(f"order has {name!r}, which is no group; {suggestion(str(name), list(groups))}")
        late = [each for each in groups[name].requires if each in extractors and each not in order[:k]]
        if late or name in order[:k]:
            why = f"before {listed(late)}, which it requires" if late else "twice"
            raise ExtractorError(f"order has group {name!r} {why}; expected each group once, after its requirements")
    if missing := [name for name in extractors if name not in order]:
        raise ExtractorError(f"order lacks {listed(missing)}; expected every group that has an extractor")


def check_extractors(groups: Mapping[str, Sequence[str]], extractors: Mapping[str, Any]) -> None:
    """Raise ExtractorError unless every group with features has a callable extractor; a group without may have one.

    `groups` has the features of each group.
    """
    featured = [name for name, features in groups.items() if features]
    missing = [name for name in featured if name not in extractors]
    refuse(
        {
            **{
                f"there is no group {name!r} to extract; {suggestion(str(name), featured)}": True
                for name in extractors
                if name not in groups
            },
            **{
                f"the extractor of group {name!r} is {type(each).__name__}; expected a callable": not callable(each)
                for name, each in extractors.items()
            },
            f"no extractor for {listed(missing)}; expected one for each group that has features": bool(missing),
        },
        ExtractorError,
    )
