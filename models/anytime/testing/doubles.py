"""A model made from a few numbers, a clock that a test moves, and a runner whose groups take scripted times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from types import TracebackType
from typing import Any, Self

import numpy as np

from anytime._version import __version__
from anytime.errors import ValuesError, refuse, suggestion, summary
from anytime.groups import load_groups
from anytime.inference.deadline import checked_seconds
from anytime.inference.planning import check_extractors
from anytime.inference.prediction import Answer, Prediction
from anytime.loaded import LoadedModel
from anytime.model.manifest import Manifest, Provenance, StepRecord
from anytime.model.model import Model
from anytime.model.prefixes import PrefixModels
from anytime.types import Reason


def linear_model(
    coefficients: Mapping[str, Sequence[float]],
    *,
    intercept: float = 0.0,
    costs: Mapping[str, float] | None = None,
    name: str = "test",
) -> LoadedModel:
    """Return a model of known coefficients: its prediction is the intercept and the terms of the received prefix.

    Parameters
    ----------
    coefficients : Mapping[str, Sequence[float]]
        The coefficients of each group, in the order of the sequence; the columns of group `g` are `g0`, `g1`, ...
    intercept : float
        The base rate.
    costs : Mapping[str, float] | None
        Cost of each group, in ms per row; 1 for a group without one.
    name : str
        Name of the model.

    Raises
    ------
    ValuesError
        There is no group, a group has no coefficient, or a cost belongs to no group.

    Examples
    --------
    >>> from anytime.testing import linear_model
    >>> prediction = linear_model({"cheap": [2.0], "costly": [1.0, -1.0]}, intercept=10.0).open()
    >>> prediction.add("cheap", [3.0])
    >>> prediction.answer().prediction
    16.0
    """
    is_empty = not coefficients or not all(map(len, coefficients.values()))
    unknown = (group for group in costs or () if group not in coefficients)
    refuse(
        {
            "a group has no coefficients; expected at least one group, each with one or more": is_empty,
            **{f"there is no group {group!r}; {suggestion(group, list(coefficients))}": True for group in unknown},
        },
        ValuesError,
    )
    cost = {group: (costs or {}).get(group, 1.0) for group in coefficients}
    groups = load_groups(
        {
            "cost_unit": "ms",
            "groups": [
                {"name": group, "features": [f"{group}{i}" for i in range(len(values))], "cost": cost[group]}
                for group, values in coefficients.items()
            ],
        }
    )
    steps = tuple(
        StepRecord(
            group=group,
            adds=(group,),
            cost=cost[group],
            cumulative_cost=total,
            explained_variance=i / len(cost),
            r2=i / len(cost),
            cv_error=1.0 - i / len(cost),
            alpha=0.0,
        )
        for i, (group, total) in enumerate(zip(cost, accumulate(cost.values()), strict=True), 1)
    )
    manifest = Manifest(
        name=name,
        version="test",
        task="regression",
        target=("y",),
        responses=("y",),
        groups=groups,
        method="fr",
        alpha=0.0,
        prior_error=1.0,
        steps=steps,
        provenance=Provenance(created="", library=__version__, data="by hand", rows=1, weight=1.0),
    )
    ends = np.array([*accumulate(map(len, coefficients.values()), initial=0)])
    coef = np.concatenate([np.asarray(values, dtype=np.float64) for values in coefficients.values()])
    prefixes = PrefixModels(
        mean=np.zeros(len(coef)),
        scale=np.ones(len(coef)),
        intercept=np.array([intercept]),
        response_scale=np.ones(1),
        columns=np.arange(len(coef)),
        ends=ends,
        packed=np.concatenate([coef[:end] for end in ends])[:, np.newaxis],
    )
    return LoadedModel.of(Model(manifest, prefixes))


class FakeClock:
    """A clock that a test moves.

    Attributes
    ----------
    ms : float
        The time, in milliseconds.
    """

    def __init__(self, ms: float = 0.0) -> None:
        self.ms = ms

    def advance(self, ms: float) -> None:
        """Move the time forward."""
        if not ms >= 0:
            raise ValuesError(f"ms is {ms!r}; expected a number, 0 or more")
        self.ms += ms


class ScriptedRunner:
    """A double of `Runner` whose groups take scripted times: it computes them at once, and moves a fake clock.

    Groups are computed in sequence order. One that ends after the deadline is late: it is computed, and its values are
    not used. A group whose extractor raises ends the run, as under the policy "prefix".

    Parameters
    ----------
    model : Model
        The model that answers.
    extractors : Mapping[str, Callable[[Any], Any]]
        A callable for each group with features, as for `Runner`.
    took_ms : Mapping[str, float] | None
        Scripted time of each group in milliseconds; 0 for a group without one.
    clock : FakeClock | None
        The clock that a run moves.

    Raises
    ------
    ExtractorError
        Extractors are missing or belong to no group.
    ValuesError
        A scripted time belongs to no group, or is negative.

    Examples
    --------
    >>> from anytime.testing import ScriptedRunner, linear_model
    >>> model = linear_model({"quick": [1.0], "slow": [10.0]})
    >>> extractors = {"quick": lambda x: [x], "slow": lambda x: [x]}
    >>> with ScriptedRunner(model, extractors, took_ms={"slow": 30.0}) as runner:
    ...     answer = runner.run(2.0, deadline_ms=20)
    >>> answer.prediction, answer.reason, answer.unused_groups
    (2.0, 'deadline', ('slow',))
    """

    def __init__(
        self,
        model: Model,
        extractors: Mapping[str, Callable[[Any], Any]],
        *,
        took_ms: Mapping[str, float] | None = None,
        clock: FakeClock | None = None,
    ) -> None:
        check_extractors({group.name: group.features for group in model.groups.groups}, extractors)
        refuse(
            {
                f"took_ms of {group!r} is {took!r}; expected a group's milliseconds, 0 or more": (
                    group not in extractors or not took >= 0
                )
                for group, took in (took_ms or {}).items()
            },
            ValuesError,
        )
        self.clock = clock or FakeClock()
        self._model = model
        self._extractors = dict(extractors)
        self._took_ms = dict(took_ms or {})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: there is no worker to end."""

    def run(self, x: Any, deadline_ms: float, *, budget: float | None = None, rows: int = 1) -> Answer:
        """Return the answer of a run in which every group took its scripted time; raises as `Runner.run`."""
        checked_seconds(deadline_ms)
        model, prediction, begun = self._model, Prediction(self._model, rows), self.clock.ms
        wanted = [
            name
            for step in model.manifest.steps[: model.affordable(budget)]
            for name in step.adds
            if name in self._extractors
        ]
        reason: Reason = "complete" if model.affordable(budget) == model.steps else "budget"
        note: str | None = None
        unused: tuple[str, ...] = ()
        for group in wanted:
            ends_ms = self.clock.ms - begun + self._took_ms.get(group, 0.0)
            try:
                values = prediction.checked(group, self._extractors[group](x))
            except Exception as error:  # an extractor may raise anything
                reason, note = "end", f"group {group!r} failed: {summary(error)}"
                break
            if ends_ms > deadline_ms:
                self.clock.ms, reason, unused = begun + deadline_ms, "deadline", (group,)
                break
            self.clock.ms = begun + ends_ms
            prediction.add_checked(group, values)
        answer = replace(
            prediction.answer(budget, reason=reason, elapsed_ms=self.clock.ms - begun), unused_groups=unused
        )
        return answer if note is None else answer.with_note(note)
