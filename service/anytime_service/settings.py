"""Settings of the service: one frozen object, read from the environment and the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from anytime.errors import AnytimeError
from anytime_service.keys import Key, entries, read_keys
from anytime_service.urls import MEMORY, checked_address, listed_origin

PREFIX = "ANYTIME_"

SECRET = (("api_keys",), ("session_store",), ("ssl_keyfile_password",))  # settings whose values no message may contain

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveAmount = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


def _of_text(parse: Callable[[str], Any]) -> BeforeValidator:
    """Return a validator that parses a setting given as text, as in the environment."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def _origins(text: str) -> tuple[str | None, ...]:
    origins = tuple(map(listed_origin, entries(text)))
    if None in origins:
        raise ValueError(
            "expected origins like https://app.example.com:8443 or tauri://localhost, without a path or a pattern"
        )
    return origins


class Settings(BaseSettings):
    """Settings of the service; each is also an environment variable: `ANYTIME_` and the name in capitals."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    models: Annotated[tuple[Path, ...], NoDecode, _of_text(lambda text: tuple(filter(None, entries(text))))] = Field(
        (),
        description="Model files and folders with model files, separated by commas; usually given on the command line.",
    )
    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 is all IPv4 addresses, :: all addresses.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 is any free port.")
    uds: Path | None = Field(None, description="Unix socket to listen on instead of a host and port.")
    root_path: str = Field(
        "", pattern=r"^(/[\w.~-]+)*$", description="Path before all routes, like /anytime, that a proxy removes."
    )
    metrics_port: int | None = Field(None, ge=0, le=65535, description="Separate port for /metrics and the probes.")
    metrics_host: str | None = Field(None, description="Address to listen on for metrics; by default that of host.")
    log_format: Annotated[Literal["text", "json"], _of_text(str.lower)] = Field(
        "text", description="Format of log lines: text or json."
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _of_text(str.lower)] = Field(
        "info", description="Least severe level to log."
    )
    access_log: bool = Field(False, description="Whether to log every request and connection.")
    max_deadline_ms: PositiveAmount = Field(10_000, description="Longest deadline; it applies when a request has none.")
    max_body_bytes: Count = Field(16 * 1024 * 1024, description="Largest request body; the server refuses larger ones.")
    max_json_bytes: Count = Field(
        1024 * 1024,
        description="Largest JSON body, line or message; also for MessagePack with values as lists instead of bytes.",
    )
    max_json_values: Count = Field(
        50_000, description="Most values in the lists of a JSON body, line or message; larger values are packed."
    )
    max_rows: Count = Field(10_000, description="Largest number of rows of one prediction.")
    max_held_bytes: Count = Field(
        1024 * 1024 * 1024,
        description="Largest number of bytes stored for clients: group values, incomplete messages, unread replies.",
    )
    max_share_per_key: float = Field(
        0.5, gt=0, le=1, allow_inf_nan=False, description="Share of each limit that one of several keys may use."
    )
    max_connections: Count = Field(10_000, description="Most connections; further ones get only health and metrics.")
    max_message_rate: Amount = Field(20_000, description="Messages per second read from one connection; 0 is no limit.")
    max_header_bytes: int = Field(16 * 1024, ge=256, description="Largest head of a request: request line and headers.")
    header_timeout_s: PositiveAmount = Field(10, description="Longest time to receive the head of a request.")
    body_timeout_s: PositiveAmount = Field(30, description="Longest time to receive the body of a session's request.")
    idle_timeout_s: PositiveAmount = Field(75, description="Time after which the server closes an unused connection.")
    max_lateness_ms: PositiveAmount = Field(5, description="Largest expected lateness of an answer that begins now.")
    max_open: Count = Field(10_000, description="Largest number of open predictions.")
    max_solve_ms: Amount = Field(250, description="Longest time to solve for a set of groups; else the prefix answers.")
    max_sessions: Count = Field(10_000, description="Largest number of sessions.")
    session_ttl_s: PositiveAmount = Field(60, description="Time after its last use at which a session expires.")
    session_store: Annotated[str, AfterValidator(checked_address)] = Field(
        MEMORY,
        repr=False,
        description="Session store: memory, or the URL of a Redis server that replicas share; it may have a password.",
    )
    session_store_timeout_ms: PositiveAmount = Field(250, description="Longest wait for the session store.")

    api_keys: Annotated[tuple[Key, ...], NoDecode, _of_text(read_keys)] = Field(
        (), description="API keys, separated by commas: KEY, sha256:HEX, admin:KEY or admin:sha256:HEX.", exclude=True
    )
    api_keys_file: Path | None = Field(None, description="File of more keys, one per line; reloaded when it changes.")
    insecure: bool = Field(False, description="Allow access from other machines without API keys.")
    allowed_origins: Annotated[tuple[str, ...], NoDecode, _of_text(_origins)] = Field(
        (), description="Origins of other sites that may send requests."
    )
    ssl_certfile: Path | None = Field(None, description="TLS certificate with its chain.")
    ssl_keyfile: Path | None = Field(None, description="Key, if it is not in the certificate's file.")
    ssl_keyfile_password: SecretStr | None = Field(None, description="Password of an encrypted key.")
    ssl_ca_certs: Path | None = Field(None, description="Authorities of client certificates, which are then required.")

    @property
    def keyed(self) -> bool:
        """Whether requests need an API key."""
        return bool(self.api_keys) or self.api_keys_file is not None


def load_settings(**given: Any) -> Settings:
    """Read the settings from the environment; arguments take precedence, except those that are None.

    Raise AnytimeError, which names the variable, if a setting is invalid.
    """
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = PREFIX + "_".join(str(part) for part in first["loc"][:1]).upper()
        got = "" if first["loc"][:1] in SECRET else f" (got {first['input']!r})"
        why = first["msg"].removeprefix("Value error, ")
        raise AnytimeError(f"setting {name}: {why[0].lower()}{why[1:]}{got}") from None
