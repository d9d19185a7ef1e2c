"""Version of the installed distribution."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("anytime-linear")
except PackageNotFoundError:  # the source tree is not installed
    __version__ = "unknown"
