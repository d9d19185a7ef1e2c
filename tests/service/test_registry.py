from __future__ import annotations

from pathlib import Path

import pytest

from anytime.errors import ArtifactError
from anytime.model import AnytimeModel
from anytime_service.errors import FieldError, RegistryError, UnknownModelError
from anytime_service.registry import ModelRegistry, load_registry
from service.serving import small_model


def test_models_come_from_files_and_folders_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    small_model("c").save(tmp_path / "first.safetensors")
    small_model("b").save(folder / "b.safetensors")
    small_model("a").save(folder / "a.safetensors")
    (folder / "README").write_text("not a model")
    registry = load_registry([tmp_path / "first.safetensors", str(folder)])
    assert [model.name for model in registry] == ["c", "a", "b"]
    assert registry.get("a").version != ""


def test_a_file_given_twice_is_one_model(tmp_path: Path) -> None:
    small_model().save(tmp_path / "m.safetensors")
    assert len(load_registry([tmp_path, tmp_path / "m.safetensors"])) == 1


def test_two_models_of_one_name_are_refused_and_both_files_named(tmp_path: Path) -> None:
    for file in ("one.safetensors", "two.safetensors"):
        small_model("brake").save(tmp_path / file)
    with pytest.raises(RegistryError, match=r"'brake'.*one\.safetensors.*two\.safetensors"):
        load_registry([tmp_path])


def test_what_is_not_there_or_no_model_is_said(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="no file or folder"):
        load_registry([tmp_path / "none"])
    with pytest.raises(RegistryError, match=r"has no \.safetensors file"):
        load_registry([tmp_path])
    (tmp_path / "m.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ArtifactError):
        load_registry([tmp_path])


def test_the_only_model_needs_no_name(model: AnytimeModel) -> None:
    registry = ModelRegistry.of([model])
    assert registry.get() is registry.get("brake") is model


def test_several_models_need_a_name() -> None:
    registry = ModelRegistry.of([small_model("a"), small_model("b")])
    with pytest.raises(FieldError, match="'a', 'b'"):
        registry.get()
    with pytest.raises(UnknownModelError, match="known: 'a', 'b'"):
        registry.get("zebra")


def test_an_empty_registry_says_so() -> None:
    with pytest.raises(UnknownModelError, match="no model is loaded"):
        ModelRegistry.of([]).get()


def test_a_registry_cannot_be_changed(model: AnytimeModel) -> None:
    registry = ModelRegistry.of([model])
    with pytest.raises(TypeError):
        registry.models["other"] = model  # type: ignore[index]
