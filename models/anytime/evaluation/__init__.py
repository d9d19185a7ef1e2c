"""Evaluation, calibration, certification and plots of models."""

SHAPES_DRAWN = 12
"""Default maximum number of columns whose shapes are drawn."""

COVERAGE = 0.9
"""Default coverage of intervals and sets."""
