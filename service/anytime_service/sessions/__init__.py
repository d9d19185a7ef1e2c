"""Sessions: groups that several requests share, in memory or in Redis."""

from __future__ import annotations

from anytime.errors import AnytimeError
from anytime_service.core.service import PredictionService
from anytime_service.limits.table import SESSION_BYTES
from anytime_service.sessions.store import MemorySessions, SessionStore
from anytime_service.urls import MEMORY

__all__ = ["session_store"]


def session_store(service: PredictionService) -> SessionStore:
    """Return the session store that the settings name, and register its metrics.

    Raise AnytimeError if a required package is not installed, or a parameter of the store's URL is invalid.
    """
    settings = service.settings
    store: SessionStore = MemorySessions(settings.max_sessions, settings.session_ttl_s)
    if settings.session_store != MEMORY:
        try:
            from anytime_service.sessions.redis_store import ModelVersions, RedisSessions  # noqa: PLC0415  (an optional package)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "redis":
                raise
            raise AnytimeError(
                "ANYTIME_SESSION_STORE is the URL of a Redis server, which needs the package redis; run "
                "pip install 'anytime-linear[redis]'"
            ) from error
        store = RedisSessions(
            settings.session_store,
            settings.session_store_timeout_ms,
            settings.max_sessions,
            settings.session_ttl_s,
            ModelVersions(
                lambda: service.registry,
                settings.session_ttl_s + settings.max_deadline_ms / 1000.0,
                settings.max_rows,
                settings.session_store_timeout_ms * int(SESSION_BYTES),
            ),
            service.tuning,
        )
    service.metrics.gauges["sessions"].set_function(lambda: len(store))
    service.metrics.gauges["session_store_up"].set_function(lambda: float(store.trouble is None))
    return store
