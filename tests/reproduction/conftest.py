"""Smaller stand-ins for the data sets, for tests that run whole experiments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

from anytime_reproduction import sets
from anytime_reproduction.sets import RealSet, SetName, load_set
from anytime_reproduction.uai.bounds import cheapest
from anytime_reproduction.uai.timeliness import validated_alpha


def _smaller(made: Callable[[int], RealSet], seed: int) -> RealSet:
    data, every = made(seed), slice(None, None, 3)
    query = None if data.query is None else data.query[every]
    return cheapest(replace(data, X=data.X[every], y=data.y[every], part=data.part[every], query=query), 12)


@pytest.fixture
def smaller_stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep 12 features and every third row of the stand-ins for rankings."""
    stand_ins: dict[SetName, Callable[[int], RealSet]] = {
        "yahoo_sample": sets.ranking_stand_in,
        "mq2008": sets.small_ranking_stand_in,
    }
    for name, made in stand_ins.items():
        monkeypatch.setitem(sets._SOURCES, name, (sets._SOURCES[name][0], partial(_smaller, made)))
    for cached in (load_set, validated_alpha):
        cached.cache_clear()
    yield
    for cached in (load_set, validated_alpha):
        cached.cache_clear()
