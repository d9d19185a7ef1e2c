"""Dates: every way into a model gives one prediction, from the table to the wire."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from anytime import AnytimeRegressor, LoadedModel, load
from anytime.types import Float
from anytime_service.api.console import pages
from anytime_service.client import Client
from anytime_service.schemas.codecs import MSGPACK
from anytime_service.settings import Settings
from service.serving import Running, packed
from system import program

ROWS = 400
SETTINGS = Settings(port=0, max_rows=ROWS)
RNG = np.random.default_rng(0)
SECONDS = np.round(RNG.uniform(1.5e9, 1.7e9, ROWS), 3)
SECONDS[::9] = np.nan
MOMENTS = [None if math.isnan(s) else datetime(1970, 1, 1) + timedelta(milliseconds=round(1000 * s)) for s in SECONDS]
X = pd.DataFrame({"when": pd.Series(MOMENTS, dtype="datetime64[ns]"), "a": RNG.normal(size=ROWS)})
HOURS, MONTHS = (getattr(X["when"].dt, part).fillna(0) for part in ("hour", "month"))
Y = np.asarray((HOURS > 8) + 2.0 * (MONTHS == 7) + X["a"] + 0.1 * RNG.normal(size=ROWS))
GROUPS = {
    "groups": [{"name": "visit", "features": ["when"], "cost": 1}, {"name": "rest", "features": ["a"], "cost": 2}]
}
OSLO = timezone(timedelta(hours=1))


def assert_near(found: Any, predictions: Float) -> None:
    np.testing.assert_allclose(np.ravel(found), predictions, rtol=1e-9, atol=1e-9)


@cache
def fitted() -> AnytimeRegressor:
    return AnytimeRegressor(GROUPS, alpha=0.001).fit(X, Y)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = tmp_path_factory.mktemp("dates") / "csv.safetensors"
    fitted().save(path, name="csv")
    return load(path)


@pytest.fixture(scope="module")
def predictions() -> Float:
    found: Float = fitted().predict(X)
    return found


def column(of: Callable[[datetime], Any]) -> list[list[Any]]:
    return [[None if moment is None else of(moment)] for moment in MOMENTS]


FORMS: dict[str, Any] = {
    "seconds": [[None if math.isnan(s) else s] for s in SECONDS.tolist()],
    "ISO text": column(datetime.isoformat),
    "ISO text with Z": column(lambda moment: moment.isoformat(" ") + "Z"),
    "ISO text of a zone": column(lambda moment: moment.replace(tzinfo=UTC).astimezone(OSLO).isoformat()),
    "datetimes": column(lambda moment: moment),
    "datetimes of a zone": column(lambda moment: moment.replace(tzinfo=UTC).astimezone(OSLO)),
    "dates of NumPy": X[["when"]].to_numpy(),
    "scalars of NumPy": column(np.datetime64),
    "nanoseconds of NumPy": column(lambda moment: np.datetime64(moment, "ns")),
    "Timestamps": column(pd.Timestamp),
    "a frame": X[["when"]],
    "a frame of Arrow": pa.table({"when": X["when"]}),
    "a frame of a zone": pd.DataFrame({"when": X["when"].dt.tz_localize("UTC").dt.tz_convert(OSLO)}),
}
REST = X[["a"]].to_numpy()


@pytest.mark.parametrize("name", FORMS)
def test_values_in_every_form_are_one_date(name: str, model: LoadedModel, predictions: Float, service: Running) -> None:
    groups = {"visit": FORMS[name], "rest": REST}
    opened = model.open(ROWS)
    for group, values in groups.items():
        opened.add(group, values)
    assert_near(opened.answer().prediction, predictions)
    with Client(service.url) as client:
        assert_near(client.predict(groups).prediction, predictions)


def test_the_server_reads_seconds_iso_text_and_packed_seconds(service: Running, predictions: Float) -> None:
    for name in ("seconds", "ISO text", "ISO text of a zone"):
        reply = service.post({"groups": {"visit": FORMS[name], "rest": REST.tolist()}})
        assert_near(reply.json()["prediction"], predictions)
    with service.stream(MSGPACK) as stream:
        answer = stream.ask(1, {"visit": packed(SECONDS[:, np.newaxis]), "rest": packed(REST)}, rows=ROWS)
        assert_near(answer["prediction"], predictions)


def test_the_catalogue_and_the_console_know_dates(service: Running) -> None:
    (when, _) = service.get("/models/csv").json()["columns"]
    assert (when["name"], when["type"], when["levels"]) == ("when", "date", None)
    value = service.get("/models/csv/sample", seed=1).json()["groups"]["visit"][0]
    assert datetime.fromisoformat(value).tzinfo is not None or len(value) == 10
    assert service.post({"groups": {"visit": [value]}}).status_code == 200
    shape = service.get("/models/csv/shape", column="when").json()
    assert [level["level"] for level in shape["levels"]][:12] == [f"month={month}" for month in range(1, 13)]


@pytest.mark.parametrize("value", ["2024-13-01", "soon", "", 1.7e12, True, "20240101", "0000-01-01"])
def test_another_value_is_one_error_that_names_the_column(value: Any, service: Running) -> None:
    reply = service.post({"groups": {"visit": [value]}})
    assert (reply.status_code, "column 'when' has" in reply.json()["detail"]) == (422, True)
    assert "expected seconds since 1970 UTC or an ISO date, of the years 1 to 9999, or null" in reply.json()["detail"]


def test_a_missing_date_is_imputed(model: LoadedModel) -> None:
    for value in (None, np.nan, np.datetime64("NaT"), pd.NaT):
        opened = model.open()
        opened.add("visit", [value])
        assert opened.answer().imputed == ("when",)


def test_a_date_beyond_the_training_rows_is_clamped_as_by_the_library(service: Running, model: LoadedModel) -> None:
    low, high = service.get("/models/csv").json()["columns"][0]["range"]
    assert (low, high) == (np.nanmin(SECONDS), np.nanmax(SECONDS))
    later = high + 4 * 365 * 86_400.0 + 86_400.0
    answers = [service.post({"groups": {"visit": [seconds]}}).json() for seconds in (high, later)]
    assert [answer["clamped"] for answer in answers] == [[], ["when"]]
    for seconds, answer in zip((high, later), answers, strict=True):
        opened = model.open()
        opened.add("visit", [seconds])
        assert answer["prediction"] == pytest.approx(opened.answer().prediction, rel=1e-12)


def test_the_console_says_which_day_a_later_date_counts_as(service: Running) -> None:
    column = service.get("/models/csv").json()["columns"][0]
    script = f"""
    import {{ omissions }} from {str(pages.STATIC / "words.js")!r};
    process.env.TZ = "America/New_York";
    const model = {{ columns: [{json.dumps(column)}], groups: [{{ name: "visit", features: ["when"] }}] }};
    const answer = {{ groups: ["visit"], missing: [], imputed: [], clamped: ["when"] }};
    for (const sent of ["2030-01-02T03:04:05Z", "2030-01-02 23:04", 0])
      console.log(omissions(model, answer, new Map([["visit", [sent]]])).join());
    """
    done = subprocess.run(
        [program("node"), "--input-type=module", "-e", script], capture_output=True, text=True, check=True
    )
    first, last = (str(np.datetime64(int(end), "s"))[:10] for end in column["range"])
    assert done.stdout.splitlines() == [
        f"outside the model's range: when (2030-01-02 counts as {last}, except for its month, weekday and hour)",
        f"outside the model's range: when (2030-01-02 counts as {last}, except for its month, weekday and hour)",
        f"outside the model's range: when (1970-01-01 counts as {first}, except for its month, weekday and hour)",
    ]
