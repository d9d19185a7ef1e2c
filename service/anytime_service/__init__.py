"""The prediction service: models behind HTTP, answered by the deadline.

`create_app` builds the application, `load_registry` the models behind it and `serve` runs both. Importing does nothing:
no settings are read, no application is built and no logging is set up. What is named here is imported when it is first
used, so that the command line can say what to install where the server's own requirements are missing.
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

_HOMES = {
    "ModelRegistry": "models.registry",
    "OpenPrediction": "core.open_prediction",
    "Settings": "settings",
    "create_app": "app",
    "load_registry": "models.registry",
    "load_settings": "settings",
    "serve": "server.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
