"""Certificates: how much of the best possible each prefix of a sequence reaches."""

from __future__ import annotations

from anytime.evaluation.certificate.certify import CertifiedPrefix, at_least, certify

__all__ = [
    "CertifiedPrefix",
    "at_least",
    "certify",
]
