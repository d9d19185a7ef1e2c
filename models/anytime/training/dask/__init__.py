"""Training on a Dask cluster: workers read their own part of the table, and only moments and gradients travel.

Each worker needs this library and the table under the same path. If a worker is lost, other workers read its part
again, which costs time but does not change the result.
"""

from __future__ import annotations

from anytime.training.dask.cluster import Cluster, connected

__all__ = [
    "Cluster",
    "connected",
]
