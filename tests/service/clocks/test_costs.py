"""The drill of the table of limits: a short form of it, without the lateness of others, which needs a quiet machine."""

from __future__ import annotations

from pathlib import Path

from anytime_service.limits.table import HEADERS, NAMES, PAGES, TABLE
from drills.costs import DRIVES, driving

ROWS = next(limit for limit in TABLE if limit.limit == "max_rows")
SHORT = {(HEADERS.element, "HTTP"), (NAMES.element, "POST"), (ROWS.element, "WebSocket"), (PAGES.element, "pages")}


def test_elements_at_their_limits_neither_stop_the_loop_nor_exceed_the_memory(tmp_path: Path) -> None:
    chosen = [drive for drive in DRIVES if (drive.element, drive.binding) in SHORT]
    assert {(drive.element, drive.binding) for drive in chosen} == SHORT
    with driving(tmp_path) as run:
        broken = [fault for drive in chosen for fault in run(drive, 1)]
    assert [fault for fault in broken if "ms late" not in fault] == []
