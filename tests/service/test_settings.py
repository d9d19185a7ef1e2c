from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from anytime.errors import AnytimeError
from anytime_service.app import create_app
from anytime_service.models.registry import ModelRegistry
from anytime_service.settings import Settings, load_settings
from anytime_service.urls import checked_address, shown_address
from models.commands import Capture, refusal


def test_settings_come_from_the_environment_and_the_command_line_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYTIME_MODELS", "a.safetensors,models")
    monkeypatch.setenv("ANYTIME_PORT", "9000")
    monkeypatch.setenv("ANYTIME_HOST", "")
    monkeypatch.setenv("ANYTIME_OF_A_LATER_RELEASE", "1")
    settings = load_settings(port=9001, host=None, uds=None)
    assert settings.models == (Path("a.safetensors"), Path("models"))
    assert (settings.port, settings.host) == (9001, "127.0.0.1")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "70000"),
        ("MAX_DEADLINE_MS", "inf"),
        ("MAX_ROWS", "many"),
        *(("SESSION_STORE_TIMEOUT_MS", value) for value in ("0", "-1", "inf", "soon")),
        *(("ROOT_PATH", path) for path in ("anytime", "/anytime/", "/", "/a b", "/a?b", "https://host/a", "/a//b")),
    ],
)
def test_a_setting_that_cannot_be_names_its_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"ANYTIME_{name}", value)
    with pytest.raises(AnytimeError, match=f"ANYTIME_{name}.*{re.escape(value)}"):
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


# Where sessions live; a password in the address is never shown.


SECRET = "hunter2"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("memory", "memory"),
        ("redis://localhost", "redis://localhost:6379/0"),
        ("redis://:hunter2@redis:6380/3", "redis://redis:6380/3"),
        ("redis://anytime:hunter2%2F%40@[::1]:6380", "redis://[::1]:6380/0"),
        ("rediss://anytime:hunter2@redis/1?ssl_ca_certs=/etc/ca.pem&ssl_password=hunter2", "rediss://redis:6379/1"),
        ("redis://localhost?db=2", "redis://localhost:6379/2"),
        ("unix://:hunter2@/run/redis.sock?db=1", "unix:///run/redis.sock"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
    ],
)
def test_an_address_is_taken_as_it_is_and_shown_without_its_password(address: str, shown: str) -> None:
    assert checked_address(address) == address
    assert shown_address(address) == shown
    assert SECRET not in repr(Settings(session_store=address))


WRONG = [
    "",
    "memmory",
    SECRET,
    "localhost:6379",
    f"http://:{SECRET}@localhost",
    f"redis://:{SECRET}@",
    "redis:///0",
    f"redis://:{SECRET}@localhost:port/0",
    f"redis://:{SECRET}@localhost:70000",
    f"redis://:{SECRET}@localhost:0",
    f"redis://:{SECRET}@localhost/zero",
    f"redis://:{SECRET}@localhost/-1",
    f"redis://:{SECRET}/with-a-slash@localhost/0",
    f"redis://:{SECRET}#with-a-hash@localhost/0",
    f"redis://:{SECRET}@[::1",
    f"redis://:{SECRET}@localhost?socket_timeout=100",
    f"redis://localhost?password={SECRET}",
    f"unix://:{SECRET}@",
    f"unix://{SECRET}/run/redis.sock",
]


@pytest.mark.parametrize("address", WRONG)
def test_what_is_no_address_is_one_line_without_the_password(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, address: str
) -> None:
    if not address:
        with pytest.raises(ValueError, match="expected"):
            checked_address(address)
        return
    monkeypatch.setenv("ANYTIME_SESSION_STORE", address)
    reported = refusal(capsys, "serve", "nowhere")
    assert re.search("ANYTIME_SESSION_STORE.*expected", reported)
    with pytest.raises(ValidationError) as error:
        Settings()
    with pytest.raises(AnytimeError) as loading:
        load_settings()
    assert loading.value.__suppress_context__, "a traceback would show what came"
    assert SECRET not in reported + str(error.value) + repr(error.value) + repr(loading.value)


@pytest.mark.parametrize("parameter", ["ssl_colour=red", "ssl_cert_reqs=some"])
def test_a_parameter_that_cannot_be_is_an_error_at_the_start(parameter: str) -> None:
    settings = Settings(session_store=f"rediss://:{SECRET}@localhost?{parameter}")
    with pytest.raises(AnytimeError, match=r"ANYTIME_SESSION_STORE: invalid parameter in the URL") as error:
        create_app(ModelRegistry.of([]), settings)
    assert SECRET not in str(error.value)


def test_without_its_package_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("redis_store", "redis_connection"):
        monkeypatch.delitem(sys.modules, f"anytime_service.sessions.{name}", raising=False)
    for name in ("redis", "redis.asyncio"):
        monkeypatch.setitem(sys.modules, name, None)
    settings = Settings(session_store="redis://localhost")
    with pytest.raises(AnytimeError, match=r"pip install 'anytime-linear\[redis\]'"):
        create_app(ModelRegistry.of([]), settings)


def test_sessions_live_in_memory_unless_told() -> None:
    app = create_app(ModelRegistry.of([]), Settings())
    assert (app.state.sessions.kind, app.state.sessions.trouble) == ("memory", None)
    assert app.state.service.metrics.registry.get_sample_value("anytime_session_store_up") == 1.0
