"""The command line: `anytime train`, `show`, `evaluate`, `plot`, `profile`, `costs` and others, and entry points."""

from __future__ import annotations

from anytime.cli.main import main

__all__ = ["main"]
