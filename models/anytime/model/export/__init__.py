"""A model as text, for programs and devices where this library is not: JSON, or C with no more than its own numbers."""

from __future__ import annotations

from anytime.model.export.c import c_source
from anytime.model.export.document import EXPORT, document

__all__ = [
    "EXPORT",
    "c_source",
    "document",
]
