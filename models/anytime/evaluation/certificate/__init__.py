"""Certificates: each prefix's share of the best possible explained variance."""

from __future__ import annotations

from anytime.evaluation.certificate.certify import CertifiedPrefix, at_least, certify_prefixes

__all__ = [
    "CertifiedPrefix",
    "at_least",
    "certify_prefixes",
]
