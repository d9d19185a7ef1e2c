"""Predictions that a load plans, checks of their answers, and the bindings that send them.

Each binding has a few connections that many predictions share.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from anytime.inference.prediction import Prediction
from anytime.model.model import Model
from anytime.types import Policy
from anytime_service.client.errors import OVERLOADED
from benchmarks.load.engine import CONNECTIONS, Load, Pool
from benchmarks.load.frames import HttpClient, WebSocketClient, post, text
from benchmarks.load.models import values_of

DEADLINES_MS = (5.0, 20.0)
STALLED = "stalled"
MAX_STALLED = 0.005
"""Share of answers that stalls of the machine may excuse."""

REFUSED = "refused as overload"
USED_AFTER_MS = 4.5
"""A group sent this long before an answer must be in it: one turn of the loop reads the group, the next adds it to the
prediction, and turns of up to 2.2 ms are not recorded as stalls."""

EARLY_MS = 1.0
NEAR_MS = 1.0
"""A stall this near explains a missing group."""

RECOVERY_MS = 150.0
"""The service may refuse for this long after it has caught up with a stall."""

CATCH_UP = 4.0
"""Milliseconds that a loop with a quarter of idle time needs to catch up with one millisecond."""

UNFINISHED = 0.2
SHUFFLED = 0.2


@dataclass(slots=True)
class LoadPrediction:
    """One prediction: its plan and its answers. Times are of `time.perf_counter`, in seconds.

    Attributes
    ----------
    groups : offset, name and values of the groups, in the order in which they are sent.
    end_s : offset of the end; None if it is never sent.
    started : just before the beginning was written.
    sent : time just after each group was written.
    answers : time and content of each answer.
    on_answer : called with this object after an answer.
    """

    name: int
    deadline_ms: float
    policy: Policy
    groups: Sequence[tuple[float, str, list[float]]]
    end_s: float | None
    started: float = 0.0
    sent: dict[str, float] = field(default_factory=dict)
    answers: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    on_answer: Callable[[LoadPrediction], None] | None = None

    def answer(self, received: float, content: dict[str, Any]) -> None:
        self.answers.append((received, content))
        if self.on_answer is not None:
            self.on_answer(self)

    @property
    def lateness_ms(self) -> float | None:
        """Lateness of the answer at the client; None unless the deadline triggered it."""
        received, answer = self.answers[0]
        return (received - self.started) * 1000.0 - self.deadline_ms if answer.get("reason") == "deadline" else None


def plan_predictions(
    model: Model, rng: np.random.Generator, count: int, policy: Policy = "prefix", stretch: float = 1.0
) -> Iterator[LoadPrediction]:
    """Plan predictions: groups at random times, most in the order of the sequence, some too late.

    A fifth of them never ends. `stretch` multiplies all times.
    """
    names = tuple(model.places)
    for name in range(count):
        deadline_ms = float(rng.choice(DEADLINES_MS)) * stretch
        unfinished = rng.random() < UNFINISHED
        sent = names[: int(rng.integers(1, len(names)))] if unfinished or rng.random() < 0.5 else names
        if rng.random() < SHUFFLED:
            sent = tuple(rng.permutation(sent).tolist())
        span_s = deadline_ms / 1000.0 * float(rng.uniform(0.3, 1.3))
        offsets = np.sort(rng.uniform(0.0, span_s, len(sent))).tolist()
        groups = [(at, group, values_of(model, group, rng)) for at, group in zip(offsets, sent, strict=True)]
        yield LoadPrediction(name, deadline_ms, policy, groups, None if unfinished else span_s)


def recovery_periods(stalls: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield begin and end, in milliseconds, of the times in which stalls explain refusals; stalls add up."""
    caught_up = -math.inf
    for begin, end in sorted(stalls):
        caught_up = max(caught_up, end) + CATCH_UP * (end - begin)
        yield begin, caught_up + RECOVERY_MS


def faults(model: Model, prediction: LoadPrediction, stalls: Sequence[tuple[float, float]]) -> list[str]:
    """Return what is wrong with the answer; faults explained by a stall are `STALLED`."""
    if len(prediction.answers) != 1:
        return [f"{len(prediction.answers)} answers"]
    received, answer = prediction.answers[0]
    if "prediction" not in answer:
        problem = answer.get("problem", answer)
        stalled = any(
            begin < received * 1000.0 and prediction.started * 1000.0 < until
            for begin, until in recovery_periods(stalls)
        )
        if problem.get("type") == OVERLOADED:
            return [STALLED if stalled else REFUSED]
        return [f"no answer: {problem.get('status')} {problem.get('detail')}"]
    found = []
    reference = Prediction(model, 1)
    for _, group, values in prediction.groups:
        if group in answer["groups"]:
            reference.add(group, values)
    expected = reference.answer(policy=answer["policy"]).prediction
    if not math.isclose(answer["prediction"], expected, rel_tol=1e-9, abs_tol=1e-9):
        found.append(f"prediction {answer['prediction']}, the library returns {expected}")
    if not set(answer["groups"]) <= set(prediction.sent):
        found.append("groups that were never sent")
    # The server read the beginning after it was written, so the answer was made no earlier than this.
    answered_ms = prediction.started * 1000.0 + answer["elapsed_ms"]
    usable = {group for group, at in prediction.sent.items() if at * 1000.0 <= answered_ms - USED_AFTER_MS}
    expected_prefix = sum(needed <= usable for needed in model.needed) - 1
    if answer["prefix"] < expected_prefix:
        in_stall = any(
            begin < answered_ms + NEAR_MS and end > answered_ms - USED_AFTER_MS - NEAR_MS for begin, end in stalls
        )
        found.append(
            STALLED
            if in_stall
            else f"prefix {answer['prefix']}, but {expected_prefix} were sent {USED_AFTER_MS} ms before"
        )
    lateness_ms = prediction.lateness_ms
    if lateness_ms is not None and min(lateness_ms, answer["elapsed_ms"] - prediction.deadline_ms) < -EARLY_MS:
        found.append(f"early by more than {EARLY_MS} ms")
    return found


class Binding(Protocol):
    """A transport of the service."""

    def begin(self, prediction: LoadPrediction) -> None:
        """Begin a prediction, and schedule its groups."""


def begin_all(load: Load, binding: Binding, predictions: Iterable[LoadPrediction], gap_s: Callable[[], float]) -> None:
    """Begin predictions one after the other, at intervals of `gap_s()`."""
    at = time.perf_counter() + 0.05
    remaining = iter(predictions)

    def next_one() -> None:
        nonlocal at
        prediction = next(remaining, None)
        if prediction is not None:
            at += gap_s()
            load.at(at, next_one)
            binding.begin(prediction)

    load.at(at, next_one)


class Stream:
    """WebSocket.

    Attributes
    ----------
    open : predictions by name; answered ones may be removed.
    strays : number of answers to others.
    """

    def __init__(self, load: Load, port: int) -> None:
        self.load = load
        self.open: dict[int, LoadPrediction] = {}
        self.strays = 0
        self.clients = [WebSocketClient(port, "/stream") for _ in range(CONNECTIONS)]
        for client in self.clients:
            load.watch(client.sock, partial(self._read, client))

    def begin(self, prediction: LoadPrediction) -> None:
        """Begin, and send each group in its own message."""
        client = self.clients[prediction.name % len(self.clients)]
        message = {
            "type": "begin",
            "id": prediction.name,
            "deadline_ms": prediction.deadline_ms,
            "policy": prediction.policy,
        }
        frame = text(json.dumps(message).encode())
        self.open[prediction.name] = prediction
        prediction.started = time.perf_counter()
        client.sock.send(frame)
        for offset, group, values in prediction.groups:
            message = {"type": "group", "id": prediction.name, "group": group, "values": values}
            self.load.at(prediction.started + offset, partial(self._group, client, prediction, group, message))
        if prediction.end_s is not None:
            self.load.at(prediction.started + prediction.end_s, partial(self._end, client, prediction.name))

    def _group(
        self, client: WebSocketClient, prediction: LoadPrediction, group: str, message: dict[str, object]
    ) -> None:
        client.sock.send(text(json.dumps(message).encode()))
        prediction.sent[group] = time.perf_counter()

    def _end(self, client: WebSocketClient, name: int) -> None:
        client.sock.send(text(json.dumps({"type": "end", "id": name}).encode()))

    def _read(self, client: WebSocketClient) -> None:
        received = time.perf_counter()
        for content in client.frames():
            message = json.loads(content)
            prediction = self.open.get(message["id"])
            if prediction is None:
                self.strays += 1
            else:
                prediction.answer(received, message)


class BareTimers:
    """Timers of the server's event loop, requested by WebSocket: the baseline of the answers."""

    def __init__(self, load: Load, port: int) -> None:
        self.load = load
        self.late_ms: list[float] = []
        self._due: dict[str, float] = {}
        self._names = itertools.count()
        self._clients = [WebSocketClient(port, "/timer") for _ in range(CONNECTIONS)]
        for client in self._clients:
            load.watch(client.sock, partial(self._read, client))

    def request_timers(self, rng: np.random.Generator, gap_s: float, until: Callable[[], bool]) -> None:
        """Request timers at random times."""
        name, delay = next(self._names), float(rng.choice(DEADLINES_MS))
        client = self._clients[name % len(self._clients)]
        self._due[str(name)] = time.perf_counter() + delay / 1000.0
        client.sock.send(text(f"{name} {delay}".encode()))
        if not until():
            at = time.perf_counter() + float(rng.exponential(gap_s))
            self.load.at(at, partial(self.request_timers, rng, gap_s, until))

    def _read(self, client: WebSocketClient) -> None:
        received = time.perf_counter()
        self.late_ms += [(received - self._due.pop(name.decode())) * 1000.0 for name in client.frames()]


class StreamedPost:
    """POST /predict with one line per group, each in its own chunk, over sockets."""

    def __init__(self, load: Load, port: int) -> None:
        self.pool = Pool(load, port)

    def begin(self, prediction: LoadPrediction) -> None:
        """Begin, and send each group in its own chunk until there is an answer."""
        client = self.pool.acquire(lambda received, _, content: self._answered(client, prediction, received, content))
        query = f"deadline_ms={prediction.deadline_ms}&policy={prediction.policy}"
        kind = "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked"
        head = f"POST /predict?{query} HTTP/1.1\r\nHost: load\r\n{kind}\r\n\r\n".encode()
        prediction.started = time.perf_counter()
        client.sock.send(head)
        for offset, group, values in prediction.groups:
            line = json.dumps({"group": group, "values": values}).encode() + b"\n"
            chunk = b"%x\r\n%b\r\n" % (len(line), line)
            self.pool.load.at(prediction.started + offset, partial(self._group, client, prediction, group, chunk))
        if prediction.end_s is not None:
            self.pool.load.at(prediction.started + prediction.end_s, partial(self._end, client, prediction))

    def _group(self, client: HttpClient, prediction: LoadPrediction, group: str, chunk: bytes) -> None:
        if not prediction.answers:
            client.sock.send(chunk)
            prediction.sent[group] = time.perf_counter()

    def _end(self, client: HttpClient, prediction: LoadPrediction) -> None:
        """End the body, before or after its answer."""
        client.sock.send(b"0\r\n\r\n")
        if prediction.answers:
            self.pool.release(client)
        prediction.end_s = -1.0

    def _answered(self, client: HttpClient, prediction: LoadPrediction, received: float, content: bytes) -> None:
        prediction.answer(received, json.loads(content))
        if prediction.end_s is None:
            self.pool.discard(client)
        elif prediction.end_s < 0:
            self.pool.release(client)


class Sessions:
    """A session, groups posted one after the other, and a prediction that waits for them on another connection."""

    LEAD_S = 0.05
    GROUPS_PER_REQUEST = 3

    def __init__(self, load: Load, port: int) -> None:
        self.pool = Pool(load, port)

    def begin(self, prediction: LoadPrediction) -> None:
        """Create the session; the other requests follow."""
        self._request(post("/sessions", b""), lambda content: self._created(prediction, json.loads(content)))

    def _request(self, request: bytes, on_content: Callable[[bytes], None]) -> None:
        def answered(_came: float, _status: int, content: bytes) -> None:
            self.pool.release(client)
            on_content(content)

        client = self.pool.acquire(answered)
        client.send(request)

    def _created(self, prediction: LoadPrediction, created: dict[str, str]) -> None:
        session = created.get("id")
        if session is None:  # refused
            prediction.answer(time.perf_counter(), created)
            return
        started = time.perf_counter() + self.LEAD_S
        query = f"deadline_ms={prediction.deadline_ms}&policy={prediction.policy}"
        request = f"GET /sessions/{session}/predict?{query} HTTP/1.1\r\nHost: load\r\n\r\n".encode()
        self.pool.load.at(started, partial(self._predict, prediction, request, session))
        for first in range(0, len(prediction.groups), self.GROUPS_PER_REQUEST):
            part = prediction.groups[first : first + self.GROUPS_PER_REQUEST]
            body = json.dumps({group: values for _, group, values in part}).encode()
            content = post(f"/sessions/{session}/groups", body)
            self.pool.load.at(
                started + part[-1][0], partial(self._group, prediction, [group for _, group, _ in part], content)
            )

    def _predict(self, prediction: LoadPrediction, request: bytes, session: str) -> None:
        def answered(received: float, _status: int, content: bytes) -> None:
            self.pool.release(client)
            prediction.answer(received, json.loads(content))
            at = time.perf_counter() + 0.1  # after the last groups, which are too late
            self.pool.load.at(at, partial(self._delete, session))

        client = self.pool.acquire(answered)
        prediction.started = time.perf_counter()
        client.send(request)

    def _group(self, prediction: LoadPrediction, groups: list[str], request: bytes) -> None:
        self._request(request, lambda _: None)
        prediction.sent.update(dict.fromkeys(groups, time.perf_counter()))

    def _delete(self, session: str) -> None:
        self._request(f"DELETE /sessions/{session} HTTP/1.1\r\nHost: load\r\n\r\n".encode(), lambda _: None)
