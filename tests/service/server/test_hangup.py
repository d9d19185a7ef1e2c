"""SIGHUP never ends a server: while it starts it is remembered, and while it stops it is ignored."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from service.commands import ENVIRONMENT

PROGRAM = """
import asyncio, contextlib, os, signal, sys
import anytime_service.models.registry as registry
import anytime_service.server.run as run
from anytime.cli.main import main
from anytime_service import hangup

def hang_up():
    os.kill(os.getpid(), signal.SIGHUP)

def stage(name, function):
    def hooked(*arguments, **options):
        if name == sys.argv[1]:
            hang_up()
        return function(*arguments, **options)
    return hooked

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a shell may have run the tests by nohup
registry.load_registry = stage("load", registry.load_registry)
run.Server.__init__ = stage("server", run.Server.__init__)
real = run.Server.startup, run.Server.shutdown, run.Server._reload_models, run.single_blas_thread

async def startup(self, sockets=None):
    await real[0](self, sockets)
    if sys.argv[1] == "stop":  # once it has started
        asyncio.get_running_loop().call_later(0.1, signal.raise_signal, signal.SIGTERM)

async def shutdown(self, sockets=None):
    await real[1](self, sockets)
    if sys.argv[1] == "stop":
        hang_up()

async def reload(self):
    await real[2](self)
    print("reloaded", file=sys.stderr, flush=True)
    signal.raise_signal(signal.SIGTERM)

@contextlib.contextmanager
def block():
    try:
        with real[3]():
            yield
    finally:
        if sys.argv[1] == "stop":
            hang_up()  # the event loop is closed
        print("cleaned up", file=sys.stderr, flush=True)

run.Server.startup, run.Server.shutdown, run.Server._reload_models = startup, shutdown, reload
run.single_blas_thread = block
main(["serve", sys.argv[2], "--port", "0"])
"""


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no SIGHUP here")
@pytest.mark.parametrize("at", ["load", "server", "stop"])
def test_sighup_is_remembered_while_a_server_starts_and_ignored_while_it_stops(at: str, model_file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, at, str(model_file)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "serving 'brake'" in done.stderr
    assert ("reloaded" in done.stderr) == (at != "stop")
    assert "cleaned up" in done.stderr
    assert done.returncode == -signal.SIGTERM, done.stderr
