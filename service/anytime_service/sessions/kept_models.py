"""Model versions for the sessions of a shared store: a session is answered by the version that it began with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from anytime.model.model import Model
from anytime_service.clock import now_ms
from anytime_service.errors import MissingVersionError
from anytime_service.models.registry import ModelRegistry
from anytime_service.sessions.packing import Bounds

__all__ = ["MAX_KEPT", "ModelVersions"]

MAX_KEPT = 8
"""Number of retained versions that are no longer served; the least recently used one is removed first."""


class ModelVersions:
    """The served models, and versions from before a reload for as long as this replica uses their sessions.

    Parameters
    ----------
    registry : returns the registry of the models that are served now.
    keep_s : time after the last use of its sessions for which a version is retained.
    max_rows : largest number of rows of a session.

    Attributes
    ----------
    bounds : largest possible sizes of sessions of the models.
    """

    def __init__(self, registry: Callable[[], ModelRegistry], keep_s: float, max_rows: int) -> None:
        self._registry = registry
        self._max_rows = max_rows
        self._keep_ms = keep_s * 1000.0
        self._seen = registry()
        self._kept: OrderedDict[tuple[str, str], tuple[Model, float]] = OrderedDict()
        self.bounds = self._bounded()

    def __len__(self) -> int:
        """Return the number of retained versions that are no longer served."""
        return len(self._kept)

    def find(self, name: str, version: str) -> Model:
        """Return a model in one version.

        Raises
        ------
        MissingVersionError
            This replica does not have the version.
        """
        self.notice()
        found = _found(self._seen, name, version)
        if found is not None:
            return found
        if (name, version) not in self._kept:
            raise MissingVersionError(
                f"the session began with model {name[:200]!r} in version {version[:40]!r}, which this replica does not "
                "have; use another replica, load that version here too, or begin a new session"
            )
        model, _ = self._kept.pop((name, version))
        self._kept[name, version] = model, now_ms()
        return model

    def notice(self) -> None:
        """Update the versions after a reload, and remove those that no session has used for `keep_s`."""
        here, now = self._registry(), now_ms()
        if here is not self._seen:
            for model in (model for versions in self._seen.models.values() for model in versions):
                if _found(here, model.name, model.version) is None:
                    self._kept[model.name, model.version] = model, now
            self._seen = here
            self.bounds = self._bounded()
        while self._kept:
            name, (_, used_ms) = next(iter(self._kept.items()))  # the least recently used first
            if len(self._kept) <= MAX_KEPT and now - used_ms <= self._keep_ms:
                break
            del self._kept[name]

    def _bounded(self) -> Bounds:
        return Bounds.of((*self._seen.every(), *(model for model, _ in self._kept.values())), self._max_rows)


def _found(registry: ModelRegistry, name: str, version: str) -> Model | None:
    return next((model for model in registry.models.get(name, ()) if model.version == version), None)
