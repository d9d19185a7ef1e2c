"""What an operator can set: one frozen object, from the environment or the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from anytime.errors import AnytimeError
from anytime_service.errors import KeysError
from anytime_service.keys import Key, read_keys
from anytime_service.urls import MEMORY, checked_address, origin_of

__all__ = ["Settings", "load_settings"]

PREFIX = "ANYTIME_"

SECRET = (("api_keys",), ("session_store",), ("ssl_keyfile_password",))
"""Places of settings that no message may show."""


class Settings(BaseSettings):
    """Settings of the service; each is also an environment variable, its name in capitals after `ANYTIME_`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    models: Annotated[tuple[Path, ...], NoDecode] = Field(
        default=(),
        description="Model files and folders of them, separated by commas; usually given on the command line.",
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on; 0.0.0.0 is every one of the machine.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 lets the system choose.")
    uds: Path | None = Field(default=None, description="Unix socket to listen on instead of a host and port.")
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port for /metrics and the probes alone; without one /metrics is on the main port.",
    )
    metrics_host: str | None = Field(
        default=None, description="Address to listen on for metrics; without one that of the main port."
    )
    log_format: Literal["text", "json"] = Field(default="text", description="How lines are logged: text or json.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="From which level on is logged: debug, info, warning or error."
    )
    access_log: bool = Field(default=False, description="Whether every request and connection is logged.")
    max_deadline_ms: float = Field(
        default=10_000, gt=0, allow_inf_nan=False, description="Longest deadline; holds when a request has none."
    )
    max_body_bytes: int = Field(
        default=16 * 1024 * 1024, ge=1, description="Largest request body; a larger one is refused."
    )
    max_json_bytes: int = Field(
        default=1024 * 1024,
        ge=1,
        description="Largest JSON body, line or message; and of MessagePack, where values are lists and not packed.",
    )
    max_rows: int = Field(default=10_000, ge=1, description="Most rows that one prediction may have.")
    max_held_bytes: int = Field(
        default=1024 * 1024 * 1024,
        ge=1,
        description="Most bytes that clients may have the server hold: group values, bodies and messages half read, "
        "replies that are not taken.",
    )
    max_share_per_key: float = Field(
        default=0.5,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="With several keys, how much of max_open, max_sessions and max_held_bytes one of them may use.",
    )
    max_connections: int = Field(
        default=10_000, ge=1, description="Most connections at once; above it only health and metrics are served."
    )
    max_message_rate: float = Field(
        default=20_000,
        ge=0,
        allow_inf_nan=False,
        description="Messages a second that one connection may send (chunks of a body, too); it is read no faster. "
        "0 is no limit.",
    )
    max_header_bytes: int = Field(
        default=16 * 1024, ge=256, description="Largest head of a request, its line and its headers."
    )
    header_timeout_s: float = Field(
        default=10, gt=0, allow_inf_nan=False, description="Time in which the head of a request has to come."
    )
    body_timeout_s: float = Field(
        default=30, gt=0, allow_inf_nan=False, description="Time in which a body has to come that has no deadline."
    )
    idle_timeout_s: float = Field(
        default=75,
        gt=0,
        allow_inf_nan=False,
        description="Time after which a connection is closed that asks for nothing, or takes nothing.",
    )
    max_lateness_ms: float = Field(
        default=5,
        gt=0,
        allow_inf_nan=False,
        description="Most that an answer begun now may be expected to be late; beyond it predictions are not begun.",
    )
    max_open: int = Field(default=10_000, ge=1, description="Most predictions that may be open at once.")
    max_solve_ms: float = Field(
        default=250,
        ge=0,
        allow_inf_nan=False,
        description="Longest time that solving for one set of groups may take; the prefix stands in for longer ones.",
    )
    max_sessions: int = Field(default=10_000, ge=1, description="Most sessions there may be.")
    session_ttl_s: float = Field(
        default=60, gt=0, allow_inf_nan=False, description="Time after its last use that a session is kept for."
    )
    session_store: str = Field(
        default=MEMORY,
        repr=False,
        description="Where sessions live: memory, or the URL of a Redis that replicas share; it may have a password.",
    )
    session_store_timeout_ms: float = Field(
        default=250, gt=0, allow_inf_nan=False, description="Longest time that a request waits for the session store."
    )

    @field_validator("session_store")
    @classmethod
    def _leads_to_a_store(cls, value: str) -> str:
        return checked_address(value)

    api_keys: Annotated[tuple[Key, ...], NoDecode] = Field(
        default=(),
        description="Keys of those who may ask, separated by commas: KEY, sha256:HEX, admin:KEY or admin:sha256:HEX.",
        exclude=True,
    )
    api_keys_file: Path | None = Field(
        default=None, description="File of more keys, one a line; read again when it changes."
    )
    insecure: bool = Field(
        default=False, description="Listen where others than this machine can ask, though there are no keys."
    )
    allowed_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Origins of other sites whose pages may ask, separated by commas."
    )
    ssl_certfile: Path | None = Field(default=None, description="Certificate, with its chain, to encrypt by.")
    ssl_keyfile: Path | None = Field(default=None, description="Its key, where the certificate's file has none.")
    ssl_keyfile_password: SecretStr | None = Field(default=None, description="Password of an encrypted key.")
    ssl_ca_certs: Path | None = Field(
        default=None, description="Authorities; clients then need a certificate that one of them has signed."
    )

    @property
    def keyed(self) -> bool:
        """Whether who asks needs a key."""
        return bool(self.api_keys) or self.api_keys_file is not None

    @field_validator("models", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(filter(None, value.split(","))) if isinstance(value, str) else value

    @field_validator("api_keys", mode="before")
    @classmethod
    def _keys(cls, value: Any) -> Any:
        try:
            return read_keys(value) if isinstance(value, str) else value
        except KeysError as error:
            raise PydanticCustomError("keys", "{why}", {"why": str(error)}) from None

    @field_validator("allowed_origins", mode="before")
    @classmethod
    def _origins(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        origins = [origin_of(text.strip()) for text in value.split(",")]
        if None in origins:
            raise PydanticCustomError("origins", "expected origins like https://app.example.com:8443, without a path")
        return tuple(origins)

    @field_validator("log_format", "log_level", mode="before")
    @classmethod
    def _in_small_letters(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value


def load_settings(**given: Any) -> Settings:
    """Read the settings from the environment; those given here come first, None being not given.

    Raises
    ------
    AnytimeError
        A setting is not what it has to be; the message names its variable.
    """
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = PREFIX + "_".join(str(part) for part in first["loc"][:1]).upper()
        got = "" if first["loc"][:1] in SECRET else f" (got {first['input']!r})"
        why = first["msg"].removeprefix("Value error, ")
        raise AnytimeError(f"setting {name}: {why[0].lower()}{why[1:]}{got}") from None
