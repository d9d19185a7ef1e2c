"""The tables that both commits learn from: the clinic, six made from a seed, and a few rows of the sets in DATA."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[2]

ROWS = 200
"""Rows of a made table: half to train on, then a quarter to stop or calibrate with, and a quarter to predict."""

SETS = {
    "heart_cleveland": ("disease", None, "classes"),
    "boston_housing": ("MEDV", None, "numbers"),
    "mq2008": ("relevance", "qid", "numbers"),
    "telco": ("Churn", None, "classes"),
}
"""The target, the query and the kind of target of each set of DATA; a set that is not there is left out."""


@dataclass(frozen=True)
class Task:
    """One table, which is a folder with `train`, `held` and `new` rows and `groups.json`, and what its columns mean."""

    name: str
    target: list[str]
    kind: str
    """`numbers`, `classes` or `counts`."""
    suffix: str
    group: str
    """A group to place first; the group `without` is left out, and the column `drop`."""
    without: str
    drop: str
    roles: dict[str, str] = field(default_factory=dict)
    """Columns by role, `query` or `weights`."""
    of_data: bool = False
    """Whether it is a set of DATA."""
    classes: int = 0
    """The number of values of the target."""

    @property
    def words(self) -> list[str]:
        """Return the options of the command line that every call on this table has."""
        roles = (word for role, column in self.roles.items() for word in (f"--{role}", column))
        return [*(word for column in self.target for word in ("--target", column)), *roles]

    def read(self, folder: Path, part: str) -> pd.DataFrame:
        path = folder / self.name / (part + self.suffix)
        return pd.read_parquet(path) if self.suffix == ".parquet" else pd.read_csv(path)


def write(folder: Path, data: Path) -> None:
    """Write all tables and `tasks.json` to a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    makers: Sequence[Callable[[np.random.Generator], Made]] = (text, gaps, dates, weights, queries, classes)
    made = [clinic(), *(make(np.random.default_rng([7, place])) for place, make in enumerate(makers))]
    made += [rows_of(name, data / name) for name in SETS if (data / name / "data.parquet").is_file()]
    for each in made:
        each.write(folder / each.task.name)
    tasks = [asdict(each.task) | {"classes": each.frame[each.task.target[0]].nunique()} for each in made]
    (folder / "tasks.json").write_text(json.dumps(tasks, indent=1), encoding="utf-8")


def tasks(folder: Path) -> list[Task]:
    """Return the tables of a folder."""
    return [Task(**each) for each in json.loads((folder / "tasks.json").read_text(encoding="utf-8"))]


@dataclass(frozen=True)
class Made:
    """A table with its groups, before it is written."""

    task: Task
    frame: pd.DataFrame
    groups: dict[str, Any]

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        ends = np.cumsum([len(self.frame) // 2, len(self.frame) // 4])
        for part, rows in zip(("train", "held", "new"), np.split(np.arange(len(self.frame)), ends), strict=True):
            path, chosen = folder / f"{part}{self.task.suffix}", self.frame.iloc[rows]
            if self.task.suffix == ".parquet":
                chosen.to_parquet(path, index=False)
            else:
                chosen.to_csv(path, index=False)
        (folder / "groups.json").write_text(json.dumps(self.groups), encoding="utf-8")


def grouped(*groups: tuple[str, str, Any], unit: str = "ms", **more: Any) -> dict[str, Any]:
    """Return the contents of a groups file: (name, columns, cost), and for each further key its value."""
    listed = [{"name": name, "features": columns.split(), "cost": cost} for name, columns, cost in groups]
    requires = more.pop("requires", {})
    found = [each | ({"requires": requires[each["name"]]} if each["name"] in requires else {}) for each in listed]
    return {"cost_unit": unit, "groups": found, **more}


def clinic() -> Made:
    """The table of the guides; its groups file is YAML, and JSON here."""
    rows = [pd.read_csv(ROOT / "models/clinic" / f"{part}.csv") for part in ("train", "test")]
    groups = grouped(
        ("interview", "age sex", 1),
        ("scales", "bmi", 2),
        ("cuff", "bp", 3),
        ("blood-draw", "", 10),
        ("cholesterol", "s1 s2 s3 s4", 12),
        ("triglycerides", "s5", 6),
        ("glucose", "s6", 4),
        unit="dollars",
        requires={name: ["blood-draw"] for name in ("cholesterol", "triglycerides", "glucose")},
    )
    task = Task("clinic", ["progression"], "numbers", ".csv", "cuff", "glucose", "s3")
    return Made(task, pd.concat(rows, ignore_index=True), groups)


def text(rng: np.random.Generator) -> Made:
    """Levels of all frequencies, codes as whole numbers, booleans, and a target of two words."""
    port = rng.choice(["Oslo", "Rome", "Århus", "NA", "a, b"], ROWS, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    town = rng.choice([f"town {i}" for i in range(15)], ROWS, p=np.arange(15, 0, -1) / 120)
    cabin, fare = rng.choice([3, 17, 99], ROWS), rng.exponential(20, ROWS).round(2)
    paid = rng.random(ROWS) < 0.6
    score = (port == "Rome") * 1.5 + paid - fare / 30 + (cabin == 17) + rng.normal(size=ROWS)
    frame = pd.DataFrame({"port": port, "town": town, "cabin": cabin, "fare": fare, "paid": paid})
    frame["lived"] = np.where(score > np.median(score), "yes", "no")
    groups = grouped(
        ("ticket", "fare paid", {"fixed": 2, "per_row": 1}),
        ("berth", "port cabin", 2),
        ("home", "town", 4),
        bases={"cabin": "categories"},
    )
    return Made(Task("text", ["lived"], "classes", ".csv", "home", "ticket", "town"), frame, groups)


def gaps(rng: np.random.Generator) -> Made:
    """Missing values, also of the target; a constant, a copy and a sum of other columns; a group that needs another."""
    columns = pd.DataFrame(rng.normal(size=(ROWS, 5)), columns=list("abcde"))
    amount = np.exp(columns["a"] - 0.5 * columns["b"] + 0.4 * rng.normal(size=ROWS))
    columns["k"], columns["copy"], columns["sum"] = 1.0, columns["a"], columns["b"] + columns["c"]
    for column, share in (("a", 0.1), ("b", 0.3), ("c", 0.005), ("e", 0.95)):
        columns.loc[rng.random(ROWS) < share, column] = np.nan
    amount[rng.random(ROWS) < 0.04] = np.nan
    groups = grouped(
        ("one", "a", 1),
        ("two", "b k", 2),
        ("three", "c d", 0),
        ("four", "e copy", 1.5),
        ("five", "sum", 2),
        requires={"five": ["two"], "four": ["one"]},
    )
    return Made(Task("gaps", ["amount"], "numbers", ".csv", "two", "four", "d"), columns.assign(amount=amount), groups)


def dates(rng: np.random.Generator) -> Made:
    """Days and times, an hour that is a cycle, heavy tails, and two responses."""
    day = pd.Timestamp("2021-03-01") + pd.to_timedelta(rng.integers(0, 900, ROWS), unit="D")
    moment = day + pd.to_timedelta(rng.integers(0, 86_400, ROWS), unit="s")
    hour, tail, x = rng.integers(0, 24, ROWS), rng.standard_t(1.5, ROWS), rng.normal(size=ROWS)
    trend = (day - day.min()).days.to_numpy() / 900
    frame = pd.DataFrame({"day": day, "moment": moment, "hour": hour, "tail": tail, "x": x})
    frame["load"] = 3 * trend + np.sin(2 * np.pi * hour / 24) + 0.3 * x + 0.3 * rng.normal(size=ROWS)
    frame["price"] = 40 - 5 * trend + np.tanh(tail) + rng.normal(size=ROWS)
    groups = grouped(
        ("calendar", "day hour", 1), ("clock", "moment", 1), ("meter", "tail x", 3), bases={"hour": "cyclic:24"}
    )
    return Made(Task("dates", ["load", "price"], "numbers", ".parquet", "meter", "clock", "x"), frame, groups)


def weights(rng: np.random.Generator) -> Made:
    """Counts of rows with weights, some of them zero."""
    frame = pd.DataFrame(rng.normal(size=(ROWS, 4)), columns=["u", "v", "w", "z"]).round(3)
    frame["zone"] = rng.choice(["north", "south", "east"], ROWS)
    rate = np.exp(0.5 * frame["u"] - 0.4 * frame["v"] + 0.5 * (frame["zone"] == "north"))
    frame["claims"], frame["exposure"] = rng.poisson(rate), rng.choice([0.0, 0.25, 1.0, 3.0], ROWS)
    groups = grouped(("form", "u zone", 1), ("visit", "v w", 5), ("file", "z", 2), unit="dollars")
    task = Task("weights", ["claims"], "counts", ".csv", "file", "visit", "w", {"weights": "exposure"})
    return Made(task, frame, groups)


def queries(rng: np.random.Generator) -> Made:
    """Rows of queries with grades, and keys that no float can represent."""
    keys = 2**60 + np.repeat(np.arange(ROWS // 8), 8)
    frame = pd.DataFrame(rng.gamma(1.0, 2.0, (ROWS, 6)), columns=[f"f{i}" for i in range(6)])
    score = np.log1p(frame["f0"]) + 0.5 * (frame["f1"] > 2) + 0.1 * frame["f4"] + 0.4 * rng.normal(size=ROWS)
    frame["grade"], frame["query"] = np.digitize(score, np.quantile(score, [0.6, 0.9])), keys
    groups = grouped(("body", "f0 f1", 1), ("title", "f2", 2), ("links", "f3 f4 f5", 6))
    return Made(
        Task("queries", ["grade"], "numbers", ".parquet", "links", "title", "f2", {"query": "query"}), frame, groups
    )


def classes(rng: np.random.Generator) -> Made:
    """Three classes of unequal size."""
    frame = pd.DataFrame(rng.normal(size=(ROWS, 5)), columns=["r", "g", "b", "edge", "speed"])
    score = frame["r"] + 0.8 * frame["speed"] + 0.5 * rng.normal(size=ROWS)
    frame["kind"] = np.array(["car", "cyclist", "walker"])[np.digitize(score, np.quantile(score, [0.5, 0.85]))]
    groups = grouped(("colour", "r g b", 2), ("shape", "edge", 3), ("radar", "speed", 1))
    return Made(Task("classes", ["kind"], "classes", ".csv", "shape", "colour", "b"), frame, groups)


def rows_of(name: str, folder: Path) -> Made:
    """Return the first rows of a set of DATA; those of queries are whole queries."""
    target, query, kind = SETS[name]
    frame = pd.read_parquet(folder / "data.parquet").iloc[:ROWS].drop(columns="fold", errors="ignore")
    features = [column for column in frame if column not in (target, query)]
    file = folder / "groups.json"
    given = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else grouped(*((c, c, 1) for c in features))
    named = [group["name"] for group in given["groups"] if group["features"] and not group.get("requires")]
    roles = {} if query is None else {"query": query}
    return Made(
        Task(name, [target], kind, ".parquet", named[0], named[1], str(features[-1]), roles, of_data=True), frame, given
    )
