"""Settings, flags and fixtures of all tests."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from inspect import signature
from pathlib import Path

import pytest
import scipy.linalg  # noqa: F401  (numpy and scipy load an OpenBLAS each; only loaded ones can be limited)
from hypothesis import settings
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).parents[1]

settings.register_profile("tests", deadline=None, derandomize=True)  # no clock, and the same examples in every run
settings.load_profile("tests")

NOT_PARTS = (
    "no real data sets",
    "root may write anywhere",
    "SCIPY_ARRAY_API",
    "no longer doubles",
    "no /proc",
    "no documentation packages",
)
"""Reasons to skip that depend on this machine or on `make docs`, not on a missing optional part."""

LONGEST = ("test_readme.py", "test_reproduce.py")
"""Files whose tests start first: one that takes a minute would otherwise run alone at the end."""

_skipped: list[str] = []


def pytest_configure() -> None:
    """Limit BLAS to one thread: the products are small, and the threads of several workers would wait for each other.

    `make test-kernels` sets other numbers. Byte code is stored in any environment: each worker and each process of a
    test would compile every module again.
    """
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    threadpool_limits(int(os.environ.get("OPENBLAS_NUM_THREADS") or 1))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one more than the cores, since many tests of the service wait for a deadline or for another process."""
    return min((os.cpu_count() or 1) + 1, 6)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate", action="store_true", help="rewrite the golden files of the current formats")
    parser.addoption("--heavy", action="store_true", help="also run the tests with the mark `heavy`")
    parser.addoption(
        "--every-part", action="store_true", help="fail if a test skips because an optional part is missing"
    )


def _note_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if not any(words in reason for words in NOT_PARTS):
            _skipped.append(f"{report.nodeid}: {reason}")


pytest_runtest_logreport = pytest_collectreport = _note_skip


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--every-part") and _skipped:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--every-part") and _skipped:
        terminalreporter.section("skipped because a part is missing")
        for line in _skipped:
            terminalreporter.line(line)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)
    if not config.getoption("--heavy"):
        heavy = [item for item in items if item.get_closest_marker("heavy")]
        items[:] = [item for item in items if not item.get_closest_marker("heavy")]
        config.hook.pytest_deselected(items=heavy)
    for item in items:
        if "shared_data" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.shared_data)


@pytest.fixture(scope="module", autouse=True)
def _short_collections() -> None:
    """Exclude imported modules and earlier objects from full collections, which would take 0.25 s each.

    Services run in this process, and collections stop them.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def linear_by_default() -> Iterator[None]:
    """Replace the default basis "auto" by that of the type of each column, for modules that are not about curves."""
    from anytime.cli.train import train  # noqa: PLC0415
    from anytime.estimators import Estimator  # noqa: PLC0415
    from anytime_reproduction.compare import compare  # noqa: PLC0415

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Estimator.__init__, "__kwdefaults__", {**(Estimator.__init__.__kwdefaults__ or {}), "basis": None}
        )
        for command in (train, compare):
            stated = signature(command)
            parameters = [p.replace(default=None) if p.name == "basis" else p for p in stated.parameters.values()]
            patch.setattr(command, "__signature__", stated.replace(parameters=parameters))
        yield


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter an empty working directory; modules extend this fixture with their files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANYTIME_DEBUG", raising=False)
    return tmp_path


@pytest.fixture(scope="session")
def regenerate(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--regenerate"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no real data sets next to the project (../shared/data)")
    return folder
