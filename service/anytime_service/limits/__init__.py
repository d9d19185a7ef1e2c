"""Limits on what clients can make grow: time, memory, rates."""
