"""Prediction service: models over HTTP and WebSocket, with answers by the deadline.

`create_app` builds the application, `load_registry` loads the models, and `serve` runs both. Importing this package has
no side effects: it reads no settings, builds no application and configures no logging. It imports each name below on
first use, so that the command line can report which package to install if a requirement of the server is missing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anytime_service.app import create_app
    from anytime_service.core.open_prediction import OpenPrediction
    from anytime_service.models.registry import ModelRegistry, load_registry
    from anytime_service.server.run import serve
    from anytime_service.settings import Settings, load_settings

__all__ = ["ModelRegistry", "OpenPrediction", "Settings", "create_app", "load_registry", "load_settings", "serve"]

_MODULES = {
    "ModelRegistry": "models.registry",
    "OpenPrediction": "core.open_prediction",
    "Settings": "settings",
    "create_app": "app",
    "load_registry": "models.registry",
    "load_settings": "settings",
    "serve": "server.run",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ValueError:  # the framework reads OpenTelemetry's variables, which count only where traces are on
        from anytime_service.telemetry.tracing import checked_environment  # noqa: PLC0415

        with checked_environment():
            return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
