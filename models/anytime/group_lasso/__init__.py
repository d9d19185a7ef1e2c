"""The cost-weighted Group Lasso on moments: its path of penalties, each solved to a duality gap."""

from __future__ import annotations

from anytime.group_lasso.path import GroupLassoPath, Point, Tracer, group_lasso_path

__all__ = ["GroupLassoPath", "Point", "Tracer", "group_lasso_path"]
