"""Predictions from the groups that have arrived, by a deadline."""
