"""The models that a service answers from, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from anytime.artifact import load
from anytime.errors import listed, suggestion
from anytime.model import AnytimeModel
from anytime_service.errors import FieldError, RegistryError, UnknownModelError

__all__ = ["SUFFIX", "ModelRegistry", "load_registry"]

SUFFIX = ".safetensors"
"""What a model file in a folder ends in; other files there are left alone."""


@dataclass(frozen=True)
class ModelRegistry:
    """Models by name, in the order in which they were given; never changed, only replaced as a whole."""

    models: Mapping[str, AnytimeModel]

    @classmethod
    def of(cls, models: Iterable[AnytimeModel]) -> ModelRegistry:
        """Registry of models at hand.

        Raises
        ------
        RegistryError
            Two have the same name.
        """
        return cls.from_sources((model, "memory") for model in models)

    @classmethod
    def from_sources(cls, sources: Iterable[tuple[AnytimeModel, str]]) -> ModelRegistry:
        """Registry of models and where each comes from, which a RegistryError about a name tells."""
        named: dict[str, AnytimeModel] = {}
        origin: dict[str, str] = {}
        for model, source in sources:
            if model.name in named:
                both = f"in {origin[model.name]} and in {source}"
                raise RegistryError(f"two models are called {model.name!r}, {both}; serve one of them, or rename one")
            named[model.name], origin[model.name] = model, source
        return cls(MappingProxyType(named))

    def __len__(self) -> int:
        return len(self.models)

    def __iter__(self) -> Iterator[AnytimeModel]:
        return iter(self.models.values())

    def get(self, name: str | None = None) -> AnytimeModel:
        """Find the model of that name, or the only one when no name is given.

        Raises
        ------
        UnknownModelError
            There is no such model, or none at all.
        FieldError
            No name was given and there are several models to choose from.
        """
        if name is not None and name in self.models:
            return self.models[name]
        if not self.models:
            raise UnknownModelError("no model is loaded; start the service with a model file")
        if name is not None:
            raise UnknownModelError(f"there is no model {name!r}; {suggestion(name, list(self.models))}")
        if len(self.models) > 1:
            raise FieldError("model", f"several models are here; name one of {listed(self.models)}")
        return next(iter(self))


def load_registry(paths: Iterable[str | Path]) -> ModelRegistry:
    """Load model files, and every `.safetensors` file in the folders given.

    Raises
    ------
    RegistryError
        A path is not there, a folder has no model, or two models have the same name.
    ArtifactError
        A file is no model, or not a sound one.
    """
    files = dict.fromkeys(file.resolve() for path in paths for file in _files(Path(path)))
    return ModelRegistry.from_sources((load(file), str(file)) for file in files)


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
