"""Promises of the clients against a real server: answers, errors, and released resources."""

from __future__ import annotations

import asyncio
import inspect
import json
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from decimal import Decimal
from fractions import Fraction
from operator import itemgetter
from pathlib import Path
from ssl import create_default_context
from typing import Any

import numpy as np
import pandas as pd
import pytest

import anytime_service.client as package
from anytime.errors import AnytimeError, ExtractorError, ValuesError
from anytime.inference.runner import Runner
from anytime.inference.workers import Worker, Workers
from anytime.model.model import Model
from anytime.moments.moments import Moments
from anytime_service.client import (
    AsyncClient,
    AsyncSession,
    Client,
    ClientError,
    ClosedError,
    ConnectionLostError,
    ProblemError,
    Session,
    running as runs,
)
from anytime_service.settings import Settings
from models.inference.extracting import awaiting
from models.refusals import assert_refused
from models.unreadable import Unreadable
from service.commands import ENVIRONMENT
from service.serving import (
    BASE_RATE,
    EXTRACTORS,
    VALUES,
    Running,
    changed,
    columns_model,
    expected,
    picky_model,
    run_service,
    timeless,
)
from service.slowness import Noting
from waiting import until

LONG_MS = 20_000.0
SHORT_MS = 150.0
FOREVER_S = 30.0


def but(**changed: Callable[[Any], Any]) -> dict[str, Callable[[Any], Any]]:
    return {**EXTRACTORS, **changed}


def broken(x: dict[str, Any]) -> Any:
    raise RuntimeError("no light\non the sensor")


class Stuck:
    """An extractor that works until the test releases it."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.free = threading.Event()

    def __call__(self, x: Any) -> Any:
        self.entered.set()
        self.free.wait(FOREVER_S)
        return x["lab"]


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    extractor = Stuck()
    yield extractor
    extractor.free.set()


@pytest.fixture(scope="module")
def server(model: Model) -> Iterator[Running]:
    """A service with long deadlines and many rows, and a second model that stores its moments."""
    learned = replace(changed(model, name="learned"), moments=_moments())
    with run_service([model, learned, picky_model((1, 1, 1))], Settings(port=0)) as service:
        yield service


@pytest.fixture
def client(server: Running) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def _moments() -> Moments:
    """Of independent standard features (v, h0, h1, l0) and y = v + 2 h0 + 3 h1 + 4 l0."""
    weights = np.array([[1.0], [2.0], [3.0], [4.0]])
    cross = np.vstack([np.hstack([np.eye(4), weights]), np.hstack([weights.T, weights.T @ weights])])
    return Moments(4, 1, 100, 100.0, np.zeros(5), 100.0 * cross, np.zeros(4))


def arrays(rows: int, dtype: Any = np.float64) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {name: rng.normal(size=(rows, len(each))).astype(dtype) for name, each in VALUES.items()}


def local(model: Model, groups: dict[str, Any], rows: int | None = 1, budget: float | None = None) -> Any:
    """The prediction of the library."""
    return expected(model, groups, budget, rows)["prediction"]


# predict


@pytest.mark.parametrize("budget", [None, 5.0, 0.0])
def test_predict_gives_the_models_own_answer(client: Client, model: Model, budget: float | None) -> None:
    answer = client.predict(VALUES, budget=budget, model="brake")
    assert timeless(json.loads(json.dumps(asdict(answer)))) == expected(model, VALUES, budget)
    assert answer.reason == ("budget" if budget is not None else "complete")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.bool_, np.float16])
@pytest.mark.parametrize(
    "layout", [np.asarray, np.asfortranarray, np.ndarray.tolist, list, lambda a: a.astype(a.dtype.newbyteorder())]
)
def test_arrays_of_every_type_and_layout_give_the_prediction_for_their_numbers(
    client: Client, model: Model, layout: Callable[[Any], Any], dtype: Any
) -> None:
    groups = arrays(300, dtype)
    answer = client.predict({name: layout(each) for name, each in groups.items()}, model="brake")
    assert answer.prediction == pytest.approx(local(model, groups, 300), rel=1e-12)


def test_strings_and_none_are_sent_as_they_are() -> None:
    """In lists and in arrays of objects or text, in predictions and runs."""
    person: list[Any] = [[30.0, "male"], [None, "x"], [99, None]]
    groups = {"person": person, "home": np.array([["Köln"], ["Bonn"], [""]])}
    literal = expected(columns_model(), groups, rows=3, policy="arrived")
    wanted = (pytest.approx(literal["prediction"], rel=1e-12), ("age", "sex", "town"), ("age",))
    with run_service([columns_model()], Settings(port=0)) as service, Client(service.url) as client:
        for values in (person, np.array(person, dtype=object), [np.array(row, dtype=object) for row in person]):
            answer = client.predict(groups | {"person": values}, policy="arrived")
            assert (answer.prediction, answer.imputed, answer.clamped) == wanted
        with pytest.raises(ProblemError, match=r"column 'port' has 1\.0; expected text") as refused:
            client.predict({"ticket": [1.0, True, 1, 3]})
        assert refused.value.status == 422
        row = {"person": [99.0, "male"], "ticket": [1.0, True, "Rome", 3], "speed": [1.0], "home": [None]}
        run = client.run({name: itemgetter(name) for name in row}, row, deadline_ms=LONG_MS)
        assert (run.imputed, run.clamped, run.complete) == (("town",), ("age",), True)


def test_rows_of_a_session_are_answered_and_ranked_on_request(client: Client, model: Model) -> None:
    groups = arrays(30)
    with client.session(model="brake", rows=30) as session:
        session.add_many(groups)
        with pytest.raises(ValuesError, match="expected 30"):
            session.add("hog", np.zeros((4, 2)))
        answer = session.predict(ranking=True)
    assert answer.prediction == pytest.approx(local(model, groups, 30), rel=1e-12)
    assert answer.ranking == np.argsort(-np.array(answer.prediction), kind="stable").tolist()


@pytest.mark.parametrize("how", ["predict", "run"])
def test_many_threads_share_one_client(client: Client, model: Model, how: str) -> None:
    def predicted(groups: dict[str, Any]) -> Any:
        if how == "run":
            return client.run(EXTRACTORS, groups, LONG_MS, model="brake").prediction
        return client.predict(groups, model="brake").prediction

    requests = [{**VALUES, "speed": [float(number)]} for number in range(80)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(predicted, requests))
    assert found == pytest.approx([local(model, groups) for groups in requests], rel=1e-12)


def test_a_deadline_of_0_returns_the_base_rate_for_every_row(client: Client) -> None:
    answer = client.predict(arrays(3), deadline_ms=0, model="brake", ranking=True)
    assert (answer.prediction, answer.ranking, answer.reason) == ([BASE_RATE] * 3, [0, 1, 2], "deadline")
    assert (answer.prefix, answer.complete, answer.note) == (0, False, None)


CONTAINERS: dict[str, tuple[Any, list[float | None]]] = {
    "a frame": (pd.DataFrame({"h1": [2.0], "h0": [1.0]}), [1.0, 2.0]),
    "a record": (np.array([(2.0, 1.0)], dtype=[("h1", float), ("h0", float)]), [1.0, 2.0]),
    "a row of a frame": (pd.Series({"h1": 2.0, "h0": 1.0}), [1.0, 2.0]),
    "a masked array": (np.ma.masked_array([1.0, 1e21], [False, True]), [1.0, None]),
    "pandas.NA": ([1.0, pd.NA], [1.0, None]),
    "decimals": ([Decimal("1.5"), Fraction(1, 4)], [1.5, 0.25]),
    "nan in a list": ([np.nan, -1.0], [None, -1.0]),
    "nan in an array": (np.array([np.nan, -1.0]), [None, -1.0]),
    "None in an array": (np.array([None, -1.0], dtype=object), [None, -1.0]),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_keep_their_meaning_on_every_way_to_the_server(client: Client, name: str) -> None:
    values, plain = CONTAINERS[name]
    groups = {**VALUES, "hog": values}
    answers = [
        client.predict({**VALUES, "hog": plain}, model="brake"),
        client.predict(groups, model="brake"),
        client.predict(groups, model="brake", deadline_ms=LONG_MS),
        client.run(but(hog=lambda _: values), VALUES, LONG_MS, model="brake"),
    ]
    with client.session("brake") as session:
        session.add_many(groups)
        answers.append(session.predict())
    imputed = tuple(f"h{i}" for i, value in enumerate(plain) if value is None)
    assert {(each.prediction, each.imputed) for each in answers} == {(answers[0].prediction, imputed)}


@pytest.mark.parametrize(
    ("groups", "options", "error", "message"),
    [
        ({"hog": pd.DataFrame({"h0": [1.0], "h2": [2.0]})}, {}, ValuesError, "'hog' have the columns 'h0', 'h2'"),
        ({"hog": ["fast", b"slow"]}, {}, ValuesError, "values of group 'hog' are not all numbers or text"),
        ({"hog": np.array([1j, 2j])}, {}, ValuesError, "values of group 'hog' are not all numbers or text"),
        ({"hog": np.zeros((2, 2, 2))}, {}, ValuesError, "values of group 'hog' are 2 x 2 x 2"),
        ({"hog": "3.0"}, {}, ValuesError, "values of group 'hog' are a single value, '3.0'; expected"),
        ({"hog": {"h0": 1}}, {}, ValuesError, "values of group 'hog' are a single value, {'h0': 1}; expected"),
        ({"speed": [[1.0], [2.0]], "hog": np.zeros((3, 2))}, {}, ValuesError, "'hog' have 3 rows; expected 2"),
        ({"speed": [[1.0], [2.0]], "hog": [[1.0, 1.0]]}, {}, ValuesError, "'hog' have 1 row; expected 2"),
        ({"hog": [10**400, 1]}, {}, ValuesError, "values of group 'hog'"),
        ({"hog": Unreadable()}, {}, ValuesError, "values of group 'hog' are not an array"),
        ({}, {"deadline_ms": -1}, ValuesError, "^deadline_ms is -1; expected a finite number of milliseconds"),
        ({}, {"deadline_ms": np.inf}, ValuesError, "^deadline_ms is inf; expected a finite number of milliseconds"),
        ({}, {"deadline_ms": np.nan}, ValuesError, "^deadline_ms is nan; expected a finite number of milliseconds"),
        ({}, {"deadline_ms": "5"}, ValuesError, "^deadline_ms is '5'; expected a finite number of milliseconds"),
        ({}, {"deadline_ms": True}, ValuesError, "^deadline_ms is True; expected a finite number of milliseconds"),
        ({}, {"budget": -1}, ValuesError, "^budget"),
        ({}, {"budget": "5"}, ValuesError, "^budget"),
        ({}, {"rows": 0}, ValuesError, "^rows is 0; expected a whole number, 1 or more$"),
        ({}, {"rows": 1.5}, ValuesError, r"^rows is 1\.5; expected a whole number, 1 or more$"),
        ({}, {"policy": "worst"}, ValuesError, "^policy is 'worst'; expected one of arrived, best, prefix$"),
        ({}, {"overload": "panic"}, ValuesError, "^overload is 'panic'; expected"),
        ({}, {"deadline": 5}, TypeError, "^there is no option 'deadline'; did you mean 'deadline_ms'"),
        (VALUES, {"model": "brakes"}, ProblemError, r"did you mean 'brake'.* \(404\)"),
        ({"hog": [1.0, 2.0, 3.0]}, {}, ProblemError, r"'hog' .*\(422\)"),
        (VALUES, {"model": None}, ProblemError, "several models"),
    ],
)
def test_an_invalid_call_is_an_error_that_says_why_and_breaks_nothing(
    client: Client, groups: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        client.predict(groups, **{"model": "brake"} | options)
    assert client.predict(VALUES, model="brake").complete


def test_a_problem_has_its_status_title_and_field(client: Client) -> None:
    for groups, model, problem in (
        (VALUES, "brakes", (404, "Unknown model", "model")),
        ({"hog": [1.0, 2.0, 3.0]}, "brake", (422, "Invalid value", "groups.hog")),
    ):
        with pytest.raises(ProblemError) as raised:
            client.predict(groups, model=model)
        assert (raised.value.status, raised.value.title, raised.value.field) == problem


# run


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_run_computes_every_group_and_answers_as_soon_as_it_can(client: Client, model: Model, worker: Any) -> None:
    answer = client.run(EXTRACTORS, VALUES, LONG_MS, model="brake", worker=worker)
    assert answer.prediction == pytest.approx(local(model, VALUES), rel=1e-12)
    assert (answer.reason, answer.complete, answer.note) == ("complete", True, None)


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_an_example_is_computed_in_advance_as_by_a_runner(
    client: Client, model: Model, worker: Worker, tmp_path: Path
) -> None:
    x = {**VALUES, "folder": tmp_path}
    extractors = {name: Noting(name) for name in VALUES}

    def counts() -> dict[str, int]:
        found = Counter(path.name.partition("-")[0] for path in tmp_path.iterdir())
        for path in tmp_path.iterdir():
            path.unlink()
        return dict(found)

    with Runner(model, extractors, worker, example=x):
        wanted = counts()
    client.warm_up(extractors, model="brake", worker=worker, example=x)
    assert counts() == wanted
    assert client.run(extractors, x, LONG_MS, model="brake", worker=worker).complete
    client.warm_up(extractors, model="brake", worker=worker)
    assert counts() == dict.fromkeys(VALUES, 1), "without an example nothing is computed in advance"


def test_run_answers_at_the_deadline_while_the_extractor_still_works(client: Client, stuck: Stuck) -> None:
    extractors = but(lab=stuck)
    client.warm_up(extractors, model="brake")
    answer = client.run(extractors, VALUES, SHORT_MS, model="brake")
    assert (stuck.entered.is_set(), stuck.free.is_set()) == (True, False)
    assert (answer.groups, answer.prefix, answer.missing) == (("speed", "hog"), 2, ("lab",))
    assert (answer.reason, answer.complete) == ("deadline", False)
    assert client.lateness.count == 1


def test_run_computes_no_more_than_the_budget_pays_for(client: Client, stuck: Stuck) -> None:
    answer = client.run(but(lab=stuck), VALUES, LONG_MS, budget=5, model="brake")
    assert (answer.groups, answer.reason, answer.budget) == (("speed", "hog"), "budget", 5)
    assert not stuck.entered.is_set()


def test_run_computes_no_group_after_the_best_prefix(client: Client) -> None:
    computed: list[str] = []

    def extractor(name: str) -> Callable[[Any], Any]:
        return lambda x: computed.append(name) or x[name]  # type: ignore[func-returns-value]

    answer = client.run({name: extractor(name) for name in VALUES}, VALUES, LONG_MS, policy="best", model="picky")
    assert (answer.prefix, answer.policy, answer.reason, answer.complete) == (1, "best", "complete", True)
    assert set(computed) == set(answer.groups)
    assert client.model("picky").order(policy="best") == answer.groups
    assert client.predict(VALUES, policy="best", model="brake").note is not None
    with pytest.raises(ValuesError, match="expected 'prefix' or 'best'"):
        client.run(EXTRACTORS, VALUES, LONG_MS, policy="arrived", model="picky")


def test_run_with_nothing_to_compute_or_no_time_returns_the_base_rate(client: Client) -> None:
    broke = client.run(EXTRACTORS, VALUES, LONG_MS, budget=0.5, model="brake")
    assert (broke.prediction, broke.reason, broke.complete, broke.missing) == (BASE_RATE, "budget", True, ())
    late = client.run(EXTRACTORS, VALUES, 0, model="brake")
    assert (late.prediction, late.reason, late.complete) == (BASE_RATE, "deadline", False)


@pytest.mark.parametrize(
    ("failing", "why"),
    [
        (broken, "RuntimeError: no light on the sensor"),
        (lambda _: np.zeros(7), "values of group 'hog' are"),
        (lambda _: ["fast", 1.0], "column 'h0' has 'fast'; expected a number"),
        (lambda _: Unreadable(), "are not an array (RuntimeError: not without a gradient)"),
        (awaiting, "its extractor is async and returned a coroutine"),
    ],
)
@pytest.mark.parametrize("name", ["learned", "brake"])
def test_run_answers_without_a_group_that_fails(
    client: Client, name: str, failing: Any, why: str, stuck: Stuck
) -> None:
    """From the other groups, or without moments at once, from the prefix."""
    extractors = but(hog=failing) if name == "learned" else but(hog=failing, lab=stuck)
    answer = client.run(extractors, VALUES, LONG_MS, model=name)
    used = ("arrived", {"speed", "lab"}) if name == "learned" else ("prefix", {"speed"})
    assert (answer.policy, {*answer.groups}, answer.reason) == (*used, "end")
    assert re.match(f"group 'hog' failed: .*{re.escape(why)}", str(answer.note))


@pytest.mark.parametrize("name", ["brake", "learned"])
def test_a_run_computes_the_groups_that_program_and_model_both_know(client: Client, name: str) -> None:
    """Also of a model whose policy "prefix" answers alone: it stops before the group without an extractor."""
    some = {name: itemgetter(name) for name in ("speed", "hog")}
    answer = client.run(some, VALUES, LONG_MS, model=name)
    assert set(answer.groups) == {"speed", "hog"}
    assert "group 'lab' is left out: it has no extractor" in str(answer.note)
    more = client.run({**EXTRACTORS, "labs": broken}, VALUES, LONG_MS, model=name)
    assert (more.complete, more.reason) == (True, "complete")
    assert re.search("no group 'labs'.*did you mean 'lab'", str(more.note))
    assert client.run(EXTRACTORS, VALUES, LONG_MS, model=name).note is None
    client.warm_up({**some, "labs": itemgetter("lab")}, model=name)


@pytest.mark.parametrize(
    ("extractors", "worker", "message"),
    [
        ({"labs": broken}, "thread", "no group 'labs'.*did you mean 'lab'"),
        ({}, "thread", "no extractor for 'speed'"),
        ({**EXTRACTORS, "lab": 5}, "thread", "'lab' is int; expected a callable"),
        (but(lab=lambda x: x["lab"]), "process", "is not picklable for a process"),
    ],
)
def test_extractors_that_do_not_fit_are_refused(client: Client, extractors: Any, worker: Worker, message: str) -> None:
    with pytest.raises(ExtractorError, match=message):
        client.run(extractors, VALUES, LONG_MS, model="brake", worker=worker)


def test_workers_are_cached_between_runs_for_at_most_four_sets(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Workers] = []

    def making(*given: Any, **options: Any) -> Workers:
        made.append(Workers(*given, **options))
        return made[-1]

    monkeypatch.setattr(runs, "Workers", making)
    extractors = but(speed=itemgetter("speed"))
    for _ in range(5):
        client.run(extractors, VALUES, LONG_MS, model="brake")
    assert len(made) == 1
    for _ in range(8):
        client.run(but(speed=lambda x: x["speed"]), VALUES, LONG_MS, model="brake")
    assert len(made) == 9
    until(lambda: sum(not each._closed for each in made) == 4, "the other sets are closed")


# sessions, models, plans


def test_a_session_accepts_groups_over_time_and_answers_in_between(client: Client, model: Model) -> None:
    with client.session(model="brake") as session:
        assert (session.model, session.version) == ("brake", model.version)
        assert session.expires_in_s is not None
        assert session.add("speed", [2.0]).prefix == 1
        progress = session.add_many({"hog": np.array([1.0, -1.0]), "speed": [2.0]})
        assert (progress.prefix, progress.steps, progress.replaced) == (2, 3, ("speed",))
        waited = session.predict(deadline_ms=20)
        assert (waited.reason, waited.groups) == ("deadline", ("speed", "hog"))
        session.add("lab", np.array([0.5], dtype=np.float32))
        assert session.predict(deadline_ms=LONG_MS).prediction == pytest.approx(local(model, VALUES), rel=1e-12)
        assert session.id is not None
    assert session.id is None
    session.close()
    with pytest.raises(ClosedError):
        session.predict()


def test_a_session_that_has_ended_is_a_problem_and_closes_quietly(client: Client) -> None:
    with client.session(model="brake") as session:
        client._portal.call(client._async._transport.request, "DELETE", f"/sessions/{session.id}")
        with pytest.raises(ProblemError, match=r"\(410\)"):
            session.add("speed", [1.0])
    with pytest.raises(ProblemError, match=r"\(404\)"):
        client.session(model="nothing").open()


async def test_a_session_in_an_event_loop(server: Running, model: Model) -> None:
    async with AsyncClient(server.url) as client, client.session(model="brake") as session:
        await asyncio.gather(*(session.add(name, values) for name, values in VALUES.items()))
        answer = await session.predict(budget=5)
        assert answer.prediction == pytest.approx(local(model, VALUES, budget=5), rel=1e-12)


def test_models_are_listed_and_described(client: Client, service: Running) -> None:
    assert {card.name: card.steps for card in client.models()} == {"brake": 3, "learned": 3, "picky": 3}
    described = client.model("brake")
    assert described.order() == ("speed", "hog", "lab")
    assert described.order(5) == ("speed", "hog")
    assert described.groups[1].features == ("h0", "h1")
    with Client(service.url) as only:
        assert only.model().name == "brake"
        assert only.plan(have=["speed"]).steps[0].group == "hog"
    with pytest.raises(ProblemError, match="several models"):
        client.model()


# both clients


@pytest.mark.parametrize(("one", "other"), [(Client, AsyncClient), (Session, AsyncSession)])
def test_both_clients_have_the_same_methods_and_parameters(one: type, other: type) -> None:
    def parameters(member: Any) -> Any:
        return [*inspect.signature(member).parameters.items()] if callable(member) else None

    def members(cls: type) -> dict[str, Any]:
        return {name: parameters(each) for name, each in inspect.getmembers(cls) if not name.startswith("_")}

    assert members(one) == members(other)


def test_every_call_of_a_closed_client_raises_closed_error(server: Running) -> None:
    client = Client(server.url)
    session = client.session(model="brake")
    client.predict(VALUES, model="brake")
    for _ in range(2):
        client.close()
    for call in (
        lambda: client.predict(VALUES),
        lambda: client.run(EXTRACTORS, VALUES, 5),
        client.models,
        session.open,
    ):
        with pytest.raises(ClosedError, match="closed"):
            call()


def test_an_async_client_belongs_to_its_event_loop(server: Running) -> None:
    client = AsyncClient(server.url)

    async def use() -> None:
        await client.predict(VALUES, model="brake")

    async def end() -> None:
        with pytest.raises(ClosedError, match="another event loop"):
            await use()

    with asyncio.Runner() as first:
        first.run(use())
        asyncio.run(end())
        first.run(client.close())
        with pytest.raises(ClosedError, match="closed"):
            first.run(use())


def test_no_thread_and_no_process_outlives_a_client(server: Running) -> None:
    server.get("/models/brake")  # starts a thread of the server
    before = set(threading.enumerate())
    with Client(server.url) as client:
        client.run(EXTRACTORS, VALUES, LONG_MS, model="brake")
        client.run(EXTRACTORS, VALUES, LONG_MS, model="brake", worker="process")
        assert len(multiprocessing.active_children()) >= 2
    assert set(threading.enumerate()) <= before
    assert not multiprocessing.active_children()


def test_a_client_that_is_dropped_ends_its_thread(server: Running) -> None:
    client = Client(server.url)
    client.predict(VALUES, model="brake")
    thread = client._portal._thread
    del client
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("where", "name", "error"),
    [
        (asyncio.events, "new_event_loop", OSError(24, "Too many open files")),
        (asyncio.Runner, "run", RuntimeError("Runner.run() cannot be called from a running event loop")),  # gevent
        (threading.Thread, "start", RuntimeError("can't start new thread")),
    ],
)
def test_a_client_whose_thread_does_not_start_is_an_error(
    where: Any, name: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    before = set(threading.enumerate())
    with monkeypatch.context() as broken:
        broken.setattr(where, name, fail)
        with pytest.raises(ClientError, match="the client's event loop does not start in its thread: ") as raised:
            Client("http://127.0.0.1:9")
    assert str(error) in str(raised.value)
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()


def test_a_call_that_is_under_way_when_the_client_closes_ends(server: Running, stuck: Stuck) -> None:
    client, extractors = Client(server.url), but(lab=stuck)
    client.warm_up(extractors, model="brake")
    with ThreadPoolExecutor() as threads:
        running = threads.submit(client.run, extractors, VALUES, LONG_MS, model="brake")
        stuck.entered.wait(60)
        client.close()
        error = running.exception(60)
    assert isinstance(error, ClosedError) or "closed" in str(running.result().note)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_client_raises_closed_error_in_a_forked_child_and_a_program_that_does_not_close_it_ends_quietly(
    server: Running,
) -> None:
    code = f"""
import os, sys
from anytime_service.client import Client, ClosedError
client = Client({server.url!r})
client.models()
child = os.fork()
if not child:
    try:
        client.models()
    except ClosedError as error:
        client.close()
        os._exit(0 if "fork" in str(error) else 4)
    os._exit(5)
print(client.run({{"speed": lambda x: [1.0], "hog": lambda x: [1.0, 1.0], "lab": lambda x: [1.0]}}, 0, 5000,
                 model="brake").complete)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = _python(code)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "True", "")


def test_the_client_needs_nothing_of_the_server_and_names_in_one_line_what_it_lacks() -> None:
    code = """
import sys
from anytime.errors import AnytimeError
refused = set()
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
for missing in ("httpx", "websockets", "msgspec"):
    refused.add(missing)
    try:
        from anytime_service.client import Client
    except AnytimeError as error:
        assert isinstance(error, ImportError)
        print(error)
    refused.clear()
    needed = ("anytime_service", "httpx", "websockets", "msgspec")
    for name in [name for name in sys.modules if name.startswith(needed)]:
        del sys.modules[name]
refused |= {"fastapi", "uvicorn", "starlette", "pydantic_settings", "prometheus_client"}
from anytime_service.client import AsyncClient, Client, ModelCard, Session
Client("http://127.0.0.1:1").close()
"""
    done = _python(code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"the client needs {missing}; pip install 'anytime-linear[client]'"
        for missing in ("httpx", "websockets", "msgspec")
    ]


ADDRESSES = [
    "",
    "localhost:8000",
    "ftp://here",
    "http://",
    "http://here:port",
    "http://here/?a=b",
    "unix:",
    "http://[::1",
]


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        *((url, {}, "expected one like http://") for url in ADDRESSES),
        ("http://127.0.0.1:1", {"api_key": "two words\r\n"}, "API key"),
        ("http://127.0.0.1:1", {"timeout_s": 0}, "timeout_s"),
        ("http://127.0.0.1:1", {"ssl": create_default_context()}, "the ssl context does not apply"),
        ("https://localhost", {"ssl": create_default_context(), "transport": print}, "omit ssl, or transport"),
    ],
)
def test_an_invalid_address_or_option_is_rejected_at_once(url: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ClientError, match=message):
        Client(url, **options)


def test_an_unreachable_server_is_one_clear_error() -> None:
    with Client("http://127.0.0.1:9", api_key="s3cret") as client:  # discard: nobody listens
        assert "s3cret" not in repr(client) + repr(vars(client))
        for call in (lambda: client.predict(VALUES), lambda: client.run(EXTRACTORS, VALUES, 5), client.models):
            assert_refused(call, "cannot connect to http://127.0.0.1:9", error=ConnectionLostError)
    assert issubclass(ConnectionLostError, ConnectionError)
    errors = [getattr(package, name) for name in package.__all__ if name.endswith("Error")]
    assert all(issubclass(error, AnytimeError) for error in errors)


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False
    )


def test_run_answers_at_once_if_no_group_can_be_computed(client: Client) -> None:
    assert client.run(EXTRACTORS, VALUES, LONG_MS, model="brake").complete
    (pool,) = client._async._workers._pools
    pool.schedules[1].failed("speed", "it hung", time.perf_counter() + 60.0, hung=True)
    answer = client.run(EXTRACTORS, VALUES, 3_600_000.0, model="brake")
    assert (answer.prefix, answer.reason) == (0, "deadline")
    assert "group 'speed' is left out: it hung" in str(answer.note)
