"""Training on a Dask cluster: workers read their own part of the table, and only moments and gradients travel.

Each worker needs this library and the table under the same path. What a worker held is read again elsewhere when it is
lost, so that costs time and nothing else.
"""

from __future__ import annotations

from anytime.training.dask.cluster import Cluster, connected

__all__ = [
    "Cluster",
    "connected",
]
