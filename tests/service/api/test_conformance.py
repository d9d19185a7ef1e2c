"""The running service keeps what its OpenAPI document says, tried by schemathesis; the same requests in every run.

Keys are needed, and a key of scope admin is sent: what the document says of requests without one is tried, too.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from anytime_service.models.registry import load_registry
from anytime_service.settings import Settings
from models.properties import SHARE
from service.commands import ENVIRONMENT
from service.doors import MANAGING, bearer
from service.serving import VALUES, logged, run_service, trained_model
from waiting import until

LIMITS = Settings(port=0, max_deadline_ms=300, max_body_bytes=100_000, api_keys=f"admin:{MANAGING}")

EXAMPLES = str(round(12 * SHARE))
"""Requests of each operation and phase."""

LEFT_OUT = ("positive_data_acceptance", "missing_required_header")
"""Checks left out: which groups a model has, and of which widths, no schema of ours says, so 422 is in order. No header
is required but the key, and schemathesis sends its own with requests that are to have none, too."""


@pytest.mark.skipif(importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not here")
def test_what_the_document_says_holds(tmp_path: Path) -> None:
    trained_model().save(tmp_path / "m.safetensors")
    hooks = Path(__file__).parents[1] / "schemathesis_hooks.py"
    options = ["--generation-deterministic", "--max-examples", EXAMPLES, "--no-color", "--workers", "1"]
    with run_service(load_registry([tmp_path]), LIMITS) as service:
        with logged() as records:
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "schemathesis.cli", "run", f"{service.url}/openapi.json"),
                    *("--header", f"Authorization: Bearer {MANAGING}"),
                    *(*options, "--exclude-checks", ",".join(LEFT_OUT)),
                ],
                env={**ENVIRONMENT, "PYTHONWARNINGS": "ignore", "SCHEMATHESIS_HOOKS": os.fspath(hooks)},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=900,
                check=False,
            )
        assert done.returncode == 0, done.stdout[-10_000:] + done.stderr
        with httpx.Client(base_url=service.url, headers=bearer(MANAGING)) as client:
            document = client.get("/openapi.json").json()
            operations = sum(len(item) for item in document["paths"].values())
            assert f"Tested: {operations}\n" in done.stdout
            assert not [record for record in records if record.levelname == "ERROR"]
            assert client.post("/predict", json={"groups": VALUES}).json()["complete"]
            until(lambda: "\nanytime_open_predictions 0.0\n" in client.get("/metrics").text)
