"""The command line: `anytime train`, `show`, `evaluate`, `compare`, `plot`, `resequence`, and what other packages add."""

from __future__ import annotations

from anytime.cli.main import main

__all__ = ["main"]
