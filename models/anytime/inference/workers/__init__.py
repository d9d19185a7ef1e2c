"""Workers that compute feature groups in threads or processes while the caller watches the clock."""

from anytime.inference.workers.pool import Worker, Workers

__all__ = ["Worker", "Workers"]
