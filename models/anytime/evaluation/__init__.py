"""Evaluation, calibration, certification and plots of models."""

SHAPES_DRAWN = 12
"""Default maximum number of columns whose shapes are drawn."""
