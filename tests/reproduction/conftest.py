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


def _smaller(made: Callable[[int], RealSet], features: int, seed: int) -> RealSet:
    data, every = made(seed), slice(None, None, 3)
    query = None if data.query is None else data.query[every]
    return cheapest(replace(data, X=data.X[every], y=data.y[every], part=data.part[every], query=query), features)


@pytest.fixture
def smaller_stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep few features and every third row of the stand-ins for rankings; groups of 20 need more than 20."""
    stand_ins: dict[SetName, tuple[Callable[[int], RealSet], int]] = {
        "yahoo_sample": (sets.ranking_stand_in, 24),
        "mq2008": (sets.small_ranking_stand_in, 12),
    }
    for name, (made, features) in stand_ins.items():
        monkeypatch.setitem(sets._SOURCES, name, (sets._SOURCES[name][0], partial(_smaller, made, features)))
    for cached in (load_set, validated_alpha):
        cached.cache_clear()
    yield
    for cached in (load_set, validated_alpha):
        cached.cache_clear()
