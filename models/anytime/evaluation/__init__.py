"""Measuring, calibrating, certifying and plotting models."""
