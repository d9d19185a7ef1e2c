"""Predictions from the groups received before a deadline."""
