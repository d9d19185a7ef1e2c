"""The running service keeps what its OpenAPI document says, tried by schemathesis; the same requests in every run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from anytime_service.app import create_app
from anytime_service.registry import load_registry
from anytime_service.settings import Settings
from service.commands import ENVIRONMENT
from service.serving import VALUES, logged, running, trained_model, until

LIMITS = Settings(port=0, max_deadline_ms=300, max_body_bytes=100_000)

SEMANTIC = ("positive_data_acceptance",)
"""Checks left out: which groups a model has, and of which widths, no schema of ours says, so 422 is in order."""


@pytest.mark.skipif(importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not here")
def test_what_the_document_says_holds(tmp_path: Path) -> None:
    trained_model().save(tmp_path / "m.safetensors")
    hooks = Path(__file__).with_name("schemathesis_hooks.py")
    told = ["--generation-deterministic", "--max-examples", "10", "--no-color", "--workers", "1"]
    with running(create_app(load_registry([tmp_path]), LIMITS), LIMITS) as service:
        with logged() as records:
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "schemathesis.cli", "run", f"{service.url}/openapi.json"),
                    *(*told, "--exclude-checks", ",".join(SEMANTIC)),
                ],
                env={**ENVIRONMENT, "PYTHONWARNINGS": "ignore", "SCHEMATHESIS_HOOKS": os.fspath(hooks)},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        assert done.returncode == 0, done.stdout[-10_000:] + done.stderr
        document = service.get("/openapi.json").json()
        operations = sum(len(item) for item in document["paths"].values())
        assert f"Tested: {operations}\n" in done.stdout
        assert not [record for record in records if record.levelname == "ERROR"]
        assert service.post({"groups": VALUES}).json()["complete"]
        until(lambda: service.metric("anytime_open_predictions") == 0, within_s=1.5)
