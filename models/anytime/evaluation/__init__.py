"""Evaluation, calibration, certification and plots of models."""
