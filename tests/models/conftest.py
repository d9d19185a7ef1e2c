"""Fixtures of the library's tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter an empty working directory; modules extend this fixture with their files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANYTIME_DEBUG", raising=False)
    return tmp_path
