"""Small models, and the service on a real socket, for the tests."""

from __future__ import annotations

import json
import logging
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from operator import itemgetter
from threading import Event, Thread
from typing import Any, Literal

import httpx
import msgspec
import numpy as np
import pytest
from starlette.types import ASGIApp
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from anytime.features.expansion import Expansion
from anytime.groups import load_groups
from anytime.inference.prediction import LOCAL_FIELDS, Answer, Prediction
from anytime.model.manifest import Manifest, Provenance, StepRecord
from anytime.model.model import Model
from anytime.model.prefixes import PrefixModels
from anytime.moments.accumulate import moments_of
from anytime.target import Target
from anytime.training.fit import fit, provenance
from anytime.training.options import Options
from anytime_service.app import create_app
from anytime_service.models.registry import ModelRegistry
from anytime_service.schemas.codecs import JSON, MSGPACK, Form
from anytime_service.schemas.problem import MEDIA_TYPE
from anytime_service.server.run import Server, bind, bind_side
from anytime_service.settings import Settings
from waiting import WAIT_S, until

GROUPS: dict[str, Any] = {
    "cost_unit": "ms",
    "groups": [
        {"name": "speed", "features": ["v"], "cost": 1.0},
        {"name": "hog", "features": ["h0", "h1"], "cost": 4.0},
        {"name": "blood", "features": [], "cost": 2.0},
        {"name": "lab", "features": ["l0"], "cost": 3.0, "requires": ["blood"]},
    ],
}
VALUES: dict[str, list[float]] = {"speed": [2.0], "hog": [1.0, -1.0], "lab": [0.5]}
EXTRACTORS: dict[str, Callable[[Any], Any]] = {name: itemgetter(name) for name in VALUES}
BASE_RATE = 10.0
LINES = "application/x-ndjson"
LIMITS = Settings(port=0, max_deadline_ms=2_000, max_body_bytes=100_000, max_rows=50, max_lateness_ms=1_000)
"""Clients share an interpreter with the services of the tests, which are late for that reason alone."""
PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For requests without TLS: httpx would read every certificate of this machine for each of them."""


def changed(model: Model, **fields: Any) -> Model:
    """The model with other fields of its manifest."""
    return replace(model, manifest=model.manifest.model_copy(update=fields))


def small_model(name: str = "brake", *, responses: int = 1, classes: tuple[str, ...] | None = None) -> Model:
    """A model of three steps: speed (1 ms), hog (4 ms), blood and lab (5 ms)."""
    steps = [("speed", ("speed",), 1.0), ("hog", ("hog",), 4.0), ("lab", ("blood", "lab"), 5.0)]
    spent = np.cumsum([cost for _, _, cost in steps]).tolist()
    records = tuple(
        StepRecord(
            group=group,
            adds=adds,
            cost=cost,
            cumulative_cost=total,
            explained_variance=0.1 * (i + 1),
            r2=0.2 * (i + 1),
            cv_error=1.0 / (i + 1),
            alpha=1e-5,
        )
        for i, ((group, adds, cost), total) in enumerate(zip(steps, spent, strict=True))
    )
    manifest = Manifest(
        name=name,
        version="v1",
        task="multiclass" if classes and len(classes) > 2 else "binary" if classes else "regression",
        target=("y",) if classes else tuple(f"y{p}" for p in range(responses)),
        responses=tuple(f"y{p}" for p in range(responses)),
        classes=classes,
        groups=load_groups(GROUPS),
        method="fr",
        alpha=1e-5,
        prior_error=2.0,
        steps=records,
        provenance=Provenance(created="2024-01-01", library="0", data="by hand", rows=8, weight=8.0),
    )
    rng = np.random.default_rng(0)
    ends = np.array([0, 1, 3, 4])
    prefixes = PrefixModels(
        mean=np.array([1.0, 0.5, -0.5, 0.25]),
        scale=np.ones(4),
        intercept=np.full(responses, BASE_RATE if classes is None else 0.4),
        response_scale=np.ones(responses),
        columns=np.arange(4),
        ends=ends,
        packed=rng.normal(size=(int(ends.sum()), responses)),
    )
    return Model(manifest, prefixes)


def groups_of(width: int | None) -> dict[str, Any]:
    """The groups above; with a width, four of that many features instead."""
    if width is None:
        return GROUPS
    return {"groups": [{"name": g, "features": [f"{g}{i}" for i in range(width)], "cost": 1.0} for g in "abcd"]}


def rows_of(groups: dict[str, Any], seed: int) -> tuple[Any, Any]:
    """Features of these groups, and scores that depend on them."""
    count = len(load_groups(groups).features)
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(3 * count + 40, count))
    return X, X @ rng.normal(size=count) + rng.normal(size=len(X))


@cache
def trained_model(name: str = "lens", seed: int = 0, width: int | None = None) -> Model:
    """A model of the same groups that has its moments; with a width, of that many features a group instead."""
    from anytime.estimators import AnytimeRegressor  # noqa: PLC0415  (scikit-learn takes seconds to import)

    groups = groups_of(width)
    model = AnytimeRegressor(groups, basis="linear").fit(*rows_of(groups, seed)).model_
    return changed(model, name=name, version=f"{name}-{seed}")


@cache
def likelihood_model(family: str, width: int | None = None) -> Model:
    """A model of the same groups by a likelihood, called as its family: two classes, three, or a count."""
    from anytime.estimators import AnytimeClassifier, AnytimeRegressor  # noqa: PLC0415

    groups = groups_of(width)
    X, scores = rows_of(groups, 0)
    scores = scores / scores.std()
    if family == "poisson":
        y = np.random.default_rng(1).poisson(np.exp(0.5 + 0.5 * scores))
        model = AnytimeRegressor(groups, family="poisson", alpha=0.01, basis="linear").fit(X, y).model_
    else:
        names, cuts = (["no", "yes"], [0.0]) if family == "binomial" else (["car", "cyclist", "walker"], [-0.5, 0.5])
        classifier = AnytimeClassifier(groups, family=family, alpha=0.01, basis="linear")
        model = classifier.fit(X, np.array(names)[np.digitize(scores, cuts)]).model_
    return changed(model, name=family, version=f"{family}-0")


COLUMNS: dict[str, Any] = {
    "groups": [
        {"name": "person", "features": ["age", "sex"], "cost": 1.0},
        {"name": "ticket", "features": ["fare", "paid", "port", "cabin"], "cost": 2.0},
        {"name": "home", "features": ["town"], "cost": 3.0},
        {"name": "speed", "features": ["v"], "cost": 4.0},
    ],
    "bases": {
        "age": {"basis": "hinge", "knots": [20.0, 50.0], "levels": [], "range": [1.0, 80.0], "missing": False},
        "sex": {"basis": "categories", "levels": ["male", "female"], "other": False},
        "paid": {"basis": "categories", "levels": [True, False], "other": False},
        "port": {"basis": "categories", "levels": ["Oslo", "Rome", "Århus"], "other": True},
        "cabin": {"basis": "categories", "levels": [17, 3], "other": True},
        "town": {"basis": "categories", "levels": ["Bonn", "Köln"], "other": True},
    },
}


@cache
def columns_model(version: str = "c1", *, reverse: bool = False) -> Model:
    """A model of columns of every type, with its moments; `reverse` reverses the order of the levels."""
    groups = load_groups(COLUMNS)
    if reverse:
        bases = {
            name: basis.model_copy(update={"levels": basis.levels and basis.levels[::-1]})
            for name, basis in groups.bases.items()
        }
        groups = groups.model_copy(update={"bases": bases})
    expansion = Expansion.of(groups)
    rng = np.random.default_rng(3)
    X = rng.uniform(0.0, 90.0, (300, len(groups.features)))
    for j, levels in expansion.categories.items():
        X[:, j] = rng.integers(-levels.other, len(levels.labels), 300)
    Y = expansion.expand(X) @ rng.normal(size=(expansion.size, 1)) + rng.normal(size=(300, 1))
    fitted = fit([moments_of(expansion.expand(X), Y)], groups, Options(alpha=0.01))
    return changed(fitted.model("liner", Target("regression", ("y",)), provenance(fitted, "memory")), version=version)


def picky_model(best: tuple[int, ...] = (1, 1, 3)) -> Model:
    """A model of the same groups whose policy "best" does not answer by its second prefix."""
    model = trained_model("picky", seed=1)
    steps = zip(model.manifest.steps, best, strict=True)
    return changed(model, steps=tuple(step.model_copy(update={"best": k}) for step, k in steps))


LIKELIHOODS = ("binomial", "multinomial", "poisson")


def several_models() -> list[Model]:
    """`brake`; `lens`, `wide`, `picky`, which have their moments; `kind`, of classes; one by each likelihood."""
    return [
        small_model(),
        trained_model(),
        picky_model(),
        trained_model("wide", width=40),
        small_model("kind", responses=3, classes=("car", "cyclist", "walker")),
        *map(likelihood_model, LIKELIHOODS),
    ]


def expected(
    model: Model, groups: Mapping[str, Any], budget: float | None = None, rows: int | None = 1, **options: Any
) -> dict[str, Any]:
    """What the library answers, as JSON, without what depends on the clock."""
    prediction = Prediction(model, rows)
    for name, values in groups.items():
        prediction.add(name, values)
    return timeless(json.loads(json.dumps(asdict(prediction.answer(budget, **options)))))


def timeless(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer without the fields that depend on the clock or the binding."""
    return {n: v for n, v in answer.items() if n not in ("elapsed_ms", "reason", "type", "id", *LOCAL_FIELDS)}


def packed(values: Any, dtype: str = "f8") -> dict[str, Any]:
    """Values as MessagePack has them packed."""
    return {"dtype": dtype, "values": np.array(values, dtype=f"<{dtype}").tobytes()}


def chunk(content: bytes) -> bytes:
    """A chunk of a body whose length is not announced."""
    return b"%x\r\n%b\r\n" % (len(content), content)


def lines_of(groups: Mapping[str, Any], **fields: Any) -> bytes:
    """A line of JSON for each group."""
    reported = ({"group": name, "values": values, **fields} for name, values in groups.items())
    return b"".join(json.dumps(each).encode() + b"\n" for each in reported)


@contextmanager
def logged(*names: str) -> Iterator[list[logging.LogRecord]]:
    """Collect what is logged as a warning or worse; by the service, its server and the event loop if none is named."""
    records: list[logging.LogRecord] = []
    keeper = logging.Handler(logging.WARNING)
    keeper.emit = records.append  # type: ignore[method-assign, assignment]
    loggers = [logging.getLogger(name) for name in names or ("anytime_service", "uvicorn.error", "asyncio")]
    for logger in loggers:
        logger.addHandler(keeper)
    try:
        yield records
    finally:
        for logger in loggers:
            logger.removeHandler(keeper)


def problem_in(response: httpx.Response, status: int) -> dict[str, Any]:
    """Return the problem of a response that has this status."""
    assert (response.status_code, response.headers["content-type"]) == (status, MEDIA_TYPE), response.text
    problem: dict[str, Any] = response.json()
    return problem


class Gate:
    """Calls of a function wait until the gate is opened; `calls` are their arguments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.reached, self.opened, self.calls = Event(), Event(), list[tuple[Any, ...]]()
        call = getattr(owner, name)

        def waiting(*arguments: Any) -> Any:
            self.calls.append(arguments)
            self.reached.set()
            assert self.opened.wait(WAIT_S), "the test did not open the gate"
            return call(*arguments)

        monkeypatch.setattr(owner, name, waiting)

    def open(self) -> None:
        """Open it once a call waits."""
        assert self.reached.wait(WAIT_S), "nothing was called"
        self.opened.set()


@dataclass
class Collecting:
    """A sink that stores what a prediction sends; `answers` has updates too."""

    answers: list[Answer] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)

    def encode(self, answer: Answer) -> Answer:
        return answer

    def send(self, answer: Answer, _elapsed_ms: float) -> None:
        self.answers.append(answer)

    def fail(self, error: Exception) -> None:
        self.failures.append(error)


@dataclass(frozen=True)
class Running:
    """A service that listens; `metrics_port` is where its metrics are, if that is another port."""

    port: int
    metrics_port: int | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, body: Any, **parameters: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/predict", json=body, params=parameters, timeout=WAIT_S, verify=PLAIN)

    def post_to(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=WAIT_S, verify=PLAIN, **options)

    def post_packed(self, path: str, body: Any, accept: str = JSON.media_type, **parameters: Any) -> httpx.Response:
        """Post a body in MessagePack."""
        headers = {"content-type": MSGPACK.media_type, "accept": accept}
        return self.post_to(path, content=MSGPACK.encode(body), headers=headers, params=parameters)

    def get(self, path: str, **parameters: Any) -> httpx.Response:
        return httpx.get(self.url + path, params=parameters, timeout=WAIT_S, verify=PLAIN)

    def delete(self, path: str) -> httpx.Response:
        return httpx.delete(self.url + path, timeout=WAIT_S, verify=PLAIN)

    def connect(self) -> Connection:
        return Connection(socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S))

    @contextmanager
    def stream(self, form: Form = JSON, **options: Any) -> Iterator[Stream]:
        """Open a WebSocket."""
        given = {"compression": None, "proxy": None, "max_size": None, "close_timeout": 1, **options}
        with connect(f"ws://127.0.0.1:{self.port}/stream", **given) as wire:
            yield Stream(wire, form)

    def metric(self, name: str, **labels: str) -> float:
        """One metric of the service, the sum over labels that are not given; 0 if it has no value yet."""
        found = re.findall(rf"^{re.escape(name)}(?:{{(.*)}})? (\S+)$", self.scrape().text, re.MULTILINE)
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        return sum(float(value) for others, value in found if wanted <= set(others.split(",")))

    def scrape(self, path: str = "/metrics", **headers: str) -> httpx.Response:
        """Ask the port that has the metrics."""
        url = f"http://127.0.0.1:{self.metrics_port or self.port}"
        return httpx.get(url + path, headers=headers, timeout=WAIT_S, verify=PLAIN)


class Connection:
    """A client that sends and reads bytes when a test says so."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.file = sock.makefile("rb")

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.sock.close()

    def send(self, content: bytes) -> None:
        self.sock.sendall(content)

    def head(self, query: str = "", length: int | None = None, **headers: str) -> None:
        """Send the head of a POST /predict; without a length the body comes in chunks."""
        form = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        self.send(f"POST /predict?{query} HTTP/1.1\r\nHost: test\r\n{form}\r\n{more}\r\n".encode())

    def response(self) -> tuple[int, dict[str, str], Any]:
        """Read one response: status, headers, JSON."""
        status = int(self.file.readline().split()[1])
        headers: dict[str, str] = {}
        while line := self.file.readline().strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return status, headers, json.loads(self.file.read(int(headers["content-length"])))

    def at_end(self) -> bool:
        """Wait for the server to close; True when it did so without more to read."""
        return self.file.read(1) == b""


class Stream:
    """A WebSocket client that writes in one form and reads both."""

    def __init__(self, wire: ClientConnection, form: Form) -> None:
        self.wire = wire
        self.form = form

    def say(self, kind: str, name: Any, **fields: Any) -> None:
        """Send one message."""
        self.send(self.form.encode({"type": kind, "id": name, **fields}))

    def send(self, content: bytes | str) -> None:
        """Send a frame of this form, whatever is in it."""
        self.wire.send(content, text=self.form is JSON)

    def groups(self, name: Any, groups: Mapping[str, Any]) -> None:
        """Send groups, one message each."""
        for group, values in groups.items():
            self.say("group", name, group=group, **({"values": values} if not isinstance(values, dict) else values))

    def hear(self, timeout: float = WAIT_S) -> dict[str, Any]:
        """Read one message."""
        content = self.wire.recv(timeout)
        form = JSON if isinstance(content, str) else MSGPACK
        decoder: Any = msgspec.json if form is JSON else msgspec.msgpack
        message: dict[str, Any] = decoder.decode(content)
        assert isinstance(message, dict)
        return message | ({} if form is self.form else {"form": form.name})

    def answer(self, name: Any) -> dict[str, Any]:
        """Read one message, which is the answer to a prediction."""
        message = self.hear()
        assert (message["type"], message["id"]) == ("answer", name), message
        return message

    def ask(self, name: Any, groups: Mapping[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        """Begin a prediction and send groups; its answer, which comes without an end."""
        self.say("begin", name, **options)
        self.groups(name, groups or {})
        return self.answer(name)

    def end(self, name: Any) -> dict[str, Any]:
        """End a prediction; its answer."""
        self.say("end", name)
        return self.answer(name)

    def closed(self) -> tuple[int | None, str | None]:
        """Wait until the server closes; its code and its reason."""
        with suppress(ConnectionClosed):
            raise AssertionError(self.hear())
        return self.wire.protocol.close_code, self.wire.protocol.close_reason

    def problem(self) -> dict[str, Any]:
        """Read one message, which is an error; its problem, and `id`."""
        message = self.hear()
        assert message["type"] == "error", message
        return {**message["problem"], "id": message["id"]}


@contextmanager
def running(
    app: ASGIApp, settings: Settings, send_buffer: int | None = None, loop: Literal["auto", "asyncio"] = "auto"
) -> Iterator[Running]:
    """Run an application in a thread, on a port of its own; `send_buffer` limits the bytes that the system buffers."""
    with bind(settings) as listening, bind_side(settings) as side:
        if send_buffer is not None:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)  # its connections inherit it
        server = Server(app, settings, side)
        server.config.loop = loop
        port: int = listening.getsockname()[1]
        side_port = None if side is None else side.getsockname()[1]
        thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        until(lambda: server.started or not thread.is_alive())
        assert server.started
        try:
            yield Running(port, side_port)
        finally:
            server.should_exit = True
            thread.join(WAIT_S)
            assert not thread.is_alive()


@contextmanager
def run_service(models: ModelRegistry | Iterable[Model], settings: Settings) -> Iterator[Running]:
    """Run the service of some models."""
    registry = models if isinstance(models, ModelRegistry) else ModelRegistry.of(models)
    with running(create_app(registry, settings), settings) as service:
        yield service
