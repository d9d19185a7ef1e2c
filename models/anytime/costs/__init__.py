"""Costs of groups: measured, simulated and compared with those of a model."""
