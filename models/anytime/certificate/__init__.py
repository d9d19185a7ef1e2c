"""Certificates: how much of the best possible each prefix of a sequence reaches."""

from __future__ import annotations

from anytime.certificate.certify import CertifiedPrefix, certify
from anytime.certificate.shares import at_least

__all__ = ["CertifiedPrefix", "at_least", "certify"]
