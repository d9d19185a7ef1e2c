"""Metrics, logs, traces, and the request that they belong to."""
