"""Generalised linear models: families, Newton's method and the greedy search by likelihood."""
