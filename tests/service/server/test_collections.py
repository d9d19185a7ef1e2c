"""Full garbage collections wait until the server is idle."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from anytime_service.server.run import DUE_BUSY, DUE_IDLE, collect_when_due, control_collections


@pytest.fixture
def controlled() -> Iterator[None]:
    before = gc.get_threshold()
    control_collections()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def young_collections(count: int) -> None:
    for _ in range(count):
        gc.collect(0)


@pytest.mark.usefixtures("controlled")
def test_a_full_collection_waits_for_an_idle_server() -> None:
    young_collections(DUE_IDLE - 1 - gc.get_count()[1])
    collect_when_due(idle=True)
    assert gc.get_count()[1] == DUE_IDLE - 1
    young_collections(2)
    collect_when_due(idle=False)
    assert gc.get_count()[1] >= DUE_IDLE
    collect_when_due(idle=True)
    assert gc.get_count()[1] == 0


@pytest.mark.usefixtures("controlled")
def test_a_server_that_is_never_idle_collects_at_last() -> None:
    young_collections(DUE_BUSY)
    collect_when_due(idle=False)
    assert gc.get_count()[1] == 0


def test_a_program_that_embeds_the_server_keeps_its_own_collections() -> None:
    young_collections(DUE_IDLE + 1)
    counted = gc.get_count()[1]
    collect_when_due(idle=True)
    assert gc.get_count()[1] >= counted
