"""Moments: the sums over rows that every least-squares fit needs."""
