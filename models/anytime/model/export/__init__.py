"""Export of a model as text, for programs and devices without this library: a JSON document or a C header."""

from __future__ import annotations

from anytime.model.export.c import c_source
from anytime.model.export.document import EXPORT, document

__all__ = [
    "EXPORT",
    "c_source",
    "document",
]
