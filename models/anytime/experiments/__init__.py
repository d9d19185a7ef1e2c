"""The experiments of the papers, run again: `anytime reproduce`."""

from __future__ import annotations
