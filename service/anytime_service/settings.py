"""Settings of the service: one frozen object, read from the environment and the command line."""

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

PREFIX = "ANYTIME_"

SECRET = (("api_keys",), ("session_store",), ("ssl_keyfile_password",))  # settings whose values no message may contain


Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveAmount = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class Settings(BaseSettings):
    """Settings of the service; each is also an environment variable: `ANYTIME_` and the name in capitals."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    models: Annotated[tuple[Path, ...], NoDecode] = Field(
        default=(),
        description="Model files and folders with model files, separated by commas; usually given on the command line.",
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on; 0.0.0.0 is all addresses of the machine.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 is any free port.")
    uds: Path | None = Field(default=None, description="Unix socket to listen on instead of a host and port.")
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Separate port for /metrics and the probes; by default /metrics is on the main port.",
    )
    metrics_host: str | None = Field(
        default=None, description="Address to listen on for metrics; by default the address of the main port."
    )
    log_format: Literal["text", "json"] = Field(default="text", description="Format of log lines: text or json.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe level to log: debug, info, warning or error."
    )
    access_log: bool = Field(default=False, description="Whether to log every request and connection.")
    max_deadline_ms: PositiveAmount = Field(
        default=10_000, description="Longest deadline, and the deadline of a request that has none."
    )
    max_body_bytes: Count = Field(
        default=16 * 1024 * 1024, description="Largest request body; the server refuses larger ones."
    )
    max_json_bytes: Count = Field(
        default=1024 * 1024,
        description="Largest JSON body, line or message; also for MessagePack with values as lists instead of bytes.",
    )
    max_rows: Count = Field(default=10_000, description="Largest number of rows of one prediction.")
    max_held_bytes: Count = Field(
        default=1024 * 1024 * 1024,
        description="Largest number of bytes stored for clients: group values, incomplete bodies and messages, and "
        "replies that clients have not read.",
    )
    max_share_per_key: float = Field(
        default=0.5,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="With several keys, the share of max_open, max_sessions and max_held_bytes that one key may use.",
    )
    max_connections: Count = Field(
        default=10_000, description="Largest number of connections; further ones receive only health and metrics."
    )
    max_message_rate: Amount = Field(
        default=20_000,
        description="Messages per second (chunks of bodies included) that the server reads from one connection. "
        "0 is no limit.",
    )
    max_header_bytes: int = Field(
        default=16 * 1024, ge=256, description="Largest head of a request: request line and headers."
    )
    header_timeout_s: PositiveAmount = Field(default=10, description="Longest time to receive the head of a request.")
    body_timeout_s: PositiveAmount = Field(default=30, description="Longest time to receive a body without a deadline.")
    idle_timeout_s: PositiveAmount = Field(
        default=75, description="Time after which the server closes a connection whose client neither sends nor reads."
    )
    max_lateness_ms: PositiveAmount = Field(
        default=5, description="Largest expected lateness of an answer; above it the server begins no predictions."
    )
    max_open: Count = Field(default=10_000, description="Largest number of open predictions.")
    max_solve_ms: Amount = Field(
        default=250,
        description="Longest time to solve for one set of groups; where it would take longer, the prefix answers.",
    )
    max_sessions: Count = Field(default=10_000, description="Largest number of sessions.")
    session_ttl_s: PositiveAmount = Field(default=60, description="Time after its last use at which a session expires.")
    session_store: str = Field(
        default=MEMORY,
        repr=False,
        description="Session store: memory, or the URL of a Redis server that replicas share; it may have a password.",
    )
    session_store_timeout_ms: PositiveAmount = Field(
        default=250, description="Longest time that a request waits for the session store."
    )

    @field_validator("session_store")
    @classmethod
    def _check_session_store(cls, value: str) -> str:
        return checked_address(value)

    api_keys: Annotated[tuple[Key, ...], NoDecode] = Field(
        default=(),
        description="API keys, separated by commas: KEY, sha256:HEX, admin:KEY or admin:sha256:HEX.",
        exclude=True,
    )
    api_keys_file: Path | None = Field(
        default=None, description="File of more API keys, one per line; the server reloads it when it changes."
    )
    insecure: bool = Field(default=False, description="Allow access from other machines without API keys.")
    allowed_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Origins of other sites whose pages may send requests, separated by commas."
    )
    ssl_certfile: Path | None = Field(default=None, description="TLS certificate with its chain.")
    ssl_keyfile: Path | None = Field(default=None, description="Key, if it is not in the certificate's file.")
    ssl_keyfile_password: SecretStr | None = Field(default=None, description="Password of an encrypted key.")
    ssl_ca_certs: Path | None = Field(
        default=None, description="Certificate authorities; clients then need a certificate signed by one of them."
    )

    @property
    def keyed(self) -> bool:
        """Whether requests need an API key."""
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
    def _lowercase(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value


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
