"""The commands `anytime serve` and `anytime demo`, which the library's command line includes.

What a command needs is imported when it runs, so that `anytime --help` stays quick.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from anytime.errors import AnytimeError
from anytime_service.hangup import remember

_REQUIREMENTS = ("fastapi", "msgspec", "prometheus_client", "pydantic_settings", "starlette", "uvicorn")


def serve(
    models: Annotated[
        list[Path] | None, typer.Argument(help="Serve these model files, and those in these folders.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Listen on this address.", show_default="127.0.0.1")] = None,
    port: Annotated[
        int | None, typer.Option(help="Listen on this port, 1 to 65535; 0 is any free port.", show_default="8000")
    ] = None,
    uds: Annotated[Path | None, typer.Option(help="Listen on this Unix socket, instead of a host and port.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow access from other machines without API keys.")
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Serve /metrics and the probes on this port; 0 is any free port.",
            show_default="main port",
        ),
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        typer.Option(case_sensitive=False, help="Log messages of at least this level.", show_default="info"),
    ] = None,
    session_store: Annotated[
        str | None,
        typer.Option(
            help="Store sessions in memory, or in the Redis server at this URL (redis://HOST:PORT).",
            show_default="memory",
        ),
    ] = None,
    ssl_certfile: Annotated[Path | None, typer.Option(help="Read the TLS certificate from this file (PEM).")] = None,
    ssl_keyfile: Annotated[
        Path | None, typer.Option(help="Read the key of the certificate from this file (PEM).")
    ] = None,
    ssl_keyfile_password: Annotated[str | None, typer.Option(help="Decrypt the key with this password.")] = None,
    ssl_ca_certs: Annotated[
        Path | None, typer.Option(help="Require client certificates of the authorities in this file (PEM).")
    ] = None,
) -> None:
    """Serve models over HTTP and WebSocket, with an answer at every deadline.

    Flags have priority over the settings in the environment (ANYTIME_*).

    Example: anytime serve model.safetensors --port 8000
    """
    _open_streams()
    remember()
    try:
        from anytime_service import load_registry, load_settings, serve as run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name not in _REQUIREMENTS:
            raise
        raise AnytimeError(
            f"the server needs {error.name}, which is not installed; run pip install 'anytime-linear[serve]'"
        ) from error
    settings = load_settings(
        models=tuple(models) if models else None,
        host=host,
        port=port,
        uds=uds,
        insecure=insecure or None,
        metrics_port=metrics_port,
        log_level=log_level,
        session_store=session_store,
        ssl_certfile=ssl_certfile,
        ssl_keyfile=ssl_keyfile,
        ssl_keyfile_password=ssl_keyfile_password,
        ssl_ca_certs=ssl_ca_certs,
    )
    if not settings.models:
        raise AnytimeError("no model to serve; pass model files or folders, or set ANYTIME_MODELS")
    run(load_registry(settings.models), settings)


def _open_streams() -> None:
    """Open the null device for every closed standard stream: a socket could get its number, and receive its output."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # the file gets the lowest free number, that of the stream
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115


def demo(
    once: Annotated[bool, typer.Option("--once", help="Stop the server at the end.")] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Listen on this port; a free port if it is in use.")
    ] = 8000,
) -> None:
    """Train on scikit-learn's digits, serve the model, and watch predictions improve until their deadlines.

    Example: anytime demo --once
    """
    try:
        from anytime_service.demo.story import run_demo  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise AnytimeError(f"the demo needs {error.name}; pip install 'anytime-linear[all]'") from error
    run_demo(once=once, port=port)
