"""Version of the service."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["release"]


def release() -> str:
    """Return the version of the installed distribution."""
    try:
        return version("anytime-linear")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"
