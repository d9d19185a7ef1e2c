"""Limits on what clients can consume: time, memory and request rates."""
