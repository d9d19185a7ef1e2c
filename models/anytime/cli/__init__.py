"""The command line: `anytime train`, `show`, `evaluate`, `plot`, `profile`, `costs` and others, and entries."""

from __future__ import annotations

from anytime.cli.main import main

__all__ = ["main"]
