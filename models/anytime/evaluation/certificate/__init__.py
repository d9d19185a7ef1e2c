"""Certificates: each prefix's share of the best possible explained variance."""

NODES = 200
"""Default maximum number of nodes of the search for each prefix."""
