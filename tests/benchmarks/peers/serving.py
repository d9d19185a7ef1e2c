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
from benchmarks.peers.asking import on_core, percentile, saturated, saturated_by_websocket, timed
from benchmarks.peers.environments import Absent, ours, prepared
from benchmarks.peers.section import Cell, Finding, Section, Sheet, Verdict, absence, cell, mebibytes
from benchmarks.peers.servers import CLIENT_CORE, LAUNCHERS, Server, launched
from benchmarks.peers.turns import FailedError, Spread, digits, in_turns, ratios

__all__ = ["check_answer", "serving"]

RATE = 200.0
"""Requests a second at which the time of an answer is measured: what the slowest can do well."""

BARE, OURS = LAUNCHERS[0].label, LAUNCHERS[1].label
WEBSOCKET = "ours, WebSocket (11 messages a prediction)"
FIRST_S = 1.0
"""A server that has stood still is asked for so long before it is measured."""

TEXT = (
    "All serve the same linear model of 100 features in ten groups, and every answer is checked against the library. "
    "The floor is an ASGI application without a framework under the same uvicorn: it parses JSON, multiplies, and "
    "checks nothing. Ours is the product as `anytime serve` runs it, with deadlines, admission, metrics, validation "
    "and an answer that says what it rests on; only its admission is told to refuse nothing, as the others do. "
    "MLServer runs without workers, LitServe with one worker process (it has no other way), BentoML with one worker; "
    "each on the same core with all its processes, the client on the other. "
    "The servers that are not being measured stand still (SIGSTOP).",
    "Requests a second: 16 connections, each asking anew as soon as it is answered. Times are of requests that are due "
    f"at {RATE:g} a second whether or not the last one is answered, from when they were due.",
)


def serving(quick: bool) -> Section:
    """Measure and tell."""
    rounds, seconds = (3, 1.0) if quick else (5, 2.0)
    found = [prepared(each.environment) for each in LAUNCHERS if each.environment != "ours"]
    findings = absence(found)
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
                    servers.append(launched(launcher, environment, folder / "linear.npz", folder / str(number), row))
                except FailedError as error:
                    findings.append(Finding("absent", f"{launcher.label}: {error}"))
            with on_core(CLIENT_CORE):
                sheet, told = _measured(servers, model, row, rounds, seconds)
        finally:
            for server in servers:
                server.end()
    versions = (ours().told(), *(each.told() for each in found if not isinstance(each, Absent)))
    title = "Serving the same linear model"
    return Section("serving", title, "", versions, (*findings, *told), TEXT, (sheet,))


def _plain(model: Model) -> tuple[np.ndarray[Any, Any], float]:
    """Coefficients of the last prefix in the order in which groups are sent, and the intercept."""
    prefixes = model.prefixes
    used = prefixes.columns
    coef = prefixes.coef(prefixes.steps)[:, 0]
    intercept = float(prefixes.intercept_of(prefixes.steps)[0] - prefixes.mean[used] @ coef)
    return coef, intercept


def _measured(
    servers: list[Server], model: Model, row: Mapping[str, list[float]], rounds: int, seconds: float
) -> tuple[Sheet, list[Finding]]:
    """All servers in turns."""
    prediction = Prediction(model, 1)
    for name, values in row.items():
        prediction.add(name, values)
    right = float(prediction.answer().prediction)
    for server in servers:
        server.stand_still()
    cpu_us: dict[str, list[float]] = {}
    memory: dict[str, float] = {}
    took: dict[str, list[list[float]]] = {}
    measures: dict[str, Callable[[], float]] = {}
    for server in servers:
        label = server.launcher.label
        cpu_us[label], took[label] = [], []
        request = server.launcher.request(row)
        check = partial(check_answer, server.launcher.read, right)
        measures[label] = partial(
            _rate, server, partial(saturated, server.port, request, check), seconds, cpu_us[label]
        )
        if label == OURS:
            cpu_us[WEBSOCKET] = []
            load = partial(saturated_by_websocket, server.port, row, check)
            measures[WEBSOCKET] = partial(_rate, server, load, seconds, cpu_us[WEBSOCKET])
        measures[f"{label} at a rate"] = partial(
            _times, server, partial(timed, server.port, request, check, RATE, seconds), took[label]
        )
    taken = in_turns(measures, rounds)
    for server in servers:
        server.go_on()
        memory[server.launcher.label] = server.memory_mib
        server.stand_still()
    rows: list[tuple[Cell, ...]] = []
    findings = [Finding("absent", f"{label}: {why}") for label, why in taken.failed.items()]
    labels = [
        label
        for server in servers
        for label in (server.launcher.label, WEBSOCKET if server.launcher.label == OURS else "")
        if label
    ]
    bare = taken.values.get(BARE)
    for label in labels:
        rate = taken.values.get(label)
        if not rate:
            continue
        times = took.get(label, [])[1:]  # the first turn warmed up
        median, slow = (_of([percentile(each, share) for each in times]) for share in (0.5, 0.99))
        beside = ratios(rate, bare) if bare else None
        rows.append(
            (
                label,
                f"{Spread.of(rate).median:,.0f}",
                cell(beside),
                digits(Spread.of(cpu_us[label][1:]).median),
                median,
                slow,
                mebibytes(memory[label]) if label in memory else None,
            )
        )
    findings += _said(taken.values)
    columns = ("", "requests/s", "of bare uvicorn", "CPU us a request", f"ms at {RATE:g}/s: median", "99%", "memory")
    return Sheet("One core for the server with all its processes", columns, tuple(rows)), findings


def _of(values: list[float]) -> str | None:
    return str(Spread.of(values)) if values else None


def _said(values: Mapping[str, list[float]]) -> list[Finding]:
    """Ours beside each."""
    told = []
    for label, theirs in values.items():
        if label in (OURS, WEBSOCKET) or label.endswith("at a rate") or not theirs or not values.get(OURS):
            continue
        ratio = ratios(values[OURS], theirs)
        verdict: Verdict = "ahead" if ratio.median > 1 else "behind"
        told.append(Finding(verdict, f"requests/s, ours by POST / {label}: {ratio}"))
    return told


def _rate(server: Server, load: Callable[[float], tuple[int, float]], seconds: float, cpu_us: list[float]) -> float:
    """Requests a second, and the processor time of each."""
    server.go_on()
    try:
        time.sleep(0.2)
        load(min(FIRST_S, seconds))
        server.find()
        before = server.cpu_s
        count, passed = load(seconds)
        if not count:
            raise FailedError("no answer came")
        cpu_us.append((server.cpu_s - before) / count * 1e6)
        return count / passed
    finally:
        server.stand_still()


def _times(server: Server, load: Callable[[], list[float]], took: list[list[float]]) -> float:
    """Milliseconds of an answer, their median; all are kept."""
    server.go_on()
    try:
        time.sleep(0.2)
        found = load()
        took.append(found)
        return percentile(found, 0.5)
    finally:
        server.stand_still()


def check_answer(read: Callable[[Any], float], right: float, content: bytes) -> None:
    """Whether an answer is what the library predicts."""
    try:
        found = read(json.loads(content))
    except (KeyError, TypeError, ValueError) as error:
        raise FailedError(f"no prediction: {content[:200]!r}") from error
    if not math.isclose(found, right, rel_tol=1e-9, abs_tol=1e-9):
        raise FailedError(f"answered {found}, expected {right}")
