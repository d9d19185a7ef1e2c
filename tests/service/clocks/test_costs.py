"""The drill of the table of limits: a short form of it, without the lateness of others, which needs a quiet machine."""

from __future__ import annotations

from pathlib import Path

from drills.costs import DRIVES, HELD_MIB, run
from drills.costs_models import save_models
from drills.costs_server import costs_server

SHORT = (
    "headers of a request HTTP",
    "groups in a message POST",
    "rows WebSocket",
    "pages that wait for the worker thread pages",
)


def test_elements_at_their_limits_neither_stop_the_loop_nor_exceed_the_memory(tmp_path: Path) -> None:
    chosen = [drive for drive in DRIVES if f"{drive.element} {drive.binding}" in SHORT]
    assert len(chosen) == len(SHORT)
    with costs_server(save_models(tmp_path), HELD_MIB) as server:
        broken = [fault for drive in chosen for fault in run(server, drive, 1)]
    assert [fault for fault in broken if "ms late" not in fault] == []
