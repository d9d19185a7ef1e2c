"""Metrics and probes on a port of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anytime_service.server.run import bind, bind_side
from anytime_service.settings import Settings
from models.commands import Capture, ran
from models.present import present
from service.serving import problem_in, run_service, small_model

LIMITS = Settings(port=0, metrics_port=0)


def test_metrics_are_on_their_own_port_and_nowhere_else_for_hosts_that_are_allowed() -> None:
    with run_service([small_model()], LIMITS) as service:
        assert service.metrics_port not in (None, service.port)
        problem_in(service.get("/metrics"), 404)
        assert "/metrics" not in service.get("/openapi.json").json()["paths"]
        service.post({"groups": {}})
        assert service.metric("anytime_predictions_total", model="brake", reason="end") == 1
        for path, reported in (("/livez", {"status": "ok"}), ("/readyz", {"status": "ok", "sessions": "memory"})):
            assert (service.get(path).json(), service.scrape(path).json()) == (reported, reported)
        for path in ("/models", "/models/", "/predict", "/docs", "/", "/openapi.json"):
            problem_in(service.scrape(path), 404)
        assert {"x-request-id", "date"} <= set(service.scrape().headers)
        for headers in ({"Host": "attacker.example"}, {"Origin": "https://attacker.example"}):
            for path in ("/metrics", "/livez"):
                assert problem_in(service.scrape(path, **headers), 403)["title"] == "Origin not allowed"
        assert service.scrape("/metrics", Host="localhost:9100").status_code == 200


@pytest.mark.parametrize(
    ("reported", "address"),
    [
        ({}, "127.0.0.1"),
        ({"host": "127.0.0.2"}, "127.0.0.2"),
        ({"host": "127.0.0.2", "metrics_host": "127.0.0.3"}, "127.0.0.3"),
        ({"metrics_host": "0.0.0.0"}, "0.0.0.0"),  # without a key, since metrics have none
        ({"host": "0.0.0.0", "uds": Path("s")}, "0.0.0.0"),
    ],
)
def test_the_address_is_that_of_the_service_unless_another_is_set(reported: dict[str, Any], address: str) -> None:
    with bind_side(Settings(metrics_port=0, **reported)) as side:
        assert present(side).getsockname()[0] == address
    with bind_side(Settings(**reported)) as side:
        assert side is None


def test_a_metrics_port_in_use_is_one_line_and_exit_1(
    model_file: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bind(Settings(port=0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("ANYTIME_METRICS_PORT", str(port))
        reported = ran(capsys, "serve", str(model_file), "--port", "0", code=1).err
    assert reported.count("\n") == 1
    assert f"cannot listen on 127.0.0.1:{port} for metrics: address already in use" in reported
    assert "ANYTIME_METRICS_PORT" in reported
