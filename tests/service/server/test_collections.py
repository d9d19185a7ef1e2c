"""Garbage collections of older objects wait until the server is idle."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from anytime_service.server import run
from anytime_service.server.run import DUE_BUSY, DUE_IDLE, NEVER, collect_when_due, control_collections


@pytest.fixture
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("thresholds")
def test_python_collects_only_young_objects_by_itself() -> None:
    young = gc.get_threshold()[0]
    control_collections()
    assert gc.get_threshold() == (young, NEVER, NEVER)
    assert gc.get_freeze_count() > 1000


@pytest.mark.parametrize(
    ("threshold", "count", "idle", "collects"),
    [
        (NEVER, DUE_IDLE - 1, True, False),
        (NEVER, DUE_IDLE, True, True),
        (NEVER, DUE_IDLE, False, False),
        (NEVER, DUE_BUSY, False, True),
        (10, DUE_BUSY, True, False),  # a program that embeds the server controls its own collections
    ],
)
def test_a_full_collection_waits_for_an_idle_server(
    threshold: int, count: int, idle: bool, collects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected: list[int] = []
    stand_in = SimpleNamespace(
        get_threshold=lambda: (700, threshold, threshold),
        get_count=lambda: (0, count, 0),
        collect=lambda: collected.append(2),
    )
    monkeypatch.setattr(run, "gc", stand_in)
    collect_when_due(idle=idle)
    assert bool(collected) == collects
