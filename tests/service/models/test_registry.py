from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anytime.errors import ArtifactError
from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from anytime_service.errors import FieldError, RegistryError, UnknownModelError
from anytime_service.models.registry import ModelRegistry, load_registry, reloaded
from service.serving import changed, small_model


def test_models_come_from_files_and_folders_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    small_model("c").save(tmp_path / "first.safetensors")
    for name in ("b", "a"):
        small_model(name).save(folder / f"{name}.safetensors")
    (folder / "README").write_text("not a model")
    registry = load_registry([tmp_path / "first.safetensors", str(folder)])
    assert [model.name for model in registry] == ["c", "a", "b"]
    assert registry.get("a").version != ""


def dated(name: str, created: str, version: str = "", intercept: float = 10.0) -> Model:
    """A model of that age, which answers its intercept as long as nothing has come."""
    model = small_model(name)
    model = replace(model, prefixes=replace(model.prefixes, intercept=np.array([float(intercept)])))
    return changed(model, version=version, provenance=model.manifest.provenance.model_copy(update={"created": created}))


def base_rates(registry: ModelRegistry) -> list[Any]:
    return [Prediction(model).answer().prediction for model in registry]


def test_of_several_versions_of_a_name_the_newest_answers_and_each_can_be_named(tmp_path: Path) -> None:
    days = {"old": "2024-01-01", "new": "2025-06-01", "middle": "2024-07-01"}
    made = {
        name: dated("brake", day, intercept=i).save(tmp_path / f"{name}.safetensors")
        for i, (name, day) in enumerate(days.items())
    }
    registry = load_registry([tmp_path])
    assert (len(registry.models), [model.version for model in registry]) == (1, [made["new"].version])
    assert registry.get().version == registry.get("brake").version == made["new"].version
    assert [each.version for each in registry.models["brake"]] == [made[n].version for n in ("new", "middle", "old")]
    for model in made.values():
        assert registry.get(f"brake@{model.version}").version == model.version
    newest = f"'brake' has no version 'none'; loaded versions: '{made['new'].version}'"
    for name, words in {"brake@none": newest, "break@none": "no", "@": "no", "brake@": "no", "@none": "no"}.items():
        with pytest.raises(UnknownModelError, match=words):
            registry.get(name)


def test_a_file_given_twice_and_the_same_content_in_two_files_are_one_version(tmp_path: Path) -> None:
    for file in ("one.safetensors", "two.safetensors"):
        small_model("brake").save(tmp_path / file)
    assert len(load_registry([tmp_path, tmp_path / "one.safetensors"]).models["brake"]) == 1


def test_two_models_of_one_name_that_were_never_saved_are_refused() -> None:
    with pytest.raises(RegistryError, match="two unsaved models have the name 'brake'"):
        ModelRegistry.of([dated("brake", "2024-01-01"), dated("brake", "2025-01-01")])


def test_a_name_may_have_an_at_sign_in_it() -> None:
    registry = ModelRegistry.of([small_model("brake@home"), small_model("brake")])
    assert registry.get("brake@home").name == "brake@home"
    assert registry.get("brake@home@v1").name == "brake@home"


def test_what_is_not_there_or_no_model_is_said(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="no file or folder"):
        load_registry([tmp_path / "none"])
    with pytest.raises(RegistryError, match=r"has no \.safetensors file"):
        load_registry([tmp_path])
    (tmp_path / "m.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ArtifactError):
        load_registry([tmp_path])


def test_only_the_only_model_needs_no_name(model: Model) -> None:
    one, two = ModelRegistry.of([model]), ModelRegistry.of([small_model("a"), small_model("b")])
    assert one.get() is one.get("brake") is model
    for registry, name, error, words in (
        (two, None, FieldError, "'a', 'b'"),
        (two, "zebra", UnknownModelError, "known: 'a', 'b'"),
        (ModelRegistry.of([]), None, UnknownModelError, "no model is loaded"),
    ):
        with pytest.raises(error, match=words):
            registry.get(name)


def test_a_file_that_has_changed_is_read_again_and_one_that_has_not_is_not(tmp_path: Path) -> None:
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    small_model("a").save(first)
    small_model("b").save(second)
    registry = load_registry([tmp_path])
    dated("a", "2025-01-01", intercept=3.0).save(first)
    fresh = reloaded(registry)
    assert base_rates(fresh) == [3.0, 10.0]
    assert fresh.get("b") is registry.get("b")
    assert base_rates(registry) == [10.0, 10.0], "a registry stays as it was"


def test_a_file_that_comes_and_one_that_goes_change_what_a_folder_has(tmp_path: Path) -> None:
    small_model("a").save(tmp_path / "a.safetensors")
    registry = load_registry([tmp_path])
    small_model("b").save(tmp_path / "b.safetensors")
    (tmp_path / "a.safetensors").unlink()
    assert [model.name for model in reloaded(registry)] == ["b"]


def test_a_named_reload_reads_and_records_no_file_of_another_model(tmp_path: Path) -> None:
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    for name in ("a", "b"):
        small_model(name).save(tmp_path / f"{name}.safetensors")
    registry = load_registry([first, second])
    for name in ("a", "b"):
        dated(name, "2025-01-01", intercept=3.0).save(tmp_path / f"{name}.safetensors")
    half = reloaded(registry, "a")
    assert base_rates(half) == [3.0, 10.0]
    assert base_rates(reloaded(half)) == [3.0, 3.0], "the other one is not forgotten"
    small_model("c").save(second)
    for named in (None, "b"):
        with pytest.raises(RegistryError, match="contained model 'b' and now contains 'c'"):
            reloaded(half, named)
    for content in (b"nonsense", None):
        second.unlink() if content is None else second.write_bytes(content)
        dated("a", "2025-01-01", intercept=4.0).save(first)
        assert base_rates(reloaded(half, "a")) == [4.0, 10.0]
        with pytest.raises((ArtifactError, RegistryError), match=r"b\.safetensors"):
            reloaded(half)


def test_a_named_reload_reports_a_new_file_that_is_broken_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small_model("a").save(tmp_path / "a.safetensors")
    registry = load_registry([tmp_path])
    (tmp_path / "b.safetensors").write_bytes(b"nonsense")
    dated("a", "2025-01-01", intercept=3.0).save(tmp_path / "a.safetensors")
    assert base_rates(reloaded(registry, "a")) == [3.0]
    assert "b.safetensors" in caplog.text
    with pytest.raises(ArtifactError, match=r"b\.safetensors"):
        reloaded(registry, "b")


def test_what_cannot_be_loaded_again_is_said(tmp_path: Path) -> None:
    small_model("a").save(tmp_path / "a.safetensors")
    registry = load_registry([tmp_path])
    with pytest.raises(UnknownModelError, match="no file contains a model 'b'"):
        reloaded(registry, "b")
    with pytest.raises(RegistryError, match="were not loaded from files"):
        reloaded(ModelRegistry.of([small_model()]))


def test_hidden_files_of_a_folder_are_no_models(tmp_path: Path) -> None:
    small_model().save(tmp_path / "m.safetensors")
    (tmp_path / "._m.safetensors").write_bytes(b"what macOS adds to archives")
    (tmp_path / ".new.safetensors").write_bytes(b"a copy that is not complete")
    assert [file.name for file in load_registry([tmp_path]).files] == ["m.safetensors"]
    (tmp_path / "m.safetensors").unlink()
    with pytest.raises(RegistryError, match=r"has no \.safetensors file"):
        load_registry([tmp_path])
