"""Certificates: each prefix's share of the best possible explained variance."""
