"""What an operator can set: one frozen object, from the environment or the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from anytime.errors import AnytimeError
from anytime_service.sessions.address import MEMORY, checked_address

__all__ = ["Settings", "load_settings"]

PREFIX = "ANYTIME_"


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
    max_deadline_ms: float = Field(
        default=10_000, gt=0, allow_inf_nan=False, description="Longest deadline; holds when a request has none."
    )
    max_body_bytes: int = Field(
        default=16 * 1024 * 1024, ge=1, description="Largest request body; a larger one is refused."
    )
    max_rows: int = Field(default=10_000, ge=1, description="Most rows that one prediction may have.")

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
        if name.endswith("_SESSION_STORE"):  # what came may have a password in it
            raise AnytimeError(f"setting {name}: {first['msg'].removeprefix('Value error, ')}") from None
        raise AnytimeError(f"setting {name}: {first['msg'].lower()} (got {first['input']!r})") from error
