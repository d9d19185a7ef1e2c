"""The command line: `anytime train`, `show`, `evaluate`, `compare`, `plot`, `resequence` and `certify`, and entries."""

from __future__ import annotations

from anytime.cli.main import main

__all__ = ["main"]
