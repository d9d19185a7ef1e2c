"""A pytest plugin that names each test to coverage, and stores its outcome and time.

Coverage runs in every process that inherits `COVERAGE_PROCESS_START`. A process that a test starts inherits
`PYTEST_CURRENT_TEST` too, from which `coverage.ini` names its lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from coverage import Coverage


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    measured = Coverage.current()
    assert measured is not None
    measured.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        measured.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(os.environ["MUTANTS_TESTS"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps([report.nodeid, report.when, report.outcome, report.duration]) + "\n")


def pytest_sessionfinish() -> None:
    measured = Coverage.current()
    assert measured is not None
    measured.save()
