"""The models that a service answers from, by name and version."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from anytime.errors import AnytimeError, listed, suggestion
from anytime.inference.loaded import load
from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from anytime_service.errors import FieldError, RegistryError, UnknownModelError

__all__ = [
    "SUFFIX",
    "ModelRegistry",
    "load_registry",
    "reloaded",
]

SUFFIX = ".safetensors"
"""What a model file in a folder ends in; other files there are left alone."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _File:
    """A model and the state of its file when it was read."""

    model: Model
    state: tuple[int, int, int]


@dataclass(frozen=True)
class ModelRegistry:
    """Models by name, in the order in which they were given; never changed, only replaced as a whole.

    Attributes
    ----------
    models : the versions of each name, the newest first.
    paths : where they came from; empty for models that were at hand.
    """

    models: Mapping[str, tuple[Model, ...]]
    paths: tuple[Path, ...] = ()
    files: Mapping[Path, _File] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "models", MappingProxyType(dict(self.models)))

    @classmethod
    def of(cls, models: Iterable[Model]) -> ModelRegistry:
        """Registry of models at hand.

        Raises
        ------
        RegistryError
            Two have the same name and were never saved, so that no version tells them apart.
        """
        return cls(_by_name(models))

    def __len__(self) -> int:
        return len(self.models)

    def __iter__(self) -> Iterator[Model]:
        """Go through the newest version of each model."""
        return (versions[0] for versions in self.models.values())

    def every(self) -> Iterator[Model]:
        """Go through every version of each model."""
        return (model for versions in self.models.values() for model in versions)

    def get(self, name: str | None = None) -> Model:
        """Find a model by `name`, its newest version, or by `name@version`; the only one when no name is given.

        Raises
        ------
        UnknownModelError
            There is no such model, or none at all.
        FieldError
            No name was given and there are several models to choose from.
        """
        if name is not None and name in self.models:
            return self.models[name][0]
        if not self.models:
            raise UnknownModelError("no model is loaded; start the service with a model file")
        if name is not None:
            return self._version(name)
        if len(self.models) > 1:
            raise FieldError("model", f"several models are here; name one of {listed(self.models)}")
        return next(iter(self))

    def _version(self, told: str) -> Model:
        name, at, version = told.rpartition("@")
        if not at or name not in self.models:
            raise UnknownModelError(f"there is no model {told[:200]!r}; {suggestion(told[:200], list(self.models))}")
        for model in self.models[name]:
            if model.version == version:
                return model
        here = listed(model.version for model in self.models[name])
        raise UnknownModelError(f"model {name!r} is not here in version {version[:40]!r}; here: {here}")


def load_registry(paths: Iterable[str | Path]) -> ModelRegistry:
    """Load model files, and every `.safetensors` file in the folders given.

    Raises
    ------
    RegistryError
        A path is not there, or a folder has no model.
    ArtifactError
        A file is no model, or not a sound one.
    """
    return _loaded(tuple(Path(path) for path in paths), {})


def reloaded(registry: ModelRegistry, name: str | None = None) -> ModelRegistry:
    """Return a registry with the files read again that have changed since.

    Parameters
    ----------
    registry : is not changed.
    name : the model to replace; None replaces all. With a name, files of other models are neither read nor recorded,
        so they cannot stand in its way, and a later reload still compares them with the models served now.

    Raises
    ------
    RegistryError, ArtifactError
        As `load_registry`; or the models did not come from files, or a file now contains another model.
    UnknownModelError
        No file contains a model of that name.
    """
    if not registry.paths:
        raise RegistryError("these models did not come from files, so there is nothing to load again")
    if name is None:
        return _loaded(registry.paths, registry.files)
    others = {file: each for file, each in registry.files.items() if each.model.name != name}
    found: dict[Path, _File] = {}
    problems: list[Exception] = []
    for path in registry.paths:
        try:
            files = {file.resolve() for file in _files(path)} - others.keys()
        except RegistryError as error:
            problems.append(error)
            continue
        for file in sorted(files):
            before = registry.files.get(file)
            try:
                each = _read(file, before)
            except (AnytimeError, OSError) as error:
                if before is not None:
                    raise
                problems.append(error)  # a new file of unknown name
                continue
            if each.model.name == name:
                found[file] = each
    if not found:
        unknown = UnknownModelError(f"no file has a model {name!r}; {suggestion(name, list(registry.models))}")
        raise problems[0] if problems else unknown
    for problem in problems:
        _log.warning("model %r is loaded again without this: %s", name, problem)
    versions = _by_name(each.model for each in found.values())
    return ModelRegistry({**registry.models, **versions}, registry.paths, {**others, **found})


def _loaded(paths: tuple[Path, ...], known: Mapping[Path, _File]) -> ModelRegistry:
    resolved = dict.fromkeys(file.resolve() for path in paths for file in _files(path))
    files = {file: _read(file, known.get(file)) for file in resolved}
    return ModelRegistry(_by_name(file.model for file in files.values()), paths, files)


def _read(file: Path, before: _File | None) -> _File:
    """Return the model of a file, from memory if the file has not changed since `before`."""
    now = file.stat()
    state = (now.st_mtime_ns, now.st_size, now.st_ino)
    if before is not None and before.state == state:
        return before
    model = load(file)
    if before is not None:
        _check_successor(file, before.model, model)
    return _File(_warmed(model), state)


def _check_successor(file: Path, old: Model, new: Model) -> None:
    """Check that what clients send for the old model is not taken for something else: a file copied over another.

    Groups may come and go from one training to the next; what a name stands for may not change.
    """
    remedy = "give it a file of its own, or start the service again"
    if new.name != old.name:
        raise RegistryError(f"{str(file)!r} held model {old.name!r} and now holds {new.name!r}; {remedy}")
    was, now = ({group.name: group.features for group in model.groups.groups if group.features} for model in (old, new))
    other = sorted(name for name in was.keys() & now.keys() if was[name] != now[name])
    if other:
        raise RegistryError(
            f"{str(file)!r} holds a model {new.name!r} with other features in {listed(other)}; {remedy}"
        )
    if was and now and was.keys().isdisjoint(now):
        raise RegistryError(f"{str(file)!r} holds a model {new.name!r} that has none of the groups of before; {remedy}")


def _warmed(model: Model) -> Model:
    """Answer once, so that nobody waits for what is computed once."""
    Prediction(model).answer(policy="arrived")
    return model


def _by_name(models: Iterable[Model]) -> dict[str, tuple[Model, ...]]:
    versions: dict[str, dict[str, Model]] = {}
    for model in models:
        same = versions.setdefault(model.name, {})
        if model.version in same and not model.version:
            raise RegistryError(f"two models are called {model.name!r} and were never saved; save them, or rename one")
        same[model.version] = model
    return {
        name: tuple(sorted(same.values(), key=lambda model: model.manifest.provenance.created, reverse=True))
        for name, same in versions.items()
    }


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise RegistryError(
            f"there is no file or folder {str(path)!r}; expected model files ({SUFFIX}) or folders of them"
        )
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix == SUFFIX and file.is_file())
    if not files:
        raise RegistryError(f"folder {str(path)!r} has no {SUFFIX} file; train a model with --out into it first")
    return files
