"""Certificates: how much of the best possible each prefix of a sequence reaches."""

from __future__ import annotations

from anytime.certificate.certify import CertifiedPrefix, certify

__all__ = ["CertifiedPrefix", "certify"]
