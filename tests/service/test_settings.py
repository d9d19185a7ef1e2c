from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from anytime.errors import AnytimeError
from anytime_service.settings import Settings, load_settings


def test_settings_come_from_the_environment_and_the_command_line_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYTIME_MODELS", "a.safetensors,models")
    monkeypatch.setenv("ANYTIME_PORT", "9000")
    monkeypatch.setenv("ANYTIME_HOST", "")
    monkeypatch.setenv("ANYTIME_OF_A_LATER_RELEASE", "1")
    settings = load_settings(port=9001, host=None, uds=None)
    assert settings.models == (Path("a.safetensors"), Path("models"))
    assert (settings.port, settings.host) == (9001, "127.0.0.1")


@pytest.mark.parametrize(("name", "value"), [("PORT", "70000"), ("MAX_DEADLINE_MS", "inf"), ("MAX_ROWS", "many")])
def test_a_setting_that_cannot_be_names_its_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"ANYTIME_{name}", value)
    with pytest.raises(AnytimeError, match=f"ANYTIME_{name}.*{value}"):
        load_settings()


def test_settings_are_frozen_and_described() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().port = 1  # type: ignore[misc]
    assert all(field.description for field in Settings.model_fields.values())


@pytest.mark.parametrize(
    "form", ["{0},{1}", "{0}, {1}", " {0} ,{1},", "{0},\n  {1}\n", "{0} {1}".replace(" ", ",\t"), "{0},{1}, "]
)
@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("models", ("a.safetensors", "models")),
        ("api_keys", ("first-key-0123456789", "admin:second-key-0123456789")),
        ("allowed_origins", ("http://localhost:3000", "tauri://localhost")),
    ],
)
def test_spaces_and_a_comma_at_the_end_of_a_list_do_not_count(
    monkeypatch: pytest.MonkeyPatch, name: str, entries: tuple[str, str], form: str
) -> None:
    monkeypatch.setenv(f"ANYTIME_{name.upper()}", form.format(*entries))
    read = getattr(load_settings(), name)
    monkeypatch.setenv(f"ANYTIME_{name.upper()}", ",".join(entries))
    assert read == getattr(load_settings(), name)
    assert len(read) == 2


@pytest.mark.parametrize("value", ["anytime", "/anytime/", "/", "/a b", "/a?b", "https://host/a", "/a//b"])
def test_a_root_path_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("ANYTIME_ROOT_PATH", value)
    with pytest.raises(AnytimeError, match="ANYTIME_ROOT_PATH"):
        load_settings()
