"""The command line: `anytime train`, `show`, `evaluate`, `compare`, `plot`, `resequence`, and more by entry points."""

from __future__ import annotations

from anytime.cli.main import main

__all__ = ["main"]
