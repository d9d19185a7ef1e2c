"""Registry of the loaded models, by name and version."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from anytime.errors import AnytimeError, listed, suggestion
from anytime.inference.prediction import Prediction
from anytime.loaded import load
from anytime.model.model import Model
from anytime_service.errors import FieldError, RegistryError, UnknownModelError
from anytime_service.schemas.catalogue import ModelSummary, summary

SUFFIX = ".safetensors"  # file name suffix of model files; the registry ignores other files in a folder

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _File:
    """A model and the state of its file at loading time."""

    model: Model
    state: tuple[int, ...]


@dataclass(frozen=True)
class ModelRegistry:
    """An immutable registry of models by name, in the order in which they were given.

    Attributes
    ----------
    models : Mapping[str, tuple[Model, ...]]
        The versions of each name, the newest first.
    paths : tuple[Path, ...]
        Files and folders that the models were loaded from; empty for a registry made by `of`.
    files : Mapping[Path, _File]
        The loaded files by the path at which they are served. A symbolic link is not resolved: what it refers to may be
        replaced, as a file may.
    """

    models: Mapping[str, tuple[Model, ...]]
    paths: tuple[Path, ...] = ()
    files: Mapping[Path, _File] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, models: Iterable[Model]) -> ModelRegistry:
        """Return a registry of loaded models; raise RegistryError if two unsaved models have the same name."""
        return cls(_by_name(models))

    def __len__(self) -> int:
        return len(self.models)

    def __iter__(self) -> Iterator[Model]:
        """Iterate over the newest version of each model."""
        return (versions[0] for versions in self.models.values())

    def every(self) -> Iterator[Model]:
        """Iterate over all versions of each model."""
        return (model for versions in self.models.values() for model in versions)

    def get(self, name: str | None = None) -> Model:
        """Return the newest version of `name`, or the version `name@version`; without a name, the only model.

        Raise UnknownModelError if the registry has no such model, and FieldError if a name is needed.
        """
        if not self.models:
            raise UnknownModelError("no model is loaded; start the service with a model file")
        if name is None and len(self.models) > 1:
            raise FieldError("model", f"several models are loaded; name one of {listed(self.models)}")
        if name is None or name in self.models:
            return self.models[next(iter(self.models)) if name is None else name][0]
        base, _, version = name.rpartition("@")
        versions = {model.version: model for model in self.models.get(base, ())}
        if not versions:
            raise UnknownModelError(f"there is no model {name[:200]!r}; {suggestion(name[:200], list(self.models))}")
        if version not in versions:
            raise UnknownModelError(
                f"model {base!r} has no version {version[:40]!r}; loaded versions: {listed(versions)}"
            )
        return versions[version]


def load_registry(paths: Iterable[str | Path]) -> ModelRegistry:
    """Load model files, and every `.safetensors` file in the given folders.

    Raise RegistryError if there is no file, and ArtifactError if a file is not a valid model file.
    """
    return reloaded(ModelRegistry({}, tuple(Path(path) for path in paths)))


def reloaded(registry: ModelRegistry, name: str | None = None, *, force: bool = False) -> ModelRegistry:
    """Return a new registry that reloads the files which have changed.

    With a name, the function neither reads nor records files of other models. An error in such a file therefore has no
    effect, and a later reload still compares it with the served model.

    With `force`, a file may change the meaning of what clients have stored, see `_check_successor`.

    Raises as `load_registry`; RegistryError also if the models were not loaded from files or a file now contains a
    different model; UnknownModelError if no file contains a model of that name.
    """
    if not registry.paths:
        raise RegistryError("the models were not loaded from files; start the service with model files or folders")
    every = name is None
    others = {file: each for file, each in registry.files.items() if not every and each.model.name != name}
    found: dict[Path, _File] = {}
    problems: list[Exception] = []
    files = dict.fromkeys(file for path in registry.paths for file in _files(path))
    for file in [each for each in files if each not in others]:
        try:
            read = _read(file, registry.files.get(file), force=force)
        except (AnytimeError, OSError) as error:
            if every or file in registry.files:
                raise
            problems.append(error)  # a new file of unknown name, or a path without files
        else:
            if every or read.model.name == name:
                found[file] = read
    if name is not None and not found:
        unknown = f"no file contains a model {name!r}; {suggestion(name, list(registry.models))}"
        raise next(iter(problems), UnknownModelError(unknown))
    for problem in problems:
        _log.warning("model %r was reloaded, except for: %s", name, problem)
    versions = _by_name(each.model for each in found.values())
    return ModelRegistry(versions if every else {**registry.models, **versions}, registry.paths, {**others, **found})


def _read(file: Path, before: _File | None, *, force: bool) -> _File:
    """Load a file of `_files` unless it is as `before`; raise RegistryError if it is missing, else as `reloaded`."""
    if file.is_dir():
        raise RegistryError(f"folder {str(file)!r} has no {SUFFIX} file; train a model with --out into it")
    if not file.exists():
        raise RegistryError(
            f"there is no file or folder {str(file)!r}; expected model files ({SUFFIX}) or folders of them"
        )
    now = file.stat()
    state = (now.st_mtime_ns, now.st_size, now.st_dev, now.st_ino)
    if before is not None and before.state == state:
        return before
    model = load(file)
    if before is not None:
        _check_successor(file, before.model, model, force=force)
    Prediction(model).answer(policy="arrived")  # so that the first request does not wait for lazily computed values
    return _File(model, state)


def _check_successor(file: Path, old: Model, new: Model, *, force: bool) -> None:
    """Raise RegistryError if a model changes the meaning of what clients may have stored.

    A new training may add and remove groups. The features of a group, the indices of levels, the unit of budgets, and
    the form of the answers must not change, unless `force` is given: a user may have copied the wrong file.
    """
    if new.name != old.name:
        raise RegistryError(
            f"{str(file)!r} contained model {old.name!r} and now contains {new.name!r}, the name of the file that the "
            f"training wrote; train with --out FOLDER/{old.name}{SUFFIX}, use a separate file, or restart the service"
        )
    was, now = ({group.name: group.features for group in model.groups.groups if group.features} for model in (old, new))
    before, after = summary(old, ()), summary(new, ())
    known = {column.name: column for column in before.columns}
    changed = [
        f"{what} {now!r} instead of {was!r}"
        for (what, was), now in zip(_form(before).items(), _form(after).values(), strict=True)
        if was != now
    ]
    for column in after.columns:
        same = known.get(column.name, column)
        levels = column.levels and column.levels[: len(same.levels or ())]
        if (column.type, levels) != (same.type, same.levels):
            what = f"levels {listed(column.levels or ())}" if column.type == same.type else f"type {column.type!r}"
            changed.append(f"{what} of column {column.name!r}")
    change = f"with other meanings: {'; '.join(changed[:5])}" if changed else ""
    if was and now and was.keys().isdisjoint(now):
        change = "without any of the previous groups"
    if other := sorted(name for name in was.keys() & now.keys() if was[name] != now[name]):
        change = f"with other features in {listed(other)}"
    if change and not force:
        raise RegistryError(
            f"{str(file)!r} now contains a model {new.name!r} {change}; use a separate file for it, reload it with "
            "force=true, or restart the service"
        )


def _form(model: ModelSummary) -> dict[str, object]:
    """Return what a client knows of budgets and answers; the name of a single response is not in an answer."""
    return {
        "cost unit": model.cost_unit,
        "task": model.task,
        "classes": model.classes,
        "responses": model.responses if len(model.responses) > 1 else (),
    }


def _by_name(models: Iterable[Model]) -> dict[str, tuple[Model, ...]]:
    versions: dict[str, dict[str, Model]] = {}
    for model in models:
        same = versions.setdefault(model.name, {})
        if model.version in same and not model.version:
            raise RegistryError(f"two unsaved models have the name {model.name!r}; save them, or rename one")
        same[model.version] = model
    return {
        name: tuple(sorted(same.values(), key=lambda model: model.manifest.provenance.created, reverse=True))
        for name, same in versions.items()
    }


def _files(path: Path) -> list[Path]:
    """Return the absolute paths of the model files in a folder, without hidden files; without any, the path itself."""
    served = Path(os.path.abspath(path))  # unlike `resolve`, it follows no symbolic link
    # Copying programs leave hidden files, such as `._model.safetensors` (macOS) and `.model.safetensors.tmp`.
    return sorted(f for f in served.glob(f"[!.]*{SUFFIX}") if f.is_file()) or [served]
