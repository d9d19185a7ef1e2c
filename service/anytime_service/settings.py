"""What an operator can set: one frozen object, from the environment or the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from anytime.errors import AnytimeError

__all__ = ["Settings", "load_settings"]

PREFIX = "ANYTIME_"


class Settings(BaseSettings):
    """Settings of the service; each is also an environment variable, its name in capitals after `ANYTIME_`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="forbid")

    models: Annotated[tuple[Path, ...], NoDecode] = Field(
        default=(),
        description="Model files and folders of them, separated by commas; usually given on the command line.",
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on; 0.0.0.0 is every one of the machine.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 lets the system choose.")
    uds: Path | None = Field(default=None, description="Unix socket to listen on instead of a host and port.")
    max_deadline_ms: float = Field(
        default=10_000, gt=0, allow_inf_nan=False, description="Longest deadline; holds when a request has none."
    )
    max_body_bytes: int = Field(
        default=16 * 1024 * 1024, ge=1, description="Largest request body; a larger one is refused."
    )
    max_rows: int = Field(default=10_000, ge=1, description="Most rows that one prediction may have.")

    max_held_bytes: int = Field(
        default=1024 * 1024 * 1024,
        ge=1,
        description="Most bytes that clients may have the server hold: group values, bodies and messages half read, "
        "replies that are not taken.",
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

    @field_validator("models", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(filter(None, value.split(","))) if isinstance(value, str) else value


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
        raise AnytimeError(f"setting {name}: {first['msg'].lower()} (got {first['input']!r})") from error
