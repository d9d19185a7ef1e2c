"""The part of the report on serving: the same linear model behind each server on one core, the client on the other."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from benchmarks.load.models import saved_model, values_of
from benchmarks.peers.environments import Absent, ours, prepared
from benchmarks.peers.load_client import measure_latency, on_core, percentile, saturate, saturate_websocket
from benchmarks.peers.measurements import FailedError, Spread, digits, interleave, ratios
from benchmarks.peers.section import Cell, Finding, Section, Sheet, Verdict, cell, mebibytes, missing_peers
from benchmarks.peers.servers import CLIENT_CORE, LAUNCHERS, Server, launch

__all__ = ["check_answer", "serving"]

RATE = 200.0
"""Requests per second at which latency is measured, within the capacity of the slowest server."""

BARE, OURS = LAUNCHERS[0].label, LAUNCHERS[1].label
WEBSOCKET = "ours, WebSocket (11 messages a prediction)"
FIRST_S = 1.0
"""Warm-up of a server after it was stopped."""

TEXT = (
    "All serve the same linear model of 100 features in ten groups, and every answer is checked against the library. "
    "The floor is an ASGI application without a framework under the same uvicorn: it parses JSON, multiplies, and "
    "checks nothing. Ours is the product as `anytime serve` runs it, with deadlines, admission, metrics, validation "
    "and an answer with its groups and reason; only its admission control refuses nothing, as in the other servers. "
    "MLServer runs without workers, LitServe with one worker process (it has no other way), BentoML with one worker; "
    "each on the same core with all its processes, the client on the other. "
    "Servers that are not being measured are stopped (SIGSTOP).",
    "Requests per second: 16 connections, each sending the next request after an answer. Times are of requests due "
    f"at {RATE:g} per second in an open loop, from their due times.",
)


def serving(quick: bool) -> Section:
    """Measure, and return the section."""
    rounds, seconds = (3, 1.0) if quick else (5, 2.0)
    found = [prepared(each.environment) for each in LAUNCHERS if each.environment != "ours"]
    findings = missing_peers(found)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = saved_model(folder / "linear.safetensors", groups=10, size=10)
        coef, intercept = _plain(model)
        np.savez(folder / "linear.npz", coef=coef, intercept=intercept)
        rng = np.random.default_rng(5)
        row = {name: values_of(model, name, rng) for name in model.places}
        servers: list[Server] = []
        try:
            for number, launcher in enumerate(LAUNCHERS):
                environment = ours() if launcher.environment == "ours" else prepared(launcher.environment)
                if isinstance(environment, Absent):
                    continue
                try:
                    servers.append(launch(launcher, environment, folder / "linear.npz", folder / str(number), row))
                except FailedError as error:
                    findings.append(Finding("absent", f"{launcher.label}: {error}"))
            with on_core(CLIENT_CORE):
                sheet, server_findings = _measured(servers, model, row, rounds, seconds)
        finally:
            for server in servers:
                server.end()
    versions = (ours().versions_text(), *(each.versions_text() for each in found if not isinstance(each, Absent)))
    title = "Serving the same linear model"
    return Section("serving", title, "", versions, (*findings, *server_findings), TEXT, (sheet,))


def _plain(model: Model) -> tuple[np.ndarray[Any, Any], float]:
    """Return the coefficients of the last prefix in the order in which groups are sent, and the intercept."""
    prefixes = model.prefixes
    used = prefixes.columns
    coef = prefixes.coef(prefixes.steps)[:, 0]
    intercept = float(prefixes.intercept_of(prefixes.steps)[0] - prefixes.mean[used] @ coef)
    return coef, intercept


def _measured(
    servers: list[Server], model: Model, row: Mapping[str, list[float]], rounds: int, seconds: float
) -> tuple[Sheet, list[Finding]]:
    """Measure all servers, interleaved."""
    prediction = Prediction(model, 1)
    for name, values in row.items():
        prediction.add(name, values)
    expected = float(prediction.answer().prediction)
    for server in servers:
        server.pause()
    cpu_us: dict[str, list[float]] = {}
    memory: dict[str, float] = {}
    took: dict[str, list[list[float]]] = {}
    measures: dict[str, Callable[[], float]] = {}
    for server in servers:
        label = server.launcher.label
        cpu_us[label], took[label] = [], []
        request = server.launcher.request(row)
        check = partial(check_answer, server.launcher.read, expected)
        measures[label] = partial(_rate, server, partial(saturate, server.port, request, check), seconds, cpu_us[label])
        if label == OURS:
            cpu_us[WEBSOCKET] = []
            load = partial(saturate_websocket, server.port, row, check)
            measures[WEBSOCKET] = partial(_rate, server, load, seconds, cpu_us[WEBSOCKET])
        measures[f"{label} at a rate"] = partial(
            _times, server, partial(measure_latency, server.port, request, check, RATE, seconds), took[label]
        )
    results = interleave(measures, rounds)
    for server in servers:
        server.resume()
        memory[server.launcher.label] = server.memory_mib
        server.pause()
    rows: list[tuple[Cell, ...]] = []
    findings = [Finding("absent", f"{label}: {why}") for label, why in results.failed.items()]
    labels = [
        label
        for server in servers
        for label in (server.launcher.label, WEBSOCKET if server.launcher.label == OURS else "")
        if label
    ]
    bare = results.values.get(BARE)
    for label in labels:
        rate = results.values.get(label)
        if not rate:
            continue
        times = took.get(label, [])[1:]  # without the warm-up
        median, p99 = (_spread([percentile(each, share) for each in times]) for share in (0.5, 0.99))
        relative = ratios(rate, bare) if bare else None
        rows.append(
            (
                label,
                f"{Spread.of(rate).median:,.0f}",
                cell(relative),
                digits(Spread.of(cpu_us[label][1:]).median),
                median,
                p99,
                mebibytes(memory[label]) if label in memory else None,
            )
        )
    findings += _compare(results.values)
    columns = ("", "requests/s", "of bare uvicorn", "CPU us a request", f"ms at {RATE:g}/s: median", "99%", "memory")
    return Sheet("One core for the server with all its processes", columns, tuple(rows)), findings


def _spread(values: list[float]) -> str | None:
    return str(Spread.of(values)) if values else None


def _compare(values: Mapping[str, list[float]]) -> list[Finding]:
    """Compare ours with each server."""
    findings = []
    for label, theirs in values.items():
        if label in (OURS, WEBSOCKET) or label.endswith("at a rate") or not theirs or not values.get(OURS):
            continue
        ratio = ratios(values[OURS], theirs)
        verdict: Verdict = "ahead" if ratio.median > 1 else "behind"
        findings.append(Finding(verdict, f"requests/s, ours by POST / {label}: {ratio}"))
    return findings


def _rate(server: Server, load: Callable[[float], tuple[int, float]], seconds: float, cpu_us: list[float]) -> float:
    """Return requests per second, and append the processor time of each."""
    server.resume()
    try:
        time.sleep(0.2)
        load(min(FIRST_S, seconds))
        server.find()
        before = server.cpu_s
        count, passed = load(seconds)
        if not count:
            raise FailedError("no answer received")
        cpu_us.append((server.cpu_s - before) / count * 1e6)
        return count / passed
    finally:
        server.pause()


def _times(server: Server, load: Callable[[], list[float]], took: list[list[float]]) -> float:
    """Return the median latency in milliseconds, and append all latencies."""
    server.resume()
    try:
        time.sleep(0.2)
        found = load()
        took.append(found)
        return percentile(found, 0.5)
    finally:
        server.pause()


def check_answer(read: Callable[[Any], float], expected: float, content: bytes) -> None:
    """Raise unless an answer is what the library predicts."""
    try:
        found = read(json.loads(content))
    except (KeyError, TypeError, ValueError) as error:
        raise FailedError(f"no prediction: {content[:200]!r}") from error
    if not math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9):
        raise FailedError(f"answered {found}, expected {expected}")
